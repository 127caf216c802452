"""The graph structure that the operators read, built from what PyG calls ``edge_index``."""

import operator
from typing import NamedTuple, Optional, Union

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.index import ptr2index
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from . import _cache
from ._dtype_names import dtype_name

# What the cache knows an edge_index by whose structure is prepared, see transforms.py.
PREPARED = ("prepared",)


class Graph(NamedTuple):
    """A graph, its edges compressed by destination (CSR) and by source (CSC); immutable.

    It is a pytree of tensors and integers, and an argument that scripted and compiled code takes.
    The capacity ``C`` may exceed the number of edges ``rowptr[-1]`` (self-loops that were dropped
    leave room): entries behind it are no edges.

    Attributes:
        rowptr: ``[num_dst + 1]``, where the edges of each destination begin; int32 or int64, like
            all tensors here.
        col: ``[C]``, the source of each edge. Those of a destination ascend, whatever the order of
            ``edge_index``, but for self-loops that were added, which come last. (The rows of a
            SparseTensor or a torch.sparse tensor to which none are added stay as they are.)
        eid: ``[C]``, the position of each edge in ``edge_index``; the self-loop that was added for
            node ``i`` to an ``edge_index`` of ``E`` edges has position ``E + i``.
        colptr: ``[num_src + 1]``, where the edges of each source begin, in the order by source.
        row: ``[C]``, the destination of each edge, in the order by source.
        perm: ``[C]``, the position of each edge in ``col``, in the order by source.
        num_dst: The number of destination nodes.
        num_src: The number of source nodes.
        max_degree: The largest number of edges that a destination has; −1 where it is unknown.
        self_loops: Whether each node got one self-loop in the place of those that ``edge_index``
            had.
        tiles: What ``dfgnn::find_tiles`` finds, int32 ``[ceil(num_dst / 64) + 1]``: where runs of
            nodes begin whose edges stay inside, which method "tile" computes as dense blocks. Where
            "auto" may choose that method, edges as bits follow (``dfgnn::with_masks``): who changes
            edges must make them again, or leave them out. Where it is "resident" that it may
            choose, the same nodes follow, each once, then ``num_dst``. Where it is neither, and
            edges are few, nodes in the order of their degrees follow instead
            (``dfgnn::with_orders``). None where nobody looked.
        tile_blocks: The work of method "tile", in blocks; −1 where it is unknown.
        tile_nodes, tile_batches: What the largest tile takes of a multiprocessor's shared memory in
            method "resident": nodes, and batches of 8 nodes by 2 edges; −1 where it is unknown.
    """

    rowptr: Tensor
    col: Tensor
    eid: Tensor
    colptr: Tensor
    row: Tensor
    perm: Tensor
    num_dst: int
    num_src: int
    max_degree: int = -1
    self_loops: bool = False
    tiles: Optional[Tensor] = None
    tile_blocks: int = -1
    tile_nodes: int = -1
    tile_batches: int = -1

    def to(self, device: Union[torch.device, str, int], non_blocking: bool = False) -> "Graph":
        """This graph with its tensors on ``device``."""
        return Graph._make(
            field.to(device, non_blocking=non_blocking) if isinstance(field, Tensor) else field
            for field in self
        )


torch.serialization.add_safe_globals([Graph])  # so that torch.load reads it


def build_graph(
    edge_index: Union[Tensor, SparseTensor],
    num_src: int,
    num_dst: int,
    self_loops: bool = False,
    flow: str = "source_to_target",
) -> Graph:
    """The structure of a graph. Scriptable.

    Eager code converts the same ``edge_index`` object once, however often it comes. A conversion
    waits for the device once, to check the range of the nodes and to read the largest degree and
    the number of blocks. Code that is compiled, traced or captured in a CUDA graph does not wait:
    ``max_degree`` and ``tile_blocks`` are −1 there, and the check is an assertion on the device
    (RuntimeError). Tiles are looked for on CUDA, where ``num_src == num_dst``.

    Args:
        edge_index: ``[2, E]``, the source and the destination of each edge, int32 or int64; or the
            transposed adjacency ``[num_dst, num_src]`` as a ``torch_sparse.SparseTensor`` or a
            torch.sparse tensor (CSR, or COO that is coalesced). What a SparseTensor has cached
            is reused (unless self-loops are added); what an ``EdgeIndex`` has is not, as it may be
            of edges that it had before.
        num_src: The number of source nodes.
        num_dst: The number of destination nodes.
        self_loops: Drop the self-loops of the graph, then add one for each node ``i < min(num_src,
            num_dst)``. Of a torch.sparse tensor duplicates are dropped, too, as by PyG's layers.
        flow: ``"target_to_source"`` swaps the rows of ``edge_index``; it takes no adjacency.

    Raises:
        ValueError: ``edge_index`` is of the wrong kind, dtype, shape or size, or numbers of nodes
            are negative or 2^48 and more, or ``flow`` is none.
        IndexError: ``edge_index`` holds a node that is out of range.
        TypeError: ``num_src`` or ``num_dst`` is no int.
    """
    if flow != "source_to_target" and flow != "target_to_source":
        raise ValueError(f"flow: expected 'source_to_target' or 'target_to_source', got '{flow}'")
    if not is_convertible(edge_index, num_src, num_dst, flow):
        raise ValueError(
            f"edge_index: expected an int32 or int64 tensor of shape [2, E] or, with "
            f"flow='source_to_target', a SparseTensor or a torch.sparse tensor (CSR or coalesced "
            f"COO) of size [{num_dst}, {num_src}], got {describe(edge_index)} with flow='{flow}'"
        )
    if not torch.jit.is_scripting():
        if _cache.is_eager(edge_index):
            num_src, num_dst = as_int("num_src", num_src), as_int("num_dst", num_dst)
            return _cache.lookup(edge_index, (num_src, num_dst, self_loops, flow), _build_eager)
        return _with_assertion(*_convert(plain(edge_index), num_src, num_dst, self_loops, flow))
    return _build_checked(edge_index, num_src, num_dst, self_loops, flow)


def is_convertible(
    edge_index: Union[Tensor, SparseTensor], num_src: int, num_dst: int, flow: str
) -> bool:
    """Whether :func:`build_graph` takes it; the range of nodes is not looked at. Scriptable."""
    if isinstance(edge_index, SparseTensor):
        return (
            flow == "source_to_target"
            and edge_index.size(0) == num_dst
            and edge_index.size(1) == num_src
        )
    if isinstance(edge_index, Tensor):
        if not torch.jit.is_scripting() and isinstance(edge_index, EdgeIndex):
            rows, cols = (num_src, num_dst) if flow == "source_to_target" else (num_dst, num_src)
            if edge_index.num_rows not in (None, rows) or edge_index.num_cols not in (None, cols):
                return False
        if is_torch_sparse_tensor(edge_index):
            return (
                flow == "source_to_target"
                and is_matrix(edge_index)
                and edge_index.size(0) == num_dst
                and edge_index.size(1) == num_src
            )
        is_index = edge_index.dtype == torch.int32 or edge_index.dtype == torch.int64
        return is_index and edge_index.dim() == 2 and edge_index.size(0) == 2
    return False


def is_adjacency(edge_index: Union[Tensor, SparseTensor, Graph]) -> bool:
    """Whether this is a SparseTensor or a torch.sparse tensor. Scriptable."""
    if isinstance(edge_index, SparseTensor):
        return True
    if isinstance(edge_index, Tensor):
        return is_torch_sparse_tensor(edge_index)
    return False


def is_csr(adj_t: Tensor) -> bool:
    """Whether this is a torch.sparse tensor in compressed rows. Scriptable."""
    return adj_t.layout == torch.sparse_csr


def is_matrix(adj_t: Tensor) -> bool:
    """Whether a torch.sparse tensor is a matrix, of numbers or of rows of them, in compressed rows
    or coalesced. Scriptable."""
    if is_csr(adj_t):
        return adj_t.crow_indices().dim() == 1
    return adj_t.is_sparse and adj_t.is_coalesced() and adj_t.sparse_dim() == 2


def plain(edge_index: Union[Tensor, SparseTensor]) -> Union[Tensor, SparseTensor]:
    """The edges of an EdgeIndex as a tensor, anything else as it is. Scriptable."""
    if not torch.jit.is_scripting() and isinstance(edge_index, EdgeIndex):
        return edge_index.as_tensor()
    return edge_index


def describe(edge_index: Union[Tensor, SparseTensor]) -> str:
    """``edge_index`` in the words of an error message. Scriptable."""
    if isinstance(edge_index, SparseTensor):
        return f"a SparseTensor of size [{edge_index.size(0)}, {edge_index.size(1)}]"
    if isinstance(edge_index, Tensor):
        words = f"a tensor of {dtype_name(edge_index)} and shape {edge_index.shape}"
        return words if torch.jit.is_scripting() else words + _details(edge_index)
    return "neither" if torch.jit.is_scripting() else f"a {type(edge_index).__name__}"


@torch.jit.unused
def _details(edge_index: Tensor) -> str:
    """What else may be wrong with it."""
    if isinstance(edge_index, EdgeIndex):
        return f", an EdgeIndex of sparse size {edge_index.sparse_size()}"
    if edge_index.layout == torch.strided:
        return ""
    is_coo = edge_index.layout == torch.sparse_coo
    kind = "uncoalesced " if is_coo and not edge_index.is_coalesced() else ""
    return f", {kind}{edge_index.layout}"


def _convert(
    edge_index: Union[Tensor, SparseTensor], num_src: int, num_dst: int, self_loops: bool, flow: str
) -> tuple[Graph, Tensor]:
    """The graph without what only the device knows: [its largest degree, bad edges, blocks]."""
    if not self_loops:
        if isinstance(edge_index, SparseTensor):
            return _convert_sparse_tensor(edge_index, num_src, num_dst)
        if is_csr(edge_index):
            rowptr, col = edge_index.crow_indices(), edge_index.col_indices()
            return convert_csr(rowptr, col, num_src, num_dst)
    src, dst = endpoints(edge_index, flow)
    if self_loops and is_adjacency(edge_index) and isinstance(edge_index, Tensor):
        src, dst = _with_loops_for_duplicates(src, dst, num_src)
    return _convert_edges(src, dst, num_src, num_dst, self_loops)


def _convert_edges(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, self_loops: bool
) -> tuple[Graph, Tensor]:
    with_tiles = src.is_cuda and num_src == num_dst
    rowptr, col, eid, colptr, row, perm, tiles, stats = _compress(
        src, dst, num_src, num_dst, self_loops, with_tiles
    )
    graph = Graph(
        rowptr, col, eid, colptr, row, perm, num_dst, num_src, -1, self_loops,
        tiles if with_tiles else None,
    )  # fmt: skip
    return graph, stats


def _with_assertion(graph: Graph, stats: Tensor) -> Graph:
    """The graph, which has an assertion on the device that none of its edges is bad."""
    if torch.jit.is_tracing():
        return graph._replace(rowptr=torch.ops.dfgnn.assert_in_range(graph.rowptr, stats))
    torch._assert_async(stats[1] == 0, "edge_index: holds nodes that are out of range")
    return graph


def _with_loops_for_duplicates(src: Tensor, dst: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """Edges that are there twice become loops of node 0, which are to be dropped: PyG's layers
    coalesce a torch.sparse tensor to which they add self-loops. Scriptable."""
    keys, order = (dst.long() * num_src + src.long()).sort(stable=True)
    is_again = torch.zeros_like(order, dtype=torch.bool)
    is_again[order[1:]] = keys[1:] == keys[:-1]
    return src.masked_fill(is_again, 0), dst.masked_fill(is_again, 0)


_Compressed = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _compress(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, self_loops: bool, with_tiles: bool
) -> _Compressed:
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code has no tensors for sizes)
        if torch.jit.is_tracing():  # sizes are tensors then, and an operator's would be constants
            nodes = (n if isinstance(n, Tensor) else torch.full([], n) for n in (num_src, num_dst))
            return _compress_traced(src, dst, *nodes, self_loops, bool(with_tiles))
    return torch.ops.dfgnn.compress(
        src, dst, num_src, num_dst, self_loops=self_loops, with_tiles=with_tiles
    )


@torch.jit.script_if_tracing
def _compress_traced(
    src: Tensor, dst: Tensor, num_src: Tensor, num_dst: Tensor, self_loops: bool, with_tiles: bool
) -> _Compressed:
    return torch.ops.dfgnn.compress(
        src, dst, int(num_src), int(num_dst), self_loops=self_loops, with_tiles=with_tiles
    )


def _with_tiles(g: Graph, stats: Tensor) -> tuple[Graph, Tensor]:
    """The graph with its tiles where they are of use, and ``stats`` with their blocks behind."""
    if not g.rowptr.is_cuda or g.num_src != g.num_dst:
        return g, torch.cat([stats, stats.new_full([1], -1)])
    tiles, blocks = torch.ops.dfgnn.find_tiles(g.rowptr, g.col)
    return _with_tiles_of(g, tiles, -1, -1), torch.cat([stats, blocks])


def endpoints(edge_index: Union[Tensor, SparseTensor], flow: str) -> tuple[Tensor, Tensor]:
    """The sources and the destinations of the edges, in their order. Scriptable."""
    if isinstance(edge_index, SparseTensor):
        row, col, _ = edge_index.coo()
        return col, row
    if is_csr(edge_index):
        return edge_index.col_indices(), ptr2index(edge_index.crow_indices())
    if edge_index.is_sparse:
        edge_index, flow = edge_index.indices(), "target_to_source"
    if flow == "source_to_target":
        return edge_index[0], edge_index[1]
    return edge_index[1], edge_index[0]


def _convert_sparse_tensor(adj_t: SparseTensor, num_src: int, num_dst: int) -> tuple[Graph, Tensor]:
    if not torch_geometric.typing.WITH_TORCH_SPARSE:  # TorchScript reads no further then
        raise ImportError("a SparseTensor needs torch_sparse")
    storage = adj_t.storage
    has_columns = storage.has_csr2csc()
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript reads no further then, either)
        if torch.compiler.is_compiling():
            # torch_sparse makes what is not there by operators that cannot be traced.
            if not storage.has_rowptr():
                return _convert_edges(storage.col(), storage.row(), num_src, num_dst, False)
            has_columns = has_columns and storage.has_colptr() and storage.has_row()
    if has_columns:
        order = storage.csr2csc()
        csc = storage.colptr(), storage.row()[order], order
        return convert_csr(storage.rowptr(), storage.col(), num_src, num_dst, csc)
    return convert_csr(storage.rowptr(), storage.col(), num_src, num_dst)


def convert_csr(
    rowptr: Tensor,
    col: Tensor,
    num_src: int,
    num_dst: int,
    csc: Optional[tuple[Tensor, Tensor, Tensor]] = None,
) -> tuple[Graph, Tensor]:
    """The same of what is compressed already: by destination, perhaps by source, too."""
    degrees = torch.cat([rowptr.diff(), rowptr.new_zeros(1)])
    stats = torch.stack([degrees.max(), ((col < 0) | (col >= num_src)).sum()])
    fits = max(col.numel(), num_src, num_dst) < 0x7FFFFFFF
    dtype = torch.int32 if fits else torch.int64
    # Copies: the matrix may change, and the graph is for good.
    rowptr, col = rowptr.to(dtype, copy=True), col.to(dtype, copy=True)
    if csc is None:
        colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, num_src)
    else:
        colptr, row, perm = csc[0].to(dtype), csc[1].to(dtype), csc[2].to(dtype)
    eid = torch.arange(col.numel(), dtype=dtype, device=col.device)
    return _with_tiles(Graph(rowptr, col, eid, colptr, row, perm, num_dst, num_src), stats)


def _build_checked(
    edge_index: Union[Tensor, SparseTensor],
    num_src: int,
    num_dst: int,
    self_loops: bool,
    flow: str,
) -> Graph:
    """The graph with its numbers, after the device has said that all nodes are in range."""
    if min(num_src, num_dst) < 0 or max(num_src, num_dst) >= 1 << 48:
        raise ValueError(
            f"num_src, num_dst: expected numbers >= 0 and below 2^48, got {num_src} and {num_dst}"
        )
    g, num_bad = with_numbers(*_convert(edge_index, num_src, num_dst, self_loops, flow))
    if num_bad > 0:
        src, dst = endpoints(edge_index, flow)
        raise IndexError(
            f"edge_index: {num_bad} edges have a node that is out of range: found sources in "
            f"[{int(src.min())}, {int(src.max())}], expected [0, {num_src}), and destinations in "
            f"[{int(dst.min())}, {int(dst.max())}], expected [0, {num_dst})"
        )
    return with_tile_data(g)


def with_numbers(g: Graph, stats: Tensor) -> tuple[Graph, int]:
    """The graph with what only the device knows of it, for which this waits, and how many bad edges
    it has. Scriptable."""
    tiles, sizes = g.tiles, stats.new_full([2], -1)
    if tiles is not None:
        sizes = torch.ops.dfgnn.tile_sizes(tiles, g.rowptr, g.colptr)
    found = torch.cat([stats, sizes]).cpu()
    graph = Graph(
        g.rowptr, g.col, g.eid, g.colptr, g.row, g.perm, g.num_dst, g.num_src, int(found[0]),
        g.self_loops, tiles, int(found[2]), int(found[3]), int(found[4]),
    )  # fmt: skip
    return graph, int(found[1])


def with_tile_data(g: Graph) -> Graph:
    """The graph with what method "auto" reads of its tiles: masks where it may choose "tile",
    their list where it may choose "resident", and else, where edges are few, its rows by their
    numbers of edges. Scriptable; waits for nothing."""
    if _may_be_sparse(g):
        return _with_orders(_with_masks(_with_list(g)))
    return _with_orders(_with_masks(_with_tiles_of(g, g.tiles, -1, -1)))


def _with_masks(g: Graph) -> Graph:
    """The graph, on CUDA with masks where method "auto" may choose "tile". Scriptable; waits for
    nothing."""
    tiles = g.tiles
    if tiles is not None and tiles.is_cuda and g.tile_blocks >= 0 and _may_choose_tile(g):
        tiles = torch.ops.dfgnn.with_masks(tiles, g.rowptr, g.col, g.colptr, g.row)
    return _with_tiles_of(g, tiles, g.tile_nodes, g.tile_batches)


def _may_choose_tile(g: Graph) -> bool:
    """By bounds of what method.cpp has: tiles cost 7 edges a block or more, or 18 and save up to 5
    a node. Where "resident" takes both passes, it leaves to "tile" what has 2 edges a block and
    5.2 a node or more, and of heads of up to 32 features 54 a block, among it narrow heads. (What
    it does not take, other heads and cosine scores of two tensors, is left to "tile" as well; each
    call of these makes the masks that are not here.)"""
    edges, nodes, blocks = g.col.size(0), g.num_dst, g.tile_blocks
    if _resident_takes(g):
        return min(10 * blocks + 26 * nodes, 270 * blocks) <= 5 * edges
    return 7 * blocks < edges or 18 * blocks < edges + 5 * nodes


def _resident_takes(g: Graph) -> bool:
    """Whether there are tiles enough for it, and the largest fits in shared memory (more or less
    as ``backward_bytes`` of resident_geometry.h has it)."""
    nodes, edge_bytes = g.tile_nodes, 64 * g.tile_batches
    needed = max(128 * (nodes + 1), 3 * edge_bytes + 2 * nodes + 16) + 3 * edge_bytes + 9 * nodes
    needed += max(edge_bytes // 2, 8 * nodes)
    return nodes >= 0 and g.num_dst >= 300 * nodes and needed + 96 <= 232192


def _may_be_sparse(g: Graph) -> bool:
    """Whether tiles are so sparse that method "auto" should be able to choose "resident"."""
    is_dense = 130 * g.tile_blocks < g.col.size(0) + 4 * g.num_dst
    return g.tile_blocks >= 0 and not is_dense and g.num_dst > 0 and g.col.size(0) > 0


def _with_list(g: Graph) -> Graph:
    """The graph, on CUDA with the list of its tiles where the largest may fit in shared memory, and
    else without its size. Scriptable; waits for nothing."""
    tiles = g.tiles
    if tiles is None or not tiles.is_cuda or not _may_fit(g.tile_nodes):
        return _with_tiles_of(g, tiles, -1, -1)
    listed = torch.ops.dfgnn.with_list(tiles, g.num_dst)
    return _with_tiles_of(g, listed, g.tile_nodes, g.tile_batches)


def _may_fit(tile_nodes: int) -> bool:
    """Whether a multiprocessor's shared memory may have 128 bytes for each."""
    return tile_nodes <= 1700


def _with_orders(g: Graph) -> Graph:
    """The graph, on CUDA with orders where nothing else is behind its tiles, warps take runs of
    rows (``has_runs`` of run_geometry.h), some rows are long, and which ones are neighbours does
    not matter much, as what they gather is in the caches. Scriptable; waits for nothing."""
    tiles, edges, nodes = g.tiles, g.col.size(0), g.num_dst
    if tiles is None or not tiles.is_cuda or tiles.size(0) != (nodes + 63) // 64 + 1:
        return g
    is_small = nodes <= 1 << 16 and edges <= 1 << 18
    if g.max_degree <= 32 or not is_small or not nodes <= edges < 12 * nodes:
        return g
    ordered = torch.ops.dfgnn.with_orders(tiles, g.rowptr, g.col, g.colptr)
    return _with_tiles_of(g, ordered, g.tile_nodes, g.tile_batches)


def _with_tiles_of(g: Graph, tiles: Optional[Tensor], tile_nodes: int, tile_batches: int) -> Graph:
    return Graph(
        g.rowptr, g.col, g.eid, g.colptr, g.row, g.perm, g.num_dst, g.num_src, g.max_degree,
        g.self_loops, tiles, g.tile_blocks, tile_nodes, tile_batches,
    )  # fmt: skip


def as_int(name: str, count: int) -> int:
    """A number of nodes that may be of another type which an index may be of."""
    try:
        return operator.index(count)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {count!r}") from None


def _build_eager(
    edge_index: Union[Tensor, SparseTensor],
    num_src: int,
    num_dst: int,
    self_loops: bool,
    flow: str,
) -> Graph:
    """As :func:`_build_checked`, or the structure of a batch that was computed graph by graph."""
    prepared = _cache.known(edge_index, PREPARED)
    if prepared is not None and (num_src, num_dst, flow) == prepared.fits:
        return prepared.graph(self_loops)
    return _build_checked(plain(edge_index), num_src, num_dst, self_loops, flow)
