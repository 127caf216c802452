"""The graph structure that the operators read, built from what PyG calls ``edge_index``."""

from typing import NamedTuple, Union

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from . import _cache


class Graph(NamedTuple):
    """A graph, its edges compressed by destination (CSR) and by source (CSC); immutable.

    It is a pytree of tensors and integers, and an argument that scripted and compiled code takes.
    The capacity ``C`` may exceed the number of edges ``rowptr[-1]`` (self-loops that were dropped
    leave room): entries behind it are no edges.

    Attributes:
        rowptr: ``[num_dst + 1]``, where the edges of each destination begin; int32 or int64, like
            all tensors here.
        col: ``[C]``, the source of each edge.
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

    def to(self, device: Union[torch.device, str, int], non_blocking: bool = False) -> "Graph":
        """This graph with its tensors on ``device``."""
        return Graph._make(
            field.to(device, non_blocking=non_blocking) if isinstance(field, Tensor) else field
            for field in self
        )


def build_graph(
    edge_index: Union[Tensor, SparseTensor],
    num_src: int,
    num_dst: int,
    self_loops: bool = False,
    flow: str = "source_to_target",
) -> Graph:
    """The structure of a graph. Scriptable.

    Eager code converts the same ``edge_index`` object once, however often it comes. A conversion
    waits for the device once, to check the range of the nodes and to read the largest degree. Code
    that is compiled, traced or captured in a CUDA graph does not wait: ``max_degree`` is −1 there,
    and the check is an assertion on the device (RuntimeError).

    Args:
        edge_index: ``[2, E]``, the source and the destination of each edge, int32 or int64; or the
            transposed adjacency ``[num_dst, num_src]`` as a ``torch_sparse.SparseTensor``, whose
            own structure is reused.
        num_src: The number of source nodes.
        num_dst: The number of destination nodes.
        self_loops: Drop the self-loops of the graph, then add one for each node ``i < min(num_src,
            num_dst)``.
        flow: ``"target_to_source"`` swaps the rows of ``edge_index``; it takes no SparseTensor.

    Raises:
        ValueError: ``edge_index`` is of the wrong kind, dtype, shape or size.
        IndexError: ``edge_index`` holds a node that is out of range.
    """
    is_flow = flow == "source_to_target" or flow == "target_to_source"
    if not is_flow or not is_convertible(edge_index, num_src, num_dst, flow):
        raise ValueError(
            f"edge_index: expected an int32 or int64 tensor of shape [2, E] or, with "
            f"flow='source_to_target', a SparseTensor of size [{num_dst}, {num_src}], got "
            f"{describe(edge_index)} with flow='{flow}'"
        )
    if not torch.jit.is_scripting():
        if _cache.is_eager(edge_index):
            return _cache.lookup(edge_index, (num_src, num_dst, self_loops, flow), _build_checked)
        if isinstance(edge_index, EdgeIndex):
            edge_index = edge_index.as_tensor()
        graph, stats = _convert(edge_index, num_src, num_dst, self_loops, flow)
        torch._assert_async(stats[1] == 0, "edge_index: holds nodes that are out of range")
        return graph
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
        is_index = edge_index.dtype == torch.int32 or edge_index.dtype == torch.int64
        return (
            is_index
            and edge_index.dim() == 2
            and edge_index.size(0) == 2
            and not is_torch_sparse_tensor(edge_index)
        )
    return False


def describe(edge_index: Union[Tensor, SparseTensor]) -> str:
    """``edge_index`` in the words of an error message. Scriptable."""
    if isinstance(edge_index, SparseTensor):
        return f"a SparseTensor of size [{edge_index.size(0)}, {edge_index.size(1)}]"
    if isinstance(edge_index, Tensor):
        return f"a tensor of {edge_index.dtype} and shape {edge_index.shape}"
    return "neither"


def _convert(
    edge_index: Union[Tensor, SparseTensor], num_src: int, num_dst: int, self_loops: bool, flow: str
) -> tuple[Graph, Tensor]:
    """The graph without its largest degree, and [that degree, the number of bad edges]."""
    if isinstance(edge_index, SparseTensor):
        if not self_loops:
            return _convert_sparse(edge_index, num_src, num_dst)
        dst, src, _ = edge_index.coo()
    elif flow == "source_to_target":
        src, dst = edge_index[0], edge_index[1]
    else:
        src, dst = edge_index[1], edge_index[0]
    rowptr, col, eid, stats = torch.ops.dfgnn.coo_to_csr(
        src, dst, num_src, num_dst, self_loops=self_loops
    )
    colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, num_src)
    return Graph(rowptr, col, eid, colptr, row, perm, num_dst, num_src, -1, self_loops), stats


def _convert_sparse(adj_t: SparseTensor, num_src: int, num_dst: int) -> tuple[Graph, Tensor]:
    if not torch_geometric.typing.WITH_TORCH_SPARSE:  # TorchScript reads no further then
        raise ImportError("a SparseTensor needs torch_sparse")
    storage = adj_t.storage
    rowptr, col = storage.rowptr(), storage.col()
    degrees = torch.cat([rowptr.diff(), rowptr.new_zeros(1)])
    stats = torch.stack([degrees.max(), ((col < 0) | (col >= num_src)).sum()])
    fits = max(col.numel(), num_src, num_dst) < 0x7FFFFFFF
    dtype = torch.int32 if fits else torch.int64
    rowptr, col = rowptr.to(dtype), col.to(dtype)
    if storage.has_csr2csc():
        order = storage.csr2csc()
        colptr, row, perm = (
            storage.colptr().to(dtype),
            storage.row()[order].to(dtype),
            order.to(dtype),
        )
    else:
        colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, num_src)
    eid = torch.arange(col.numel(), dtype=dtype, device=col.device)
    return Graph(rowptr, col, eid, colptr, row, perm, num_dst, num_src, -1, False), stats


def _build_checked(
    edge_index: Union[Tensor, SparseTensor],
    num_src: int,
    num_dst: int,
    self_loops: bool,
    flow: str,
) -> Graph:
    """The graph with its largest degree, after the device has said that all nodes are in range."""
    g, stats = _convert(edge_index, num_src, num_dst, self_loops, flow)
    on_host = stats.cpu()
    max_degree, num_bad = int(on_host[0]), int(on_host[1])
    if num_bad > 0:
        if isinstance(edge_index, SparseTensor):
            dst, src, _ = edge_index.coo()
        else:
            src, dst = edge_index[0], edge_index[1]
            if flow == "target_to_source":
                src, dst = dst, src
        raise IndexError(
            f"edge_index: {num_bad} edges have a node that is out of range: found sources in "
            f"[{int(src.min())}, {int(src.max())}], expected [0, {num_src}), and destinations in "
            f"[{int(dst.min())}, {int(dst.max())}], expected [0, {num_dst})"
        )
    return Graph(
        g.rowptr, g.col, g.eid, g.colptr, g.row, g.perm, num_dst, num_src, max_degree, self_loops
    )
