"""The structure of graphs side by side, from small numbers that concatenate.

Nothing is sorted, and nothing waits for the device: sizes are those of tensors.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import Graph

TILE_STRIDE = 64


class SideBySide:
    """Graphs in a row, each with edges among its own nodes only.

    Args:
        degrees: ``[N, 2]``, the numbers of edges that each node is the destination and the source
            of. Two bytes are read as a number without sign, here and in ``perm``.
        perm: ``[E]``, for each edge by source its place by destination, counted from its graph's
            first edge.
        ptr: ``[graphs + 1]``, the first node of each graph, then ``N``.
        tile_blocks: What method "tile" has to do, in blocks.

    Attributes:
        rowptr, col, colptr, row, perm: As in :class:`pyg_dfgnn.Graph`, without self-loops.
        dst: ``[E]``, the destination of each edge, by destination.
        src: ``[E]``, the source of each edge, by source.
    """

    def __init__(self, degrees: Tensor, perm: Tensor, ptr: Tensor, tile_blocks: int) -> None:
        self.num_nodes, self.num_edges = degrees.size(0), perm.size(0)
        dtype = torch.int32 if self.num_nodes + self.num_edges < 0x7FFFFFFF else torch.int64
        self.nodes = torch.arange(self.num_nodes + 1, dtype=dtype, device=perm.device)
        pointers = _unsigned(degrees.t().contiguous(), dtype).cumsum(1, dtype=dtype)
        self.rowptr, self.colptr = F.pad(pointers, (1, 0))
        self.dst = self._per_edge(self.nodes[:-1], self.rowptr)
        self.src = self._per_edge(self.nodes[:-1], self.colptr)
        first_edges = self.rowptr.index_select(0, ptr)
        self.perm = _unsigned(perm, dtype) + self._per_edge(first_edges[:-1], first_edges)
        self.row = self.dst.index_select(0, self.perm)
        self.col = torch.empty_like(self.src).scatter_(0, self.perm.long(), self.src)
        self.tiles = find_tiles(ptr, self.num_nodes)
        self.tile_blocks = tile_blocks
        self.graphs: dict[bool, Graph] = {}

    @property
    def fits(self) -> tuple[int, int, str]:
        """The arguments of ``build_graph`` that it answers: num_src, num_dst and flow."""
        return self.num_nodes, self.num_nodes, "source_to_target"

    def graph(self, self_loops: bool) -> Graph:
        """The same for whoever asks again."""
        if self_loops not in self.graphs:
            rowptr, col, eid, colptr, row, perm = (
                self._with_loops() if self_loops else self._without_loops()
            )
            self.graphs[self_loops] = Graph(
                rowptr, col, eid, colptr, row, perm, self.num_nodes, self.num_nodes, -1, self_loops,
                self.tiles, self.tile_blocks,
            )  # fmt: skip
        return self.graphs[self_loops]

    def edge_index(self) -> Tensor:
        """``[2, E]``, int64, sorted by destination and then by source."""
        return torch.stack([self.col.long(), self.dst.long()])

    def _per_edge(self, values: Tensor, pointers: Tensor) -> Tensor:
        return values.repeat_interleave(pointers.diff(), output_size=self.num_edges)

    def _without_loops(self) -> tuple[Tensor, ...]:
        eid = torch.arange(self.num_edges, dtype=self.perm.dtype, device=self.perm.device)
        return self.rowptr, self.col, eid, self.colptr, self.row, self.perm

    def _with_loops(self) -> tuple[Tensor, ...]:
        nodes, eid = self.nodes[:-1], self._without_loops()[2]
        rowptr, place = self._make_room(self.rowptr, self.dst, self.col)
        colptr, place_by_source = self._make_room(self.colptr, self.src, self.row)
        loops, loops_by_source = rowptr[1:] - 1, colptr[1:] - 1
        return (
            rowptr,
            self._put(place, self.col, loops, nodes),
            self._put(place, eid, loops, nodes + self.num_edges),
            colptr,
            self._put(place_by_source, self.row, loops_by_source, nodes),
            self._put(
                place_by_source, place.index_select(0, self.perm), loops_by_source, loops
            ),
        )  # fmt: skip

    def _make_room(self, pointers: Tensor, group: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Pointers with one more entry at the end of each group, without the loops that are there,
        and the place of each edge; those that are dropped go behind the last one."""
        keep = group != other
        before = F.pad(keep.cumsum(0, dtype=pointers.dtype), (1, 0))
        moved = before.index_select(0, pointers) + self.nodes
        before = before[:-1]
        dropped = moved[-1] + torch.arange(
            self.num_edges, dtype=moved.dtype, device=moved.device
        ).sub_(before)
        return moved, torch.where(keep, before + group, dropped)

    def _put(self, place: Tensor, values: Tensor, loops: Tensor, of_loops: Tensor) -> Tensor:
        out = values.new_empty(self.num_edges + self.num_nodes)
        return out.scatter_(0, place.long(), values).scatter_(0, loops.long(), of_loops)


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


def _unsigned(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) & 0xFFFF if t.dtype == torch.int16 else t.to(dtype)
