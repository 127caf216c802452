"""PrecomputeGraph: data that travels, is copied, changed, kept and refused."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from precomputed import edges_of, graph_of, graphs_of, prepare
from structures import check_prepared
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import AddSelfLoops

import pyg_dfgnn
from pyg_dfgnn import build_graph
from pyg_dfgnn.loader import DeviceDataset
from pyg_dfgnn.transforms import GRAPH, WORK, PrecomputedData, PrecomputeGraph


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "loops"])
def test_loader(kind, workers, device):
    loader = DataLoader(
        prepare(kind), batch_size=5, num_workers=workers, pin_memory=device == "cuda"
    )
    graphs = graphs_of(kind)
    for i, batch in enumerate(loader):
        batch = batch.to(device, non_blocking=True)
        assert isinstance(batch, PrecomputedData)
        check_prepared(batch, True)
        assert edges_of(batch) == edges_of(Batch.from_data_list(graphs[5 * i : 5 * i + 5]))


def test_to_data_list(device):
    prepared = prepare("shuffled")
    for batch in (Batch.from_data_list(prepared), Batch.from_data_list(prepared).to(device)):
        for found, data in zip(batch.to_data_list(), prepared, strict=True):
            assert type(found) is PrecomputedData
            assert edges_of(found) == edges_of(data)
            check_prepared(found, False)
    again = Batch.from_data_list(batch.to_data_list())
    assert torch.equal(again.edge_index, batch.edge_index)


def test_moving_makes_another(device):
    batch = Batch.from_data_list(prepare())
    edge_index = batch.edge_index
    moved = copy.copy(batch).to(device)
    assert moved.edge_index.device.type == device
    check_prepared(moved, False)
    assert batch.edge_index is edge_index


def test_copies_and_pickles():
    batch = Batch.from_data_list(prepare())
    batch.graph()
    for twin in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), copy.copy(batch)):
        assert torch.equal(twin.edge_index, batch.edge_index)
        check_prepared(twin, False)


class Dataset(InMemoryDataset):
    @property
    def processed_file_names(self):
        return ["data.pt"]

    def process(self):
        self.save(
            [self.pre_transform(data) for data in graphs_of("loops")], self.processed_paths[0]
        )

    def __init__(self, root: str) -> None:
        super().__init__(root, pre_transform=PrecomputeGraph())
        self.load(self.processed_paths[0], PrecomputedData)


def test_dataset(tmp_path):
    dataset = Dataset(str(tmp_path))
    for found, data in zip(dataset, graphs_of("loops"), strict=True):
        assert type(found) is PrecomputedData
        assert edges_of(found) == edges_of(data)
    check_prepared(Batch.from_data_list(list(dataset)), False)


def test_nothing_is_kept_alive():
    batch = Batch.from_data_list(prepare())
    before = len(pyg_dfgnn._cache._entries)
    made = [batch.edge_index, batch.graph().col, batch.graph(True).col, batch.dfgnn_edge_perm]
    watched = [weakref.ref(t) for t in made]
    assert len(pyg_dfgnn._cache._entries) > before
    del made, batch
    gc.collect()
    assert all(ref() is None for ref in watched)
    assert len(pyg_dfgnn._cache._entries) <= before


def test_the_transform_keeps_nothing():
    gc.collect()
    before = len(pyg_dfgnn._cache._entries)
    graphs = [graph_of(20, 0.3, "shuffled", seed) for seed in range(3)]
    transforms = [PrecomputeGraph(remove_edge_index=removed) for removed in (False, True)]
    prepared = [transform(g.clone()) for g in graphs for transform in transforms]
    assert len(pyg_dfgnn._cache._entries) == before
    assert len(prepared) == 6


def test_lists_where_there_are_as_many_nodes_as_edges():
    names = ["a", "b", "c"]
    data = PrecomputeGraph()(
        Data(
            x=torch.arange(3.0).unsqueeze(1),
            edge_index=torch.tensor([[0, 1, 2], [2, 0, 1]]),
            node_names=list(names),
            edge_names=list(names),
        )
    )
    assert data.edge_index[1].tolist() == [0, 1, 2]
    assert data.node_names == names
    assert data.edge_names == ["b", "c", "a"]


def test_another_edge_index_drops_the_structure():
    batch = Batch.from_data_list(prepare())
    batch.edge_index = torch.tensor([[0], [1]])
    assert build_graph(batch.edge_index, batch.num_nodes, batch.num_nodes).col.tolist() == [0]
    with pytest.raises(AttributeError, match="apply it again"):
        batch.graph()


@pytest.mark.parametrize("remove_edge_index", [True, False])
def test_a_change_in_place_is_not_of_the_structure(remove_edge_index):
    batch = Batch.from_data_list(prepare(remove_edge_index=remove_edge_index))
    before = batch.graph()
    edge_index = batch.edge_index
    assert batch.graph() is before
    edge_index[0] = 1
    assert (build_graph(edge_index, batch.num_nodes, batch.num_nodes).col == 1).all()
    with pytest.raises(AttributeError, match="apply it again"):
        batch.graph()


class OwnData(PrecomputedData):
    def __inc__(self, key, value, *args):
        return 7 if key == "mine" else super().__inc__(key, value, *args)


OF_NODES = {
    "x": lambda nodes: {"x": torch.ones(nodes, 2)},
    "a number": lambda nodes: {"num_nodes": nodes},
    "a tensor": lambda nodes: {"num_nodes": torch.tensor([nodes])},
    "both": lambda nodes: {"x": torch.ones(nodes, 2), "num_nodes": nodes},
    "a list": lambda nodes: {"x": [[1.0]] * nodes, "num_nodes": nodes},
    "a few": lambda nodes: {"n_id": torch.tensor([7]), "num_nodes": nodes},
    "edges": lambda nodes: {},
}


def set_by_attribute(data, edge_index):
    data.edge_index = edge_index


def set_by_key(data, edge_index):
    data["edge_index"] = edge_index


@pytest.mark.parametrize("remove_edge_index", [False, True])
@pytest.mark.parametrize("set_edges", [set_by_attribute, set_by_key])
@pytest.mark.parametrize("kind", OF_NODES)
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_number_of_nodes(kind, set_edges, remove_edge_index):
    """As it would be without the transform, before and after nodes and edges are others."""
    edge_index = torch.tensor([[0, 4], [1, 0]])
    plain = Data(edge_index=edge_index, **OF_NODES[kind](6 if kind != "edges" else 5))
    data = PrecomputeGraph(remove_edge_index=remove_edge_index)(plain.clone())
    assert data.num_nodes == plain.num_nodes
    assert "num_nodes" not in data or kind not in ("x", "edges")
    for graph in (plain, data):
        set_edges(graph, torch.tensor([[0, 5, 1], [7, 0, 2]]))
        if "x" in graph:
            graph.x = torch.ones(8, 2)
    assert data.num_nodes == plain.num_nodes
    assert data.num_edges == plain.num_edges == 3
    expected, found = (Batch.from_data_list([graph, graph]) for graph in (plain, data))
    assert torch.equal(found.edge_index, expected.edge_index)
    assert torch.equal(found.batch, expected.batch)


def test_number_of_edges():
    """That of edge_index, as PyG's transforms ask for it before they set attributes of edges."""
    edge_index = torch.tensor([[0, 1], [1, 2]])
    plain = Data(x=torch.ones(3, 1), edge_index=edge_index, edge_attr=torch.rand(2, 1))
    data = AddSelfLoops("edge_attr")(PrecomputeGraph()(plain.clone()))
    assert data.num_edges == data.edge_attr.size(0) == 5
    data = AddSelfLoops()(PrecomputeGraph()(plain))  # which leaves attributes as they are
    assert data.num_edges == 5


@pytest.mark.parametrize("remove_edge_index", [False, True])
@pytest.mark.parametrize("set_edges", [set_by_attribute, set_by_key, None])
def test_graphs_of_a_batch_with_other_edges(set_edges, remove_edge_index):
    transform = PrecomputeGraph(remove_edge_index=remove_edge_index)
    found = Batch.from_data_list([transform(data) for data in graphs_of("plain")])
    plain = [Data(x=d.x, edge_index=d.edge_index) for d in found.clone().to_data_list()]
    batches = [found, Batch.from_data_list(plain)]
    for i, batch in enumerate(batches):
        if set_edges is None:
            batches[i] = batch.sort()
        else:
            set_edges(batch, batch.edge_index.flip(0))
    for a, b in zip(*(batch.to_data_list() for batch in batches), strict=True):
        assert torch.equal(a.edge_index, b.edge_index)


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("set_edges", [set_by_attribute, set_by_key])
def test_some_graphs_with_other_edges(set_edges, changed):
    """The first one says what a batch has: its edge_index, which all have, or the structure."""
    graphs = prepare()[:2]
    set_edges(graphs[changed], torch.tensor([[0], [1]]))
    if changed == 0:
        batch = Batch.from_data_list(graphs)  # layers convert its edges
        plain = [Data(x=graph.x, edge_index=graph.edge_index) for graph in graphs]
        assert torch.equal(batch.edge_index, Batch.from_data_list(plain).edge_index)
        with pytest.raises(AttributeError, match="apply it again"):
            batch.graph()
    else:
        with pytest.raises(
            (KeyError, ValueError), match="after PrecomputeGraph, of some graphs of a batch"
        ):
            _ = Batch.from_data_list(graphs).edge_index


def test_attributes_of_batches():
    """Are those of any batch."""
    graphs, expected = prepare(), Batch.from_data_list(graphs_of("plain"))
    loader = DataLoader(graphs, batch_size=len(graphs))
    for batch in (
        Batch.from_data_list(graphs),
        next(iter(loader)),
        DeviceDataset(graphs, "cpu").batch(range(len(graphs))),
    ):
        assert torch.equal(batch.ptr, expected.ptr)
        assert torch.equal(batch.batch, expected.batch)
        assert batch.num_graphs == expected.num_graphs
    assert not hasattr(graphs[0], "ptr")


@pytest.mark.parametrize("batched", [False, True])
def test_saved_without_a_number_of_graphs(batched):
    """As it was once."""
    graphs = prepare()
    expected = [edges_of(graph) for graph in graphs]
    for graph in graphs:
        graph._store._mapping[WORK] = graph[WORK][GRAPH:]
    if batched:
        assert edges_of(Batch.from_data_list(graphs)) == edges_of(Batch.from_data_list(prepare()))
    else:
        assert [edges_of(graph) for graph in graphs] == expected


def test_own_number_of_edges():
    data = PrecomputeGraph()(Data(num_edges=3, **graph_of(20, 0.3, "shuffled", 0).to_dict()))
    assert data.num_edges == 3


@pytest.mark.parametrize("remove_edge_index", [False, True])
def test_functions_of_edge_index(remove_edge_index):
    data = PrecomputeGraph(remove_edge_index=remove_edge_index)(graph_of(20, 0.3, "shuffled", 0))
    expected = data.edge_index.flip(0)
    data.apply(lambda t: t.flip(0), "edge_index")
    assert torch.equal(data.edge_index, expected)
    with pytest.raises(AttributeError, match="apply it again"):
        data.graph()
    data = PrecomputeGraph(remove_edge_index=remove_edge_index)(graph_of(20, 0.3, "shuffled", 0))
    data.apply(lambda t: t, "edge_index")
    assert build_graph(data.edge_index, 20, 20) is data.graph()


def test_structure_of_other_edges():
    """As GraphSAINT's samplers make, which cut what has a row for each node, or each edge."""
    whole = PrecomputeGraph()(graph_of(40, 0.3, "shuffled", 0))
    inside = whole.edge_index.max(0).values < 20
    part = whole.__class__(edge_index=whole.edge_index[:, inside], num_nodes=20)
    for name, value in whole.to_dict().items():
        rows = {40: slice(20), whole.num_edges: inside}.get(len(value), slice(None))
        part[name] = value[rows]
    assert torch.equal(part.edge_index, whole.edge_index[:, inside])
    with pytest.raises(AttributeError, match="apply it again"):
        part.graph()


def test_attribute_named_ptr():
    """Of a graph that was a batch: it says nothing of the whole's structure."""
    merged = Data.from_dict(Batch.from_data_list(graphs_of("plain")).to_dict())
    expected = edges_of(merged)
    data = PrecomputeGraph()(merged)
    assert edges_of(data) == expected
    check_prepared(data, False)


def test_own_class():
    graphs = [OwnData(**data.to_dict(), mine=torch.tensor([1])) for data in graphs_of("plain")]
    batch = Batch.from_data_list([PrecomputeGraph()(data) for data in graphs])
    assert isinstance(batch, OwnData)
    assert batch.mine.tolist() == [1 + 7 * i for i in range(len(graphs))]
    check_prepared(batch, True)


def test_applied_twice():
    once = PrecomputeGraph(torch.int32)(graph_of(50, 0.3, "shuffled", 0))
    twice = PrecomputeGraph()(once)
    assert edges_of(twice) == edges_of(once)
    assert twice.dfgnn_edge_perm.dtype == torch.int16


# Errors


def fan(edges: int) -> Data:
    return Data(edge_index=torch.tensor([[1], [0]]).repeat(1, edges), num_nodes=2)


def test_limits():
    batch = Batch.from_data_list([PrecomputeGraph()(fan(65535))] * 2)
    check_prepared(batch, True)
    with pytest.raises(ValueError, match=r"^index_dtype: expected torch.int32 .*got torch.int16"):
        PrecomputeGraph()(fan(65536))
    check_prepared(PrecomputeGraph(torch.int32)(fan(65536)), False)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_batch_has_two_types_of_indices(num_workers):
    """A worker would give all of them the first one's."""
    graphs = [PrecomputeGraph()(fan(40000)), PrecomputeGraph(torch.int32)(fan(70000))]
    for both in (graphs, graphs[::-1]):
        with pytest.raises(RuntimeError, match="same number of dimensions"):
            next(iter(DataLoader(both, 2, num_workers=num_workers)))
        with pytest.raises(RuntimeError, match="same number of dimensions"):
            DeviceDataset(both, "cpu")


def test_wrong_data():
    with pytest.raises(TypeError, match=r"^data: expected .*got HeteroData"):
        PrecomputeGraph()(HeteroData())
    with pytest.raises(ValueError, match=r"^edge_index: expected .*got NoneType"):
        PrecomputeGraph()(Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match=r"^edge_index: expected"):
        PrecomputeGraph()(Data(x=torch.ones(3, 1), edge_index=torch.ones(3, 2)))
    with pytest.raises(ValueError, match=r"^edge_index: expected .*got torch.sparse_csr"):
        PrecomputeGraph()(Data(x=torch.ones(3, 1), edge_index=torch.eye(3).to_sparse_csr()))
    with pytest.raises(IndexError, match=r"^edge_index: "):
        PrecomputeGraph()(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [3]])))
    with pytest.raises(ValueError, match=r"^data: expected no attribute graph"):
        PrecomputeGraph()(Data(graph="a", **graph_of(20, 0.3, "shuffled", 0).to_dict()))
    with pytest.raises(ValueError, match=r"^index_dtype: expected .*got torch.int64"):
        PrecomputeGraph(torch.int64)


def test_batch_of_batches():
    batch = Batch.from_data_list(prepare())
    with pytest.raises(TypeError, match=r"^data: expected .*Batch"):
        PrecomputeGraph()(batch)
    with pytest.raises(ValueError, match=r"^ptr: expected .* of \d+ graphs, .*got None"):
        _ = Batch.from_data_list([batch, batch]).edge_index


def test_attribute_named_batch():
    data = graph_of(20, 0.3, "shuffled", 0)
    data.batch = torch.zeros(20, dtype=torch.long)
    assert PrecomputeGraph()(data).edge_index.size(1) > 0


def test_repr():
    assert repr(PrecomputeGraph()) == "PrecomputeGraph(torch.int16, remove_edge_index=True)"
