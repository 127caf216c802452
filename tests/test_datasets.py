import pytest
import torch
from torch_geometric.utils import contains_self_loops, is_undirected

from pyg_dfgnn import datasets


@pytest.fixture(scope="module")
def pattern():
    return datasets.pattern_graphs(num_patterns=4, train=25, val=3, test=2, seed=1)


@pytest.fixture(scope="module")
def cluster():
    return datasets.cluster_graphs(train=100, val=3, test=2, seed=1)


@pytest.mark.parametrize("name", ["pattern", "cluster"])
def test_graphs_are_simple_and_undirected(name, request):
    splits = request.getfixturevalue(name)
    for graph in splits.train[:10]:
        assert is_undirected(graph.edge_index)
        assert not contains_self_loops(graph.edge_index)
        assert torch.equal(graph.x.sum(1), torch.ones(graph.num_nodes))
        assert graph.y.shape == (graph.num_nodes,)


def edge_probability(graphs, select) -> float:
    """The share of the ordered node pairs chosen by ``select(label_i, label_j)`` that are edges."""
    edges = pairs = 0
    for graph in graphs:
        chosen = select(graph.y[:, None], graph.y[None, :]).fill_diagonal_(False)
        pairs += int(chosen.sum())
        edges += int(chosen[graph.edge_index[0], graph.edge_index[1]].sum())
    return edges / pairs


def test_pattern_follows_the_recipe(pattern):
    assert [len(graphs) for graphs in pattern] == [100, 12, 8]
    graphs = pattern.train
    assert all(30 <= g.num_nodes <= 6 * 34 and 5 <= int(g.y.sum()) <= 34 for g in graphs)
    assert edge_probability(graphs, lambda i, j: (i == 1) & (j == 0)) == pytest.approx(
        0.5, abs=0.01
    )
    # Two nodes of five communities of random sizes: 0.5 inside, 0.35 across
    assert 0.36 < edge_probability(graphs, lambda i, j: (i == 0) & (j == 0)) < 0.42


def test_a_pattern_is_the_same_in_all_of_its_graphs(pattern):
    of_one_pattern = pattern.train[:25]
    planted = []
    for graph in of_one_pattern:
        nodes = graph.y.nonzero().flatten()
        inside = graph.subgraph(nodes)
        planted.append((nodes.numel(), inside.num_edges, inside.x.sum(0).tolist()))
    assert all(same == planted[0] for same in planted)


def test_cluster_follows_the_recipe(cluster):
    assert [len(graphs) for graphs in cluster] == [100, 3, 2]
    for graph in cluster.train:
        sizes = graph.y.bincount()
        assert len(sizes) == 6
        assert sizes.min() >= 5
        assert sizes.max() <= 34
        signal = graph.x.argmax(1)
        named = signal.nonzero().flatten()  # one node of each community names it
        assert torch.equal(graph.y[named].sort().values, torch.arange(6))
        assert torch.equal(signal[named], graph.y[named] + 1)
    assert edge_probability(cluster.train, lambda i, j: i == j) == pytest.approx(0.55, abs=0.01)
    assert edge_probability(cluster.train, lambda i, j: i != j) == pytest.approx(0.25, abs=0.01)


def test_seed_fixes_the_graphs():
    one, same, other = (datasets.cluster_graphs(2, 1, 1, seed).val[0] for seed in (5, 5, 6))
    assert torch.equal(one.edge_index, same.edge_index)
    assert torch.equal(one.x, same.x)
    assert one.edge_index.shape != other.edge_index.shape


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of Cora, .*'Corra'"):
        datasets.load("Corra", "nowhere")


def test_data_that_cannot_be_fetched(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torch_geometric.datasets.HeterophilousGraphDataset.download", no_network)
    with pytest.raises(FileNotFoundError, match=r"Tolokers is not under .*: no route to host"):
        datasets.load("Tolokers", str(tmp_path))
