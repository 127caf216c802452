"""What is in a Graph, as lists of edges."""

import torch

from pyg_dfgnn import Graph


def edges_of(graph: Graph) -> list[tuple[int, int, int]]:
    """(source, destination, position in edge_index) of every edge, by destination."""
    count = int(graph.rowptr[-1])
    dst = torch.arange(graph.num_dst, device=graph.rowptr.device).repeat_interleave(
        graph.rowptr.diff()
    )
    columns = (graph.col[:count], dst, graph.eid[:count])
    return [tuple(edge) for edge in torch.stack([c.long() for c in columns], 1).tolist()]


def expected_edges(edge_index, num_src, num_dst, self_loops):
    edges = [(s, d, e) for e, (s, d) in enumerate(edge_index.t().tolist())]
    if self_loops:
        edges = [edge for edge in edges if edge[0] != edge[1]]
        edges += [(i, i, edge_index.size(1) + i) for i in range(min(num_src, num_dst))]
    return sorted(edges, key=lambda edge: edge[1])


def check_by_source(graph: Graph) -> None:
    """colptr, row and perm are the same edges, by source."""
    edges = edges_of(graph)
    count = len(edges)
    src = torch.arange(graph.num_src, device=graph.colptr.device).repeat_interleave(
        graph.colptr.diff()
    )
    perm = graph.perm[:count].tolist()
    assert sorted(perm) == list(range(count))
    for s, d, position in zip(src.tolist(), graph.row[:count].tolist(), perm, strict=True):
        assert (s, d) == edges[position][:2]
