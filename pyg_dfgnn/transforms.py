"""The structure of a dataset's graphs, computed once, in as few bytes as a batch of them needs.

``PrecomputeGraph`` is a transform of PyG for datasets of small graphs. What it stores concatenates:
``Batch`` and ``DataLoader`` need no more than what they do with any attribute, in worker processes,
pinned or not, and ``batch.to_data_list()`` takes it apart again. On the device, the structure of
the batch is made of it without waiting, and ``batch.edge_index`` is known to have that structure:

    dataset = TUDataset(root, name, pre_transform=PrecomputeGraph())
    for batch in DataLoader(dataset, batch_size=1024, num_workers=4, pin_memory=True):
        batch = batch.to("cuda", non_blocking=True)
        out = model(batch.x, batch.edge_index)
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.storage import GlobalStorage, recursive_apply
from torch_geometric.transforms import BaseTransform

from . import _cache
from ._side_by_side import PERM, TILE_STRIDE, SideBySide
from .graph import PREPARED, Graph, build_graph
from .reorder import is_of, take

# Attributes. By their names, PyG concatenates them along the first dimension and adds nothing to
# them, and finds the number of nodes and of edges in them.
DEGREES = "dfgnn_node_degrees"
# Shape [GRAPH + work, 0]: numbers that concatenation adds up, of graphs and of their work, and that
# stay on the host; of int32 [GRAPH + work, 0, 1], which torch concatenates with no int16's, whose
# numbers without sign would become negative. It is complex, and makes those complex that it is
# concatenated with, where it is not of the edges as they are.
WORK = "dfgnn_tile_work"
WORK_PER_BLOCK = 16
GRAPH = 1 << 36  # more than the work of all graphs of a batch, or dataset
STRUCTURE = frozenset((DEGREES, PERM, WORK))

# What the cache holds of PERM: the edge_index that was made of the structure.
MADE = ("edge_index",)

INT16_EDGES = 0xFFFF  # stored without sign

SOME_GRAPHS = (
    "edge_index: another one was set, or edges were taken out, after PrecomputeGraph, of some "
    "graphs of a batch or by a sampler; apply it again, set one in all graphs, or store it, too: "
    "PrecomputeGraph(remove_edge_index=False)"
)


def _become(data: Any, its_class: type) -> None:
    object.__setattr__(data, "__class__", its_class)  # PyG's own __setattr__ sets an attribute


class PrecomputedStorage(GlobalStorage):
    """Attributes of a :class:`PrecomputedData`. It has an ``edge_index`` where only the structure
    is stored, too, but not among its keys. Who sets another one here, or cuts what is stored for
    each node or edge, may be going through the keys: these stay then, but are no structure."""

    def __contains__(self, key: object) -> bool:
        return key in self._mapping or (key == "edge_index" and self._tells_edges())

    def __getitem__(self, key: str) -> Any:
        try:
            return self._mapping[key]
        except KeyError:
            if key == "edge_index" and self._tells_edges():
                return self._parent().edge_index
            if key in STRUCTURE:  # collation asks each graph for what the first one has
                raise KeyError(SOME_GRAPHS) from None
            raise

    def get(self, key: str, value: Optional[Any] = None) -> Any:
        return super().get(key, self[key] if key == "edge_index" and key in self else value)

    def __setitem__(self, key: str, value: Any) -> None:
        known = self._mapping.get(key) if key in STRUCTURE and value is not None else None
        if key == "edge_index" and value is None:  # which PyG deletes
            self.drop_structure()
        elif key == "edge_index" or (known is not None and len(known) != len(value)):
            self._spoil()
        if key != WORK or not self.is_spoilt():
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        if key == "edge_index":
            self.drop_structure()
        super().__delitem__(key)

    def apply(self, func: Callable[..., Any], *args: str) -> "PrecomputedStorage":
        """As PyG's; where ``edge_index`` is not named, functions change no edges: they are about
        devices, or memory that is pinned."""
        others = [name for name in args if name != "edge_index"]
        for key, value in self.items(*others) if others or not args else ():
            super().__setitem__(key, recursive_apply(value, func))
        if "edge_index" in args and "edge_index" in self:
            edge_index = self["edge_index"]
            changed = recursive_apply(edge_index, func)
            if changed is not edge_index:
                self["edge_index"] = changed
        return self

    @GlobalStorage.num_nodes.getter
    def num_nodes(self) -> Optional[int]:
        """Where it is not set, the structure's: PyG would search all attributes."""
        if "num_nodes" in self._mapping or DEGREES not in self._mapping:
            return super().num_nodes
        if self.has_structure():
            return self._mapping[DEGREES].size(0)
        others = copy.copy(self)
        others.drop_structure()
        return others.num_nodes

    @property
    def num_edges(self) -> int:
        if "num_edges" in self._mapping:
            return super().num_edges
        if self.has_structure():
            return self._mapping[PERM].size(0)
        edge_index = self.kept_edges()  # in PyG's order before attributes of edges
        return edge_index.size(1) if isinstance(edge_index, Tensor) else super().num_edges

    def kept_edges(self) -> Optional[Any]:
        """The ``edge_index`` that is stored beside the structure, or without one."""
        return self._mapping.get("edge_index")

    def has_structure(self) -> bool:
        """Whether all of it is there, and of the edges as they are."""
        return all(name in self._mapping for name in STRUCTURE) and not self.is_spoilt()

    def drop_structure(self) -> None:
        self._slice_edges()
        for name in STRUCTURE:
            self._mapping.pop(name, None)

    def first_nodes(self) -> Optional[Tensor]:
        """Of each graph, and the end; None where nothing says it."""
        graphs, degrees = self._mapping[WORK].size(0) // GRAPH, self._mapping[DEGREES]
        if graphs == 0:  # as it was saved once
            graphs = self._mapping["ptr"].numel() - 1 if "ptr" in self._mapping else 1
        if graphs == 1:
            return torch.arange(2, device=degrees.device) * degrees.size(0)
        ptr = self._mapping.get("ptr")
        return ptr if isinstance(ptr, Tensor) and ptr.numel() == graphs + 1 else None

    def is_spoilt(self) -> bool:
        """Whether the structure is there, but of other edges."""
        return WORK in self._mapping and self._mapping[WORK].is_complex()

    def _spoil(self) -> None:
        self._slice_edges()
        if self.has_structure():
            self._mapping[WORK] = self._mapping[WORK].to(torch.complex64)

    def _slice_edges(self) -> None:
        """Lets a batch take the edges that are set apart into those of its graphs, as PyG does: at
        the places of those before."""
        slices, increments = vars(self).get("_slice_dict"), vars(self).get("_inc_dict")
        if self.has_structure() and slices and increments and "ptr" in self._mapping:
            self._slice_dict = {"edge_index": slices[PERM], **slices}
            self._inc_dict = {"edge_index": self._mapping["ptr"][:-1], **increments}

    def _tells_edges(self) -> bool:
        """Not where graphs lie one after the other with nothing to say where they begin."""
        return self.has_structure() and self.first_nodes() is not None


class PrecomputedData(Data):
    """A graph, or a batch of graphs, whose structure is stored by :class:`PrecomputeGraph`.

    Whatever changes nodes or edges of it must set ``edge_index``, which drops the structure.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._storage()

    def __setstate__(self, mapping: dict[str, Any]) -> None:
        super().__setstate__(mapping)
        self._storage()

    @property
    def edge_index(self) -> Optional[Tensor]:
        """``[2, E]``, int64, sorted by destination and then by source, or as it is stored.

        The same object every time; :func:`pyg_dfgnn.build_graph`, and so every layer, finds the
        structure by it. One that is stored is compared with the structure first, once, for which
        this waits: what takes some of the edges may not know the other attributes. Raises
        ValueError of a batch without ``ptr``, or of some graphs with other edges.
        """
        kept = self._store.kept_edges()
        if not self._store.has_structure():
            if self._store.is_spoilt() and "edge_index" not in self._store:
                raise ValueError(SOME_GRAPHS)
            return kept
        perm, prepared = self._store[PERM], self._prepared()
        if kept is not None:
            if not (kept.is_inference() or perm.is_inference()):  # of which nothing would be kept
                self._is_of_edges(prepared)
            return kept
        if not _cache.is_eager(perm):
            return prepared.edge_index()
        return _cache.lookup(perm, MADE, lambda _, _name: _known(prepared))

    @edge_index.setter
    def edge_index(self, edge_index: Optional[Tensor]) -> None:
        self._storage().drop_structure()
        self._store["edge_index"] = edge_index

    def __contains__(self, key: str) -> bool:
        return key in self._store

    def update(self, data: Union[Data, dict[str, Any]]) -> "PrecomputedData":
        """As PyG's; another structure is of another ``edge_index``."""
        if {*data.keys()} >= STRUCTURE:
            self.edge_index = None
        return super().update(data)

    def concat(self, data: Data) -> Data:
        """As PyG's; without the structure, which is of the first graph's edges alone."""
        own = self.without_structure()
        data = data.without_structure() if isinstance(data, PrecomputedData) else copy.copy(data)
        if "num_nodes" in own or "num_nodes" in data:  # PyG wants the same keys
            own.num_nodes, data.num_nodes = own.num_nodes, data.num_nodes
        return super(PrecomputedData, own).concat(data)

    def without_structure(self) -> "PrecomputedData":
        """The same edges, stored as ``edge_index`` alone."""
        data = copy.copy(self)
        data.edge_index = self.edge_index
        return data

    def graph(self, self_loops: bool = False) -> Graph:
        """The structure, an argument of layers in the place of ``edge_index``.

        It waits for nothing, and can be given to compiled and scripted models. (Where an
        ``edge_index`` is stored, or one that was made has been changed in place, it is first
        compared with the structure, once.)

        Args:
            self_loops: As in :func:`pyg_dfgnn.build_graph`; layers that add self-loops
                (``GATConv``, ``AGNNConv``, …) need True.

        Raises:
            AttributeError: the edges are not those of the structure any more.
            ValueError: of a batch without ``ptr``.
        """
        prepared = self._prepared() if self._store.has_structure() else None
        if prepared is None or not self._is_of_edges(prepared):
            raise AttributeError(
                "edge_index was set or changed after PrecomputeGraph: apply it again"
            )
        return prepared.graph(self_loops)

    def _is_of_edges(self, prepared: SideBySide) -> bool:
        """Whether it is of the edges that are stored, or were made and may have been changed since;
        compiled code is not asked."""
        edges = self._store.kept_edges()
        if edges is None and _cache.is_eager(self._store[PERM]):
            edges = _cache.known(self._store[PERM], MADE)
        if edges is None or not _cache.is_eager(edges):
            return True
        known = _cache.lookup(edges, PREPARED, lambda e, _: prepared if prepared.is_of(e) else None)
        return known is not None

    def _storage(self) -> PrecomputedStorage:
        if type(self._store) is GlobalStorage:  # as Data makes it, and as it was saved once
            _become(self._store, PrecomputedStorage)
        return self._store

    def _prepared(self) -> SideBySide:
        perm = self._store[PERM]
        if not _cache.is_eager(perm):
            return self._side_by_side()
        return _cache.lookup(perm, PREPARED, lambda _, _name: self._side_by_side())

    def _side_by_side(self) -> SideBySide:
        ptr = self._store.first_nodes()
        if ptr is None:  # a batch of batches, to which PyG gives none; a dataset
            graphs, got = self._store[WORK].size(0) // GRAPH, self._store.get("ptr")
            raise ValueError(
                f"ptr: expected the first nodes of {graphs} graphs, and their end, got "
                f"{getattr(got, 'shape', got)}: make a batch of graphs, not of batches"
            )
        blocks = -(-(self._store[WORK].size(0) % GRAPH) // WORK_PER_BLOCK)
        return SideBySide(self._store[DEGREES], self._store[PERM], ptr, blocks)


# Of Data's methods, those that take what is of edges by the keys.
_BY_KEYS = (
    "sort",
    "snapshot",
    "up_to",
    "sort_by_time",
    "subgraph",
    "edge_subgraph",
    "to_heterogeneous",
)


def _of_stored_edges(name: str) -> Callable[..., Any]:
    """``Data``'s method of that name, of the same edges without their structure."""

    @functools.wraps(getattr(Data, name))
    def method(self: PrecomputedData, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(PrecomputedData, self.without_structure()), name)(*args, **kwargs)

    return method


for _name in _BY_KEYS:
    setattr(PrecomputedData, _name, _of_stored_edges(_name))


def _known(prepared: SideBySide) -> Tensor:
    """The edges, by which the structure is found until they are changed."""
    edge_index = prepared.edge_index()
    _cache.lookup(edge_index, PREPARED, lambda _, _name: prepared)
    return edge_index


# As PyG does with Data, for datasets
torch.serialization.add_safe_globals([PrecomputedData, PrecomputedStorage])


class PrecomputeGraph(BaseTransform):
    """Computes the structure that :func:`pyg_dfgnn.build_graph` makes of ``edge_index``.

    For ``pre_transform``, ``transform`` or the data itself. It sorts the edges by destination and
    then by source, all attributes of edges with them, and makes a ``Data`` a
    :class:`PrecomputedData`; a class derived from that is kept. It should be the last transform:
    one that sets another ``edge_index`` drops the structure.

    Args:
        index_dtype: That of what is stored, two numbers for each node and one for each edge:
            ``torch.int16`` serves graphs of up to 65535 edges, ``torch.int32`` all. It is the same
            for all graphs of a dataset, because they are concatenated: a batch of both is refused
            (RuntimeError: Tensors must have same number of dimensions).
        remove_edge_index: Whether to drop the attribute itself, 16 bytes for every edge;
            ``data.edge_index`` is then made of the structure when it is read.

    Raises:
        TypeError: of data that is no ``Data``, or of a class of its own.
        ValueError: ``edge_index`` is missing or of the wrong kind, the number of nodes is unknown,
            a graph has too many edges for ``index_dtype``, or an attribute is called ``graph``.
        IndexError: ``edge_index`` holds a node that is out of range.
    """

    def __init__(
        self, index_dtype: torch.dtype = torch.int16, remove_edge_index: bool = True
    ) -> None:
        if index_dtype not in (torch.int16, torch.int32):
            raise ValueError(f"index_dtype: expected torch.int16 or torch.int32, got {index_dtype}")
        self.index_dtype = index_dtype
        self.remove_edge_index = remove_edge_index

    def forward(self, data: Data) -> PrecomputedData:
        is_batch = isinstance(data, Batch)
        if is_batch or (type(data) is not Data and not isinstance(data, PrecomputedData)):
            raise TypeError(
                "data: expected a torch_geometric.data.Data, or one of a class derived from "
                f"pyg_dfgnn.transforms.PrecomputedData, got {type(data).__name__}"
            )
        if "graph" in data:
            raise ValueError("data: expected no attribute graph, which is a method's name")
        edge_index = data.edge_index
        if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            got = edge_index.layout if isinstance(edge_index, Tensor) else type(edge_index).__name__
            raise ValueError(f"edge_index: expected a tensor [2, num_edges], got {got}")
        if data.num_nodes is None:
            raise ValueError("num_nodes: expected the data to know it, got None")
        num_nodes = int(data.num_nodes)
        # Of views, which nobody else has, so that the cache keeps nothing.
        build_graph(edge_index.detach(), num_nodes, num_nodes)  # checks it
        if self.index_dtype == torch.int16 and edge_index.size(1) > INT16_EDGES:
            raise ValueError(
                f"index_dtype: expected torch.int32 for a graph of {edge_index.size(1)} edges, "
                f"got {self.index_dtype}"
            )
        order = (edge_index[1].long() * num_nodes + edge_index[0]).argsort(stable=True)
        for name in data._store.edge_attrs():
            if is_of("edge", data, name):
                value = data._store[name]
                data._store[name] = take(value, order, data.__cat_dim__(name, value))
        edge_index = edge_index.index_select(1, order)

        edges = edge_index.detach().cpu()
        graph = build_graph(edges, num_nodes, num_nodes)
        with_loops = build_graph(edges, num_nodes, num_nodes, self_loops=True)
        if type(data) is Data:
            _become(data, PrecomputedData)
        data.edge_index = edge_index
        if self.remove_edge_index:
            del data._store["edge_index"]
        degrees = torch.stack([graph.rowptr.diff(), graph.colptr.diff()], dim=1)
        data._store[DEGREES] = degrees.to(edge_index.device, self.index_dtype)
        data._store[PERM] = graph.perm.to(edge_index.device, self.index_dtype)
        work = torch.empty(GRAPH + tile_work(with_loops), 0, dtype=torch.float32)
        data._store[WORK] = work if self.index_dtype == torch.int16 else work.unsqueeze(2)
        return data

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.index_dtype}, remove_edge_index={self.remove_edge_index})"
        )


def tile_work(graph: Graph) -> int:
    """What a graph adds to the work of method "tile" in a batch of its like, in parts of blocks.

    A tile takes small graphs together, so that it is counted for several copies side by side.
    """
    nodes, edges = graph.num_dst, int(graph.rowptr[-1])
    copies = max(1, 8 * TILE_STRIDE // max(1, nodes))
    first = torch.arange(copies, dtype=graph.col.dtype).unsqueeze(1) * nodes
    col = (graph.col[:edges] + first).flatten()
    degree = graph.rowptr.diff().repeat(copies)
    rowptr = torch.nn.functional.pad(degree.cumsum(0, dtype=col.dtype), (1, 0))
    _, blocks = torch.ops.dfgnn.find_tiles(rowptr, col)
    return -(-int(blocks) * WORK_PER_BLOCK // copies)
