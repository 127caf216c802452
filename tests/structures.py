"""What is in a Graph, as lists of edges."""

import torch
from torch import Tensor

from pyg_dfgnn import Graph, build_graph
from pyg_dfgnn.transforms import PrecomputedData


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
    return sorted(edges, key=lambda edge: (edge[1], edge[2] >= edge_index.size(1), edge[0]))


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


def check_prepared(batch: PrecomputedData, self_loops: bool) -> None:
    """What build_graph makes of the edges, without what it would have to wait for."""
    nodes = batch.num_nodes
    found, edge_index = batch.graph(self_loops), batch.edge_index
    expected = build_graph(edge_index.clone(), nodes, nodes, self_loops)
    torch.testing.assert_close(found.rowptr, expected.rowptr, rtol=0, atol=0)
    torch.testing.assert_close(found.colptr, expected.colptr, rtol=0, atol=0)
    count = int(found.rowptr[-1])
    for name in ("col", "eid"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours[:count], theirs[:count], rtol=0, atol=0)
    for ours, theirs in zip(by_source(found), by_source(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert found[6:10] == (nodes, nodes, -1, self_loops)
    assert build_graph(edge_index, nodes, nodes, self_loops) is found
    check_tiles(found)


def by_source(graph: Graph) -> tuple[Tensor, Tensor]:
    """row and perm, the entries of each source in the order of perm."""
    count = int(graph.colptr[-1])
    src = torch.arange(graph.num_src, device=graph.col.device).repeat_interleave(
        graph.colptr.diff()
    )
    order = (src * graph.col.size(0) + graph.perm[:count]).argsort()
    return graph.row[order], graph.perm[order]


def check_tiles(graph: Graph) -> None:
    """No edge leaves a tile; they begin where find_tiles has them begin, or later."""
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    found = graph.tiles[: tiles.numel()]
    assert found.dtype == tiles.dtype
    assert (found >= tiles).all()
    assert found[-1] == graph.num_dst
    check_masks(graph, found)
    dst = torch.arange(graph.num_dst, device=graph.col.device).repeat_interleave(
        graph.rowptr.diff()
    )
    src = graph.col[: dst.numel()]
    tiles = found.long()
    assert torch.equal(*(torch.searchsorted(tiles, ends.long(), right=True) for ends in (src, dst)))


def has_orders(graph: Graph) -> bool:
    """Whether rows and columns by their numbers of edges are behind its tiles."""
    return graph.tiles.numel() == -(-graph.num_dst // 64) + 1 + 6 * graph.num_dst > 1


def check_masks(graph: Graph, tiles: Tensor) -> None:
    """What is behind the tiles, if anything: orders, or masks, and the list of tiles."""
    end = tiles.numel()
    if has_orders(graph):
        expected = torch.ops.dfgnn.with_orders(tiles, graph.rowptr, graph.col, graph.colptr)
        assert torch.equal(graph.tiles, expected)
        return
    if graph.tiles.numel() > 2 * end:
        forms = graph.rowptr, graph.col, graph.colptr, graph.row
        expected = torch.ops.dfgnn.with_masks(tiles, *forms)
        assert torch.equal(graph.tiles[: expected.numel()], expected)
        end = expected.numel()
    assert (graph.tiles.numel() > end) == (graph.tile_nodes >= 0)
    if graph.tile_nodes >= 0:
        boundaries = sorted(set(tiles.tolist()))
        boundaries += [graph.num_dst] * (tiles.numel() - len(boundaries))
        assert graph.tiles[end:].tolist() == boundaries
