"""The structure of graphs side by side, from small numbers that concatenate."""

import torch
from torch import Tensor

from .graph import Graph, may_be_sparse, with_list, with_masks

TILE_STRIDE = 64


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
            rowptr, col, eid, colptr, row, perm, tiles = torch.ops.dfgnn.side_by_side(
                *self.arguments, self_loops=self_loops
            )
            graph = Graph(
                rowptr, col, eid, colptr, row, perm, self.num_nodes, self.num_nodes, -1, self_loops,
                tiles, self.tile_blocks,
            )  # fmt: skip
            graph = with_masks(graph)
            if tiles.is_cuda and may_be_sparse(graph):
                graph = self._with_list(graph)
            self.graphs[self_loops] = graph
        return self.graphs[self_loops]

    def _with_list(self, graph: Graph) -> Graph:
        """With the sizes of tiles as the host can tell, from averages: where one does not fit,
        that is slower and not wrong."""
        graphs = self.arguments[2].numel() - 1
        mean, degree = self.num_nodes / graphs, graph.col.numel() / self.num_nodes
        nodes = int(1.125 * mean if mean >= TILE_STRIDE else TILE_STRIDE + mean) + 1
        return with_list(graph, nodes, int(nodes * (degree + 2) / 32 + degree / 2) + 2)

    def edge_index(self) -> Tensor:
        """``[2, E]``, int64, sorted by destination and then by source."""
        graph = self.graph(False)
        dst = torch.repeat_interleave(graph.rowptr.diff(), output_size=self.num_edges)
        return torch.stack([graph.col, dst]).long()
