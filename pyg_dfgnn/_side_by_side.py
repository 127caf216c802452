"""The structure of graphs side by side, from small numbers that concatenate."""

import torch
from torch import Tensor

from .graph import Graph, with_tile_data

TILE_STRIDE = 64

PERM = "dfgnn_edge_perm"  # the attribute of a graph that has a structure stored


class SideBySide:
    """Graphs in a row, each with edges among its own nodes only, sorted by destination and then by
    source. What it makes waits for nothing.

    Args:
        degrees: ``[N, 2]``, the numbers of edges that each node is the destination and the source
            of. Two bytes are read as a number without sign, here and in ``perm``.
        perm: ``[E]``, for each edge by source its place by destination, counted from its graph's
            first edge.
        ptr: ``[graphs + 1]``, the first node of each graph, then ``N``.
        tile_blocks: What method "tile" has to do, in blocks.
    """

    def __init__(self, degrees: Tensor, perm: Tensor, ptr: Tensor, tile_blocks: int) -> None:
        # Detached, so that the cache, which knows this by `perm`, does not keep that one alive.
        self.arguments = degrees.detach(), perm.detach(), ptr.detach()
        self.num_nodes, self.num_edges = degrees.size(0), perm.size(0)
        self.tile_blocks = tile_blocks
        self.graphs: dict[bool, Graph] = {}

    @property
    def fits(self) -> tuple[int, int, str]:
        """The arguments of ``build_graph`` that it answers: num_src, num_dst and flow."""
        return self.num_nodes, self.num_nodes, "source_to_target"

    def graph(self, self_loops: bool) -> Graph:
        """The same for whoever asks again."""
        if self_loops not in self.graphs:
            with torch.inference_mode(False), torch.no_grad():  # training may use it later
                self.graphs[self_loops] = self._make(self_loops)
        return self.graphs[self_loops]

    def _make(self, self_loops: bool) -> Graph:
        rowptr, col, eid, colptr, row, perm, tiles = torch.ops.dfgnn.side_by_side(
            *self.arguments, self_loops=self_loops
        )
        graph = Graph(
            rowptr, col, eid, colptr, row, perm, self.num_nodes, self.num_nodes, -1, self_loops,
            tiles, self.tile_blocks, *self._tile_sizes(col.numel()),
        )  # fmt: skip
        return with_tile_data(graph)

    def _tile_sizes(self, num_edges: int) -> tuple[int, int]:
        """Nodes and batches of the largest tile as the host can tell, from averages: where one does
        not fit, that is slower and not wrong."""
        graphs, num_nodes = max(1, self.arguments[2].numel() - 1), max(1, self.num_nodes)
        mean, degree = num_nodes / graphs, num_edges / num_nodes
        nodes = int(1.125 * mean if mean >= TILE_STRIDE else TILE_STRIDE + mean) + 1
        return nodes, int(nodes * (degree + 1) / 16 + degree) + 2

    def is_of(self, edge_index: Tensor) -> bool:
        """Whether these are its edges; waits for the device."""
        degrees = self.arguments[0]
        if tuple(edge_index.shape) != (2, self.num_edges) or edge_index.device != degrees.device:
            return False
        try:
            graph = self.graph(False)
        except RuntimeError:
            if degrees.is_cuda:  # which makes something of numbers that fit no graph
                raise
            return False
        places = torch.arange(self.num_edges, device=degrees.device)
        dst = torch.searchsorted(graph.rowptr.long(), places, right=True) - 1
        return torch.equal(torch.stack([graph.col.long(), dst]), edge_index.long())

    def edge_index(self) -> Tensor:
        """``[2, E]``, int64, sorted by destination and then by source."""
        graph = self.graph(False)
        dst = torch.repeat_interleave(graph.rowptr.diff(), output_size=self.num_edges)
        return torch.stack([graph.col, dst]).long()
