"""New numbers for the nodes of a graph, so that those that share edges lie close together.

The kernels read a row of features per edge. Which rows are read at about the same time follows from
the numbers of the nodes, and the fewer those rows are, the more of them are in the L2 cache. For a
large graph whose nodes come in no such order, ``ReorderNodes`` makes one, once:

    data = ReorderNodes("rcm")(data)
    out = model(data.x, data.edge_index)[data.restore_index]  # in the order of before
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.transforms import BaseTransform
from torch_geometric.typing import SparseTensor

from ._side_by_side import PERM
from .graph import as_int

METHODS = ("rcm", "degree", "community")
RESTORE = "restore_index"
_NUMBERS = (RESTORE, "face", "train_index", "val_index", "test_index")
_INTEGERS = (torch.int32, torch.int64)


def node_order(edge_index: Tensor, num_nodes: int, method: str) -> Tensor:
    """The nodes in a new order: ``order[i]`` is the node to come at place ``i``.

    Args:
        edge_index: ``[2, E]``, int32 or int64. Directions make no difference.
        num_nodes: The number of nodes.
        method: ``"rcm"``, reverse Cuthill-McKee (SciPy), which keeps neighbours close: for meshes,
            roads and other graphs of small width; ``"degree"``, most edges first, so that the rows
            that most edges read lie together; ``"community"``, the communities that label
            propagation finds (NetworkX, in Python and slow), largest first.

    Returns:
        int64, ``[num_nodes]``, on ``edge_index``'s device. ``"rcm"`` and ``"community"`` are made
        on the CPU.

    Raises:
        TypeError: ``edge_index`` is no tensor, or ``num_nodes`` no int.
        ValueError: of an unknown method, an ``edge_index`` of another shape or dtype, or a number
            of nodes below 0.
        IndexError: ``edge_index`` holds a node that is out of range.
        ImportError: where the method's library is not installed.
    """
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index: expected a tensor, got a {type(edge_index).__name__}")
    num_nodes = as_int("num_nodes", num_nodes)
    if num_nodes < 0:
        raise ValueError(f"num_nodes: expected a number >= 0, got {num_nodes}")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in _INTEGERS:
        raise ValueError(
            "edge_index: expected an int32 or int64 tensor of shape [2, E], got one of "
            f"{edge_index.dtype} and shape {list(edge_index.shape)}"
        )
    _check_numbers("edge_index", edge_index, num_nodes)
    if method == "degree":
        degree = torch.bincount(edge_index.flatten(), minlength=num_nodes)
        return degree.argsort(descending=True, stable=True)
    if method == "rcm":
        order = _reverse_cuthill_mckee(edge_index.cpu(), num_nodes)
    elif method == "community":
        order = _by_community(edge_index.cpu(), num_nodes)
    else:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    return order.to(edge_index.device)


class ReorderNodes(BaseTransform):
    """Renumbers the nodes of a graph.

    Attributes of nodes follow, and ``edge_index``, ``edge_label_index``, ``face``, ``train_index``,
    ``val_index`` and ``test_index`` name the nodes by their new numbers; edges keep their order,
    with what belongs to them. ``data.restore_index``
    (int64, ``[N]``) is the new place of every node: ``out[data.restore_index]`` is in the order of
    before, also where a graph went through this more than once, and in a batch that is made of such
    graphs.

    Comes before :class:`pyg_dfgnn.transforms.PrecomputeGraph`.

    Args:
        method: See :func:`node_order`.

    Raises:
        TypeError: of data that is no ``Data``, of a ``HyperGraphData``, whose ``edge_index`` does
            not join nodes, or of a ``SparseTensor``, of which PyG does not say whether it has a row
            for each node.
        ValueError: of an unknown method, a batch, or edges that are not in ``edge_index`` alone.
        IndexError: an attribute of nodes' numbers holds one that is out of range.
    """

    def __init__(self, method: str = "rcm") -> None:
        if method not in METHODS:
            raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        self.method = method

    def forward(self, data: Data) -> Data:
        if not isinstance(data, Data) or isinstance(data, HyperGraphData):
            raise TypeError(f"data: expected a Data, got a {type(data).__name__}")
        if isinstance(data, Batch):
            raise ValueError(
                "data: expected a single graph, got a batch: renumber its graphs first"
            )
        if PERM in data:
            data.edge_index = data["edge_index"]  # drops the structure, which has the old numbers
        if not isinstance(data._store.get("edge_index"), Tensor):
            raise ValueError(
                "data: expected its edges in edge_index, got " + ", ".join(data.keys())
            )
        for name in ("adj", "adj_t"):
            if name in data:
                raise ValueError(f"data: expected its edges in edge_index alone, got {name} too")
        num_nodes = int(data.num_nodes or 0)
        attributes = data.to_dict()
        for name, value in attributes.items():
            if isinstance(value, SparseTensor):
                raise TypeError(f"{name}: expected a tensor, an array or a list, got SparseTensor")
        names = []  # of attributes that name nodes
        for name, value in attributes.items():
            if name in _NUMBERS or name.endswith(("edge_index", "edge_label_index")):
                found = _numbers_in(value)
                for numbers in found if name != "edge_index" else ():  # which node_order checks
                    _check_numbers(name, numbers, num_nodes)
                if found:
                    names.append(name)
        order = node_order(data.edge_index, num_nodes, self.method)
        place = torch.empty_like(order)
        place[order] = torch.arange(num_nodes, device=order.device)
        for name, value in attributes.items():
            if name in names:
                data[name] = _with_numbers(value, lambda n: place.to(n.device)[n])
            elif is_of("node", data, name):
                data[name] = take(value, order, data.__cat_dim__(name, value))
        if RESTORE not in data:
            data[RESTORE] = place
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r})"


def _with_numbers(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An attribute of nodes' numbers with what ``change`` makes of these, int64, in their place:
    tensors and arrays of integers, integers, and lists and tuples of such; all else as it is."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
            return value
        changed = change(value.long())
        return changed.int() if value.dtype == torch.int32 else changed
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            return value
        array = change(torch.from_numpy(value.astype(np.int64))).numpy()
        return array.astype(np.int32) if value.dtype == np.int32 else array
    if isinstance(value, list) or type(value) is tuple:
        if value and all(type(number) is int for number in value):
            return type(value)(change(torch.tensor(value)).tolist())
        return type(value)(_with_numbers(part, change) for part in value)
    return int(change(torch.tensor([value]))) if type(value) is int else value


def _numbers_in(value: Any) -> list[Tensor]:
    """Those that :func:`_with_numbers` finds."""
    found: list[Tensor] = []

    def keep(numbers: Tensor) -> Tensor:
        found.append(numbers)
        return numbers

    _with_numbers(value, keep)
    return found


def _check_numbers(name: str, nodes: Tensor, num_nodes: int) -> None:
    if nodes.numel() > 0 and not 0 <= int(nodes.min()) <= int(nodes.max()) < num_nodes:
        raise IndexError(
            f"{name}: expected nodes from 0 to {num_nodes - 1}, got "
            f"{int(nodes.min())} to {int(nodes.max())}"
        )


def is_of(kind: str, data: Data, name: str) -> bool:
    """Whether an attribute is of nodes or of edges, ``kind``. Where there are as many of both, PyG
    tells tensors apart by their names, but takes a list for either."""
    if not (data.is_edge_attr(name) if kind == "edge" else data.is_node_attr(name)):
        return False
    return data.num_nodes != data.num_edges or ("edge" in name) == (kind == "edge")


def take(value: Any, order: Tensor, dim: int) -> Any:
    """An attribute of nodes or edges, a tensor, an array or a list, in another order."""
    if isinstance(value, Tensor):
        return value.index_select(dim, order.to(value.device))
    if isinstance(value, np.ndarray):
        return value.take(order.cpu().numpy(), axis=dim)
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(value[i] for i in order.tolist())
    return value if isinstance(value, tuple) else value[order]  # a named one's length says nothing


def _reverse_cuthill_mckee(edge_index: Tensor, num_nodes: int) -> Tensor:
    if num_nodes == 0:
        return torch.empty(0, dtype=torch.long)  # which SciPy does not take
    sparse = _library("scipy.sparse", "SciPy", "rcm")
    csgraph = _library("scipy.sparse.csgraph", "SciPy", "rcm")
    ends = torch.cat([edge_index, edge_index.flip(0)], 1).numpy()
    ones = torch.ones(ends.shape[1], dtype=torch.int8).numpy()
    adjacency = sparse.coo_array((ones, (ends[0], ends[1])), shape=(num_nodes, num_nodes)).tocsr()
    order = csgraph.reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    return torch.from_numpy(order.copy()).long()


def _by_community(edge_index: Tensor, num_nodes: int) -> Tensor:
    networkx = _library("networkx", "NetworkX", "community")
    graph = networkx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edge_index.t().tolist())
    found = networkx.community.fast_label_propagation_communities(graph, seed=0)
    largest_first = sorted((sorted(c) for c in found), key=lambda c: (-len(c), c[0]))
    return torch.tensor([node for c in largest_first for node in c], dtype=torch.long)


def _library(module: str, name: str, method: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"method {method!r} needs {name}, which is not installed") from error
