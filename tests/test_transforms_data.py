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

import pyg_dfgnn
from pyg_dfgnn import build_graph
from pyg_dfgnn.transforms import PrecomputedData, PrecomputeGraph


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


class OwnData(PrecomputedData):
    def __inc__(self, key, value, *args):
        return 7 if key == "mine" else super().__inc__(key, value, *args)


@pytest.mark.parametrize("has_x", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_number_of_nodes(batched, has_x):
    """Stored for PyG to find, until there is another edge_index; then x tells it, if there is."""
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=nodes) for nodes in (3, 2)]
    if has_x:
        graphs = [Data(x=torch.ones(g.num_nodes, 2), edge_index=g.edge_index) for g in graphs]
    graphs = [PrecomputeGraph()(graph) for graph in graphs]
    assert [graph._store["num_nodes"] for graph in graphs] == [3, 2]
    data = Batch.from_data_list(graphs) if batched else graphs[0]
    nodes = 5 if batched else 3
    assert data._store["num_nodes"] == data.num_nodes == nodes
    if has_x:
        data.x = torch.ones(nodes + 4, 2)
    data.edge_index = torch.tensor([[0], [0]])
    assert data.num_nodes == nodes + (4 if has_x else 0)


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


def test_wrong_data():
    with pytest.raises(TypeError, match=r"^data: expected .*got HeteroData"):
        PrecomputeGraph()(HeteroData())
    with pytest.raises(ValueError, match=r"^data: expected an edge_index"):
        PrecomputeGraph()(Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match=r"^edge_index: expected"):
        PrecomputeGraph()(Data(x=torch.ones(3, 1), edge_index=torch.ones(3, 2)))
    with pytest.raises(IndexError, match=r"^edge_index: "):
        PrecomputeGraph()(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [3]])))
    with pytest.raises(ValueError, match=r"^index_dtype: expected .*got torch.int64"):
        PrecomputeGraph(torch.int64)


def test_batch_of_batches():
    batch = Batch.from_data_list(prepare())
    with pytest.raises(TypeError, match=r"^data: expected .*Batch"):
        PrecomputeGraph()(batch)
    with pytest.raises(ValueError, match=r"^ptr: expected .*got none"):
        _ = Batch.from_data_list([batch, batch]).edge_index


def test_attribute_named_batch():
    data = graph_of(20, 0.3, "shuffled", 0)
    data.batch = torch.zeros(20, dtype=torch.long)
    assert PrecomputeGraph()(data).edge_index.size(1) > 0


def test_repr():
    assert repr(PrecomputeGraph()) == "PrecomputeGraph(torch.int16, remove_edge_index=True)"
