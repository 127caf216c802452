"""ReorderNodes: the same graph under other numbers, and the way back."""

import copy
import sys

import numpy as np
import pytest
import torch
from layers import LAYERS, make
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.transforms import Compose, MaskToIndex
from torch_geometric.typing import SparseTensor

import pyg_dfgnn.nn
from pyg_dfgnn.nn import TransformerConv
from pyg_dfgnn.reorder import METHODS, ReorderNodes, node_order
from pyg_dfgnn.transforms import PrecomputeGraph


@pytest.fixture(autouse=True)
def libraries():
    pytest.importorskip("scipy")
    pytest.importorskip("networkx")


def path(shuffle: bool = True, nodes: int = 40) -> Data:
    """A path, numbered anyhow, and two nodes without edges; edges both ways."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randperm(nodes, generator=generator) if shuffle else torch.arange(nodes)
    one_way = torch.stack([numbers[:-3], numbers[1:-2]])
    edge_index = torch.cat([one_way, one_way.flip(0)], 1)
    return Data(
        x=torch.randn(nodes, 8, generator=generator),
        y=torch.arange(nodes),
        train_mask=torch.arange(nodes) % 3 == 0,
        edge_index=edge_index,
        edge_attr=edge_index.t().clone(),  # tells the ends
        edge_label_index=edge_index[:, :5].clone(),
        name="path",
        scale=torch.tensor(2.0),
    )


@pytest.mark.parametrize("remove_edge_index", [True, False])
def test_after_precompute_graph(remove_edge_index):
    """The structure has the old numbers: it goes, and the edges stay."""
    precompute = PrecomputeGraph(remove_edge_index=remove_edge_index)
    after, expected = ReorderNodes()(precompute(path())), ReorderNodes()(path())
    assert torch.equal(after.x, expected.x)
    assert torch.equal(after.y[after.edge_index].t(), after.edge_attr)  # which has the old ends
    conv = TransformerConv(8, 4)
    out = conv(expected.x, expected.edge_index)
    torch.testing.assert_close(conv(after.x, after.edge_index), out)
    torch.testing.assert_close(conv(after.x, precompute(after)["edge_index"]), out)


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int16)],
    ids=["list", "tuple", "array", "int64", "int16"],
)
def test_numbers_of_other_kinds(kind):
    before, numbers = path(), [3, 0, 17]
    before.train_index, before.face = kind(numbers), np.array([numbers, numbers[::-1]]).T
    after = ReorderNodes("degree")(copy.copy(before))
    assert type(after.train_index) is type(before.train_index)
    assert torch.equal(after.y[torch.as_tensor(after.train_index)], torch.tensor(numbers))
    assert torch.equal(after.y[torch.from_numpy(after.face)], torch.from_numpy(before.face))
    folds = [torch.tensor(numbers), np.array(numbers, dtype=np.int32), (*numbers, "a"), numbers, []]
    before.val_index = folds
    after = ReorderNodes("degree")(copy.copy(before))
    assert [type(fold) for fold in after.val_index] == [type(fold) for fold in folds]
    assert after.val_index[1].dtype == np.int32
    expected = [int((after.y == number).nonzero()) for number in numbers]
    assert expected != numbers
    for fold in after.val_index[:4]:
        assert list(fold)[:3] == expected
    before.train_index = kind([3, 40])
    with pytest.raises(IndexError, match="train_index: expected nodes from 0 to 39, got 3 to 40"):
        ReorderNodes("degree")(before)


@pytest.mark.parametrize("method", METHODS)
def test_all_stays_aligned(method):
    before = path()
    after = ReorderNodes(method)(before.clone())
    old = after.y  # of every new node
    assert not torch.equal(old, before.y)
    assert torch.equal(old.sort().values, before.y)
    assert torch.equal(after.x, before.x[old])
    assert torch.equal(after.train_mask, before.train_mask[old])
    assert torch.equal(old[after.edge_index], before.edge_index)
    assert torch.equal(old[after.edge_label_index], before.edge_label_index)
    assert torch.equal(after.edge_attr, before.edge_attr)
    assert torch.equal(after.x[after.restore_index], before.x)
    assert (after.name, after.scale) == (before.name, before.scale)


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_give_the_same(layer):
    before = path()
    conv = make(pyg_dfgnn.nn, layer, 8)
    after = ReorderNodes("rcm")(before.clone())
    found = conv(after.x, after.edge_index)[after.restore_index]
    torch.testing.assert_close(found, conv(before.x, before.edge_index), rtol=1e-4, atol=1e-5)


def test_rcm_of_a_path():
    after = ReorderNodes("rcm")(path())
    assert (after.edge_index[0] - after.edge_index[1]).abs().max() == 1


def test_rcm_of_directed_edges():
    edges = path().edge_index
    one_way = edges[:, : edges.size(1) // 2]
    assert torch.equal(node_order(one_way, 40, "rcm"), node_order(edges, 40, "rcm"))


def test_degrees_descend():
    star = torch.tensor([[0, 1, 2, 3, 1], [4, 4, 4, 4, 3]])
    assert node_order(star, 6, "degree").tolist() == [4, 1, 3, 0, 2, 5]


def test_communities_are_runs():
    a, b = torch.combinations(torch.arange(6)).t(), torch.combinations(torch.arange(4)).t()
    odd, even = 2 * a + 1, 2 * b
    order = node_order(torch.cat([odd, even], 1), 12, "community")
    assert order.tolist() == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]


def test_twice():
    before = path()
    transform = Compose([ReorderNodes("degree"), ReorderNodes("rcm")])
    after = transform(before.clone())
    assert torch.equal(after.y[after.restore_index], before.y)


def test_in_a_batch():
    graphs = [path(), path(nodes=17)]
    batch = Batch.from_data_list([ReorderNodes("rcm")(g.clone()) for g in graphs])
    expected = torch.cat([g.x for g in graphs])
    assert torch.equal(batch.x[batch.restore_index], expected)


def test_before_precomputed():
    before = path()
    after = Compose([ReorderNodes("rcm"), PrecomputeGraph()])(before.clone())
    torch.manual_seed(0)
    conv = TransformerConv(8, 4)
    found = conv(after.x, after.edge_index)[after.restore_index]
    torch.testing.assert_close(found, conv(before.x, before.edge_index), rtol=1e-4, atol=1e-5)


def test_after_precomputed():
    """The structure, which has the old numbers, is gone."""
    before = path()
    after = ReorderNodes("degree")(PrecomputeGraph(remove_edge_index=False)(before.clone()))
    conv = TransformerConv(8, 4)
    found = conv(after.x, after.edge_index)[after.restore_index]
    torch.testing.assert_close(found, conv(before.x, before.edge_index), rtol=1e-4, atol=1e-5)
    with pytest.raises(AttributeError, match="apply it again"):
        after.graph()


class OwnList(list):
    pass


def test_other_kinds_of_attributes():
    """Arrays and lists of nodes follow, corners of faces get new numbers, others stay."""
    data = path()
    numbers = torch.tensor([3, 30, 7])
    data.array, data.names = np.arange(40), [f"node {i}" for i in range(40)]
    data.sample_index, data.face = torch.tensor([99]), numbers.view(3, 1).int()
    data.list, data.labels = [1, 2], OwnList(range(40))
    data.val_index = torch.arange(40) < 7  # no numbers
    data = MaskToIndex()(data)
    moved = ReorderNodes("degree")(copy.copy(data))
    order = moved.y  # what each place was
    assert moved.array.tolist() == order.tolist()
    assert moved.names == [f"node {i}" for i in order.tolist()]
    assert moved.sample_index.tolist() == [99]  # no node's
    assert order[moved.face.flatten()].tolist() == numbers.tolist()
    assert moved.face.dtype == torch.int32
    assert moved.list == [1, 2]
    assert moved.labels == order.tolist()
    assert isinstance(moved.labels, OwnList)
    assert moved.val_index.tolist() == (order < 7).tolist()
    assert order[moved.train_index].tolist() == data.train_index.tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_no_edges(method, nodes):
    order = node_order(torch.empty(2, 0, dtype=torch.long), nodes, method)
    assert order.sort().values.tolist() == list(range(nodes))


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match="method: expected one of rcm, degree, community, got 'x'"):
        ReorderNodes("x")
    with pytest.raises(ValueError, match="method: expected one of"):
        node_order(path().edge_index, 40, "metis")
    with pytest.raises(TypeError, match="expected a Data, got a HeteroData"):
        ReorderNodes()(HeteroData())
    with pytest.raises(TypeError, match="expected a Data, got a HyperGraphData"):
        ReorderNodes()(HyperGraphData(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]])))
    with pytest.raises(ValueError, match="edges in edge_index, got y"):
        ReorderNodes()(Data(y=torch.zeros(3)))
    with pytest.raises(ValueError, match="a single graph, got a batch"):
        ReorderNodes()(Batch.from_data_list([path(), path()]))
    data = path()
    data.adj_t = torch.eye(40).to_sparse()
    with pytest.raises(ValueError, match="in edge_index alone, got adj_t"):
        ReorderNodes()(data)
    data = path()
    data.edge_index[0, 0] = 40
    with pytest.raises(IndexError, match="edge_index: expected nodes from 0 to 39, got 0 to 40"):
        ReorderNodes()(data)
    for wrong in (torch.zeros(2), torch.zeros(5, 2).long(), torch.zeros(2, 5)):
        with pytest.raises(ValueError, match=r"edge_index: expected an int32 or int64 tensor"):
            node_order(wrong, 3, "degree")
    with pytest.raises(TypeError, match=r"edge_index: expected a tensor, got a list"):
        node_order([[0], [1]], 3, "degree")
    with pytest.raises(TypeError, match=r"num_nodes: expected an int, got 3.0"):
        node_order(torch.zeros(2, 0).long(), 3.0, "degree")
    with pytest.raises(ValueError, match=r"num_nodes: expected a number >= 0, got -1"):
        node_order(torch.zeros(2, 0).long(), -1, "community")
    for node in (-1, 3):
        with pytest.raises(IndexError, match="edge_index: expected nodes from 0 to 2"):
            node_order(torch.tensor([[node], [0]]), 3, "degree")
    data = path()
    data.edge_index = data.edge_index[:1]
    with pytest.raises(ValueError, match="edge_index: expected"):
        ReorderNodes()(data)
    data = path()
    data.x = SparseTensor.from_dense(torch.eye(40))
    with pytest.raises(TypeError, match="x: expected a tensor, an array or a list"):
        ReorderNodes()(data)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match="method 'community' needs NetworkX, which is not inst"):
        node_order(path().edge_index, 40, "community")
