"""The structure of graphs side by side, from small numbers that concatenate."""

import torch
from torch import Tensor

from .graph import Graph

TILE_STRIDE = 64


class SideBySide:
    """Graphs in a row, each with edges among its own nodes only; never waits for the device.

    Args:
        degree: ``[N]``, the number of edges of each destination.
        source: ``[E]``, the source of each edge, by destination; counted from its graph's first
            node.
        ptr: ``[graphs + 1]``, the first node of each graph, then ``N``.
        tile_blocks: What method "tile" has to do, in blocks.
    """

    def __init__(self, degree: Tensor, source: Tensor, ptr: Tensor, tile_blocks: int) -> None:
        nodes, edges = degree.size(0), source.size(0)
        dtype = torch.int32 if nodes + edges < 0x7FFFFFFF else torch.int64
        self.rowptr = torch.nn.functional.pad(degree.cumsum(0, dtype=dtype), (1, 0))
        ptr = ptr.to(dtype)
        first = ptr[:-1].repeat_interleave(ptr.diff(), output_size=nodes)
        self.row = torch.arange(nodes, dtype=dtype, device=degree.device).repeat_interleave(
            self.rowptr.diff(), output_size=edges
        )
        self.col = source.to(dtype) + first.index_select(0, self.row)
        self.tiles = find_tiles(ptr, nodes)
        self.tile_blocks = tile_blocks
        self.graphs: dict[bool, Graph] = {}

    @property
    def num_nodes(self) -> int:
        return self.rowptr.size(0) - 1

    @property
    def fits(self) -> tuple[int, int, str]:
        """The arguments of ``build_graph`` that it answers: num_src, num_dst and flow."""
        return self.num_nodes, self.num_nodes, "source_to_target"

    def graph(self, self_loops: bool) -> Graph:
        """The same for whoever asks again."""
        if self_loops not in self.graphs:
            self.graphs[self_loops] = self._build(self_loops)
        return self.graphs[self_loops]

    def _build(self, self_loops: bool) -> Graph:
        nodes = self.num_nodes
        if self_loops:
            rowptr, col, eid, _ = torch.ops.dfgnn.coo_to_csr(
                self.col, self.row, nodes, nodes, self_loops=True
            )
        else:
            rowptr, col = self.rowptr, self.col
            eid = torch.arange(col.size(0), dtype=col.dtype, device=col.device)
        colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, nodes)
        return Graph(
            rowptr, col, eid, colptr, row, perm, nodes, nodes, -1, self_loops,
            self.tiles, self.tile_blocks,
        )  # fmt: skip

    def edge_index(self) -> Tensor:
        """``[2, E]``, int64, sorted by destination and then by source."""
        return torch.stack([self.col.long(), self.row.long()])


def find_tiles(ptr: Tensor, num_nodes: int) -> Tensor:
    """As ``dfgnn::find_tiles``, with graphs for what may not be cut.

    Args:
        ptr: ``[graphs + 1]``, the first node of each graph, then ``num_nodes``.
        num_nodes: The number of nodes, which is not to be read from the device.

    Returns:
        int32 ``[ceil(num_nodes / 64) + 1]``.
    """
    strides = -(-num_nodes // TILE_STRIDE)
    starts = torch.arange(strides + 1, dtype=ptr.dtype, device=ptr.device) * TILE_STRIDE
    return ptr.index_select(0, torch.searchsorted(ptr, starts.clamp(max=num_nodes))).int()
