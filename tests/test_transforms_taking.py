"""PrecomputeGraph beside what takes some of the edges, adds others or renumbers nodes."""

import pickle

import pytest
import torch
from layers import make
from torch_geometric import transforms
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.loader import NeighborLoader
from torch_geometric.transforms import AddSelfLoops

import pyg_dfgnn
from pyg_dfgnn import build_graph
from pyg_dfgnn.reorder import ReorderNodes
from pyg_dfgnn.transforms import STRUCTURE, PrecomputedData, PrecomputeGraph


def plain_graph(nodes=60, edges=300):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=torch.randn(nodes, 8, generator=generator), edge_index=edge_index)


def without_first_edges(data):
    data["edge_index"] = data["edge_index"][:, 100:]
    return data


TAKING = {
    "neighbors": lambda data: next(iter(NeighborLoader(data, [3, 3], batch_size=20))),
    "all_neighbors": lambda data: next(iter(NeighborLoader(data, [-1], batch_size=60))),
    "self_loops": AddSelfLoops(),
    "reordered": ReorderNodes("degree"),
    "subgraph": lambda data: data.subgraph(torch.arange(30)),
    "edge_subgraph": lambda data: data.edge_subgraph(torch.arange(100)),
    "by_hand": without_first_edges,
}


@pytest.mark.parametrize("name", TAKING)
def test_some_of_the_edges(name, device):
    """What takes edges without knowing the structure gives a batch of these edges."""
    if "neighbors" in name:
        pytest.importorskip("torch_sparse")
    stored = PrecomputeGraph(remove_edge_index=False)(plain_graph())
    conv = make(pyg_dfgnn.nn, "TransformerConv")
    batch = Batch.from_data_list([stored, stored])
    assert build_graph(batch.edge_index, 120, 120) is batch.graph()
    taken, conv = TAKING[name](stored).to(device), conv.to(device)
    edge_index = taken.edge_index
    torch.testing.assert_close(conv(taken.x, edge_index), conv(taken.x, edge_index.clone()))


def timed_graph():
    data = plain_graph()
    generator = torch.Generator().manual_seed(1)
    data.time = torch.randperm(data.num_edges, generator=generator)
    data.edge_attr = torch.randn(data.num_edges, 4, generator=generator)
    return data


CHANGING = {
    "coalesce": lambda data: data.coalesce(),
    "sort": lambda data: data.sort(),
    "sort_by_destination": lambda data: data.sort(sort_by_row=False),
    "snapshot": lambda data: data.snapshot(100, 200),
    "up_to": lambda data: data.up_to(100),
    "sort_by_time": lambda data: data.sort_by_time(),
    "subgraph": lambda data: data.subgraph(torch.arange(30)),
    "edge_subgraph": lambda data: data.edge_subgraph(data.time < 100),
    "concat": lambda data: data.concat(timed_graph()),
    "concat_alike": lambda data: data.concat(data),
    "clone": lambda data: data.clone(),
}


def check_edges(found, expected):
    """The same edges in the same order, and no structure of others."""
    assert torch.equal(found.edge_index, expected.edge_index)
    assert found.num_edges == expected.num_edges
    assert found.num_nodes == expected.num_nodes
    for name in ("edge_attr", "edge_weight", "time"):
        torch.testing.assert_close(found.get(name), expected.get(name))
    if isinstance(found, PrecomputedData) and found.edge_index is not None:
        nodes = found.num_nodes
        try:
            graph = found.graph()
        except AttributeError:
            return
        anew = build_graph(found.edge_index.clone(), nodes, nodes)
        assert torch.equal(graph.rowptr, anew.rowptr)
        assert torch.equal(graph.col, anew.col)


def as_sorted(stored):
    """The graph as it was before, with its edges in the order of what is stored."""
    names = [name for name in stored.to_dict() if name not in (*STRUCTURE, "num_nodes")]
    return Data.from_dict({name: stored[name] for name in {*names, "edge_index"}})


@pytest.mark.parametrize("remove_edge_index", [True, False])
@pytest.mark.parametrize("name", CHANGING)
def test_other_edges(name, remove_edge_index):
    """Data's methods that give other edges do so of what was precomputed, and leave it as it is."""
    stored = PrecomputeGraph(remove_edge_index=remove_edge_index)(timed_graph())
    for _ in range(2):
        check_edges(CHANGING[name](stored), CHANGING[name](as_sorted(stored)))
    assert build_graph(stored.edge_index, 60, 60) is stored.graph()


QUESTIONS = ["is_coalesced", "is_sorted", "is_undirected", "is_directed"]
QUESTIONS += ["has_self_loops", "has_isolated_nodes"]


@pytest.mark.parametrize("remove_edge_index", [True, False])
@pytest.mark.parametrize(
    "edges",
    [[[0, 1], [1, 0]], [[1, 1, 0], [0, 0, 1]], [[0, 1, 2], [1, 1, 0]], [[0, 1, 2], [0, 1, 2]]],
)
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name, edges, remove_edge_index):
    data = Data(edge_index=torch.tensor(edges), num_nodes=3)
    stored = PrecomputeGraph(remove_edge_index=remove_edge_index)(data)
    plain = Data(edge_index=stored.edge_index, num_nodes=3)
    assert getattr(stored, name)() == getattr(plain, name)()


LATER = {
    "undirected": transforms.ToUndirected(),
    "self_loops": AddSelfLoops("edge_attr"),
    "no_self_loops": transforms.RemoveSelfLoops("edge_attr"),
    "coalesced": transforms.RemoveDuplicatedEdges("edge_attr"),
    "no_isolated_nodes": transforms.RemoveIsolatedNodes(),
    "largest_component": transforms.LargestConnectedComponents(),
    "virtual_node": transforms.VirtualNode(),
    "two_hop": transforms.TwoHop(),
    "normalized": transforms.GCNNorm(add_self_loops=False),
}


@pytest.mark.parametrize("remove_edge_index", [True, False])
@pytest.mark.parametrize("name", LATER)
def test_later_transforms(name, remove_edge_index):
    """A transform that sets other edges does so of what was precomputed, too."""
    torch.manual_seed(0)
    data = Data(torch.randn(9, 4), torch.randint(8, (2, 20)), edge_attr=torch.rand(20))
    stored = PrecomputeGraph(remove_edge_index=remove_edge_index)(data)
    expected, found = LATER[name](as_sorted(stored)), LATER[name](stored)
    check_edges(found, expected)
    assert torch.equal(found.x, expected.x)
    check_edges(*(Batch.from_data_list([data, data]) for data in (found, expected)))


def test_random_link_split():
    """What cuts edges by the keys works on edges that are stored, and fails on others."""
    split = transforms.RandomLinkSplit(num_val=0.1, num_test=0.1)
    torch.manual_seed(0)
    stored = PrecomputeGraph(remove_edge_index=False)(timed_graph())
    for part in split(stored):
        check_edges(part, as_sorted(part))
    with pytest.raises(AttributeError, match="edge_index"):
        split(PrecomputeGraph()(timed_graph()))


def test_to_sparse_tensor():
    transform = transforms.ToSparseTensor(layout=torch.sparse_csr)
    taken = transform(PrecomputeGraph()(plain_graph()))
    assert taken.edge_index is None
    assert torch.equal(taken.adj_t.to_dense(), transform(plain_graph()).adj_t.to_dense())


def test_edge_index_that_is_deleted():
    stored = PrecomputeGraph()(plain_graph())
    assert "edge_index" in stored
    assert stored.get("edge_index") is not None
    assert stored.get("edge_weight", 3) == 3
    assert "edge_index" not in {*stored.keys()}
    del stored.edge_index
    assert "edge_index" not in stored
    assert stored.edge_index is None


@pytest.mark.parametrize("remove_edge_index", [True, False])
def test_edges_set_by_name(remove_edge_index):
    stored = PrecomputeGraph(remove_edge_index=remove_edge_index)(plain_graph())
    other = PrecomputeGraph()(plain_graph(edges=100))
    check_edges(stored.clone().update(other), as_sorted(other))
    flipped = stored.edge_index.flip(0)
    stored["edge_index"] = flipped
    assert stored.edge_index is flipped
    with pytest.raises(AttributeError, match="edge_index was set"):
        stored.graph()
    stored["edge_index"] = None
    assert stored.edge_index is None


def test_other_edges_by_name():
    """The number of edges is that of the structure, whatever else has such a name."""
    data = plain_graph()
    data.edge_label, data.edge_label_index = torch.ones(7), torch.zeros(2, 7)
    stored = PrecomputeGraph()(data)
    assert stored.num_edges == 300
    assert Batch.from_data_list([stored, stored]).num_edges == 600
    assert stored.is_edge_attr("dfgnn_edge_perm")
    assert PrecomputeGraph()(stored).edge_label.shape == (7,)


def test_saved_by_older_versions():
    """Storage was PyG's once."""
    stored = PrecomputeGraph()(plain_graph())
    object.__setattr__(stored._store, "__class__", GlobalStorage)
    read = pickle.loads(pickle.dumps(stored))
    assert "edge_index" in read
    assert read.has_self_loops() == plain_graph().has_self_loops()


def test_graphs_without_borders():
    """Datasets keep graphs one after the other, which have no edge_index."""
    graphs = [PrecomputeGraph()(plain_graph()) for _ in range(2)]
    whole, _ = InMemoryDataset.collate(graphs)
    assert "edge_index" not in whole
    with pytest.raises(KeyError):
        whole["edge_index"]


def test_to_heterogeneous():
    data, kind = timed_graph(), torch.arange(60) % 2
    names = [("a", "to", "a"), ("a", "to", "b"), ("b", "to", "a"), ("b", "to", "b")]

    def split(graph):
        of_edges = kind[graph.edge_index[0]] * 2 + kind[graph.edge_index[1]]
        return graph.to_heterogeneous(kind, of_edges, ["a", "b"], names)

    expected, found = split(data), split(PrecomputeGraph()(data.clone()))
    for name in names:
        assert {*found[name].keys()} == {*expected[name].keys()}
        of_edges = [graph[name].edge_index.T.tolist() for graph in (expected, found)]
        assert sorted(of_edges[0]) == sorted(of_edges[1])
