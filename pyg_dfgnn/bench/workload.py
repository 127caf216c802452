"""A graph to measure on, in the forms that the backends take."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from ..graph import Graph, convert_csr, with_numbers, with_tile_data


@dataclass
class Workload:
    """A graph, its edges compressed by destination and by source.

    Attributes:
        graph: What a layer knows of it.
        masks: What method tile reads, see ``find_tiles`` and ``with_masks``, whether "auto" would
            choose it or not.
        ptr: For a batch, where its graphs begin, and the end: int64 ``[graphs + 1]``.
        is_real: The data itself; else a stand-in with its statistics.
    """

    name: str
    graph: Graph
    masks: Tensor
    ptr: Tensor | None = None
    is_real: bool = False

    @classmethod
    def of_csr(cls, name: str, rowptr: Tensor, col: Tensor, ptr: Tensor | None) -> "Workload":
        nodes = rowptr.numel() - 1
        graph, _ = with_numbers(*convert_csr(rowptr, col, nodes, nodes))
        if graph.tiles is None:  # on the CPU, which has no use for masks
            masks, _ = torch.ops.dfgnn.find_tiles(rowptr, col)
        else:
            masks = torch.ops.dfgnn.with_masks(graph.tiles, rowptr, col, graph.colptr, graph.row)
        return cls(name, with_tile_data(graph), masks, ptr)

    @classmethod
    def of_edges(
        cls, name: str, edge_index: Tensor, num_nodes: int, sizes: Tensor | None = None
    ) -> "Workload":
        """Of ``edge_index [2, E]`` in any order and, for a batch, the nodes of each graph."""
        key = (edge_index[1] * num_nodes + edge_index[0]).sort().values
        src, dst = (key % num_nodes).int(), (key // num_nodes).int()
        rowptr, col, _, _ = torch.ops.dfgnn.coo_to_csr(src, dst, num_nodes, num_nodes)
        ptr = None if sizes is None else torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        return cls.of_csr(name, rowptr, col, ptr)

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    @property
    def rowptr(self) -> Tensor:
        """Of the CSR by destination, like ``col``."""
        return self.graph.rowptr

    @property
    def col(self) -> Tensor:
        return self.graph.col

    @property
    def csc(self) -> dict[str, Tensor]:
        """The same edges by source."""
        return {name: getattr(self.graph, name) for name in ("colptr", "row", "perm")}

    @property
    def max_degree(self) -> int:
        return self.graph.max_degree

    @property
    def device(self) -> str:
        return self.col.device.type

    def edge_index(self) -> Tensor:
        """``[2, E]`` int64, sorted by destination."""
        nodes = torch.arange(self.num_nodes, device=self.col.device)
        return torch.stack([self.col.long(), nodes.repeat_interleave(self.rowptr.diff())])

    def statistics(self) -> dict[str, int | str]:
        """What a row of results says of the graph."""
        return {
            "graph": "real" if self.is_real else "stand-in",
            "nodes": self.num_nodes,
            "edges": self.num_edges,
            "max_degree": self.max_degree,
        }

    def shuffled(self, seed: int = 0) -> "Workload":
        """The same graph, its nodes numbered at random; it is no batch then."""
        rng = torch.Generator(self.device).manual_seed(seed)
        number = torch.randperm(self.num_nodes, generator=rng, device=self.col.device)
        return self.renumbered(number)

    def renumbered(self, number: Tensor) -> "Workload":
        """The same graph, node ``i`` as ``number[i]``."""
        made = Workload.of_edges(self.name, number[self.edge_index()], self.num_nodes)
        made.is_real = self.is_real
        return made

    def graphs(self) -> list[Data]:
        """The graphs of the batch on the CPU, without attributes; edges sorted by source."""
        if self.ptr is None:
            raise ValueError(f"{self.name}: expected a batch of graphs, got a single one")
        rowptr, col = self.rowptr.cpu().long(), self.col.cpu().long()
        graphs = []
        for begin, end in pairwise(self.ptr.tolist()):
            nodes = end - begin
            dst = torch.arange(nodes).repeat_interleave(rowptr[begin : end + 1].diff())
            src = col[rowptr[begin] : rowptr[end]] - begin
            order = (src * nodes + dst).argsort()
            graphs.append(Data(edge_index=torch.stack([src[order], dst[order]]), num_nodes=nodes))
        return graphs


def join(name: str, graphs: list[Data], device: str) -> Workload:
    """The batch of these graphs."""
    edges = [Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes) for graph in graphs]
    batch = Batch.from_data_list(edges)
    sizes = batch.ptr.diff().to(device)
    return Workload.of_edges(name, batch.edge_index.to(device), batch.num_nodes, sizes)
