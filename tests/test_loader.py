"""DeviceLoader: its batches are those of PyG's DataLoader."""

import pytest
import torch
import torch_geometric.nn
from structures import check_prepared
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.utils import erdos_renyi_graph

import pyg_dfgnn.nn
from pyg_dfgnn.loader import DeviceDataset, DeviceLoader
from pyg_dfgnn.transforms import PrecomputedData, PrecomputeGraph

SIZES = [5, 1, 0, 40, 2, 64, 1, 33]


class PairData(Data):
    """Attributes that are batched in every way there is."""

    def __init__(self, x=None, *, tag: int = 0, **attributes):
        super().__init__(x, **attributes)
        if tag:
            self.tag = tag

    def __inc__(self, key, value, *args):
        if key == "whole":
            return value.size(0)
        if key == "ranks":
            return 0.5
        if key == "pairs":
            return torch.tensor([[self.x.size(0)], [self.other.size(0)]])
        if key == "first":
            return self.x.size(0)
        return super().__inc__(key, value, *args)

    def __cat_dim__(self, key, value, *args):
        dims = {"whole": None, "pairs": 1}
        return dims[key] if key in dims else super().__cat_dim__(key, value, *args)


def pair_of(seed: int, nodes: int) -> PairData:
    rng = torch.Generator().manual_seed(seed)
    others = nodes % 7 + 1

    def ends(count: int, size: int) -> Tensor:
        return torch.randint(max(size, 1), (min(count, count * size),), generator=rng)

    torch.manual_seed(seed)
    data = PairData(
        x=torch.randn(nodes, 3, generator=rng),
        other=torch.randn(others, 2, generator=rng).double(),
        edge_index=erdos_renyi_graph(max(nodes, 1), 0.3) if nodes else torch.empty(2, 0).long(),
        y=seed % 3,
        weight=seed / 2,
        scalar=torch.tensor(float(seed)),
        flag=torch.tensor([seed % 2 == 0]),
        whole=torch.randn(2, 2, generator=rng),
        first=torch.tensor([0], dtype=torch.int32),
        pairs=torch.stack([ends(6, nodes), ends(6, others)[: min(6, 6 * nodes)]]),
        ranks=torch.arange(nodes % 3),
        index_of_half=torch.arange(nodes // 2, dtype=torch.int32),
        nothing=torch.empty(nodes, 0),
        name=f"graph {seed}",
    )
    data.edge_attr = torch.rand(data.edge_index.size(1), 2, generator=rng).half()
    return data


def pairs() -> list[PairData]:
    return [pair_of(seed, nodes) for seed, nodes in enumerate(SIZES)]


def plain(count: int = 12) -> list[Data]:
    graphs = []
    for seed in range(count):
        torch.manual_seed(seed)
        nodes = 3 + 5 * seed
        graphs.append(Data(x=torch.randn(nodes, 4), edge_index=erdos_renyi_graph(nodes, 0.4)))
    return graphs


def check_same(found: Batch, expected: Batch, device: str) -> None:
    """All that a batch holds, in the order in which it holds it."""
    assert type(found) is type(expected)
    assert found.keys() == expected.keys()
    assert found.num_graphs == expected.num_graphs
    assert found.num_nodes == expected.num_nodes
    for name in sorted(expected.keys()):
        check_same_value(found[name], expected[name], device)
    for ours, theirs in (
        (found._slice_dict, expected._slice_dict),
        (found._inc_dict, expected._inc_dict),
    ):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            check_same_value(ours[name], theirs[name], "cpu")


def check_same_value(found, expected, device: str) -> None:
    if not isinstance(expected, Tensor):
        assert found == expected
        return
    assert found.device.type == device
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("graphs", [pairs, plain])
def test_batches(graphs, device):
    graphs = graphs()
    loaders = (
        DeviceLoader(graphs, 3, device=device, follow_batch=["x", "edge_index"]),
        DataLoader(graphs, 3, follow_batch=["x", "edge_index"]),
    )
    assert len(loaders[0]) == len(loaders[1])
    for found, expected in zip(*loaders, strict=True):
        check_same(found, expected, device)
        for ours, theirs in zip(found.to_data_list(), expected.to_data_list(), strict=True):
            assert type(ours) is type(theirs)
            assert ours.keys() == theirs.keys()
            for name in sorted(theirs.keys()):
                check_same_value(ours[name], theirs[name], device)


def test_batches_of_batches(device):
    graphs = plain()
    batches = [Batch.from_data_list(graphs[i : i + 2]) for i in range(0, len(graphs), 2)]
    for found, expected in zip(
        DeviceLoader(batches, 2, device=device), DataLoader(batches, 2), strict=True
    ):
        check_same(found, expected, device)


def test_any_order(device):
    """Graphs that come twice, alone or all."""
    graphs = pairs()
    dataset = DeviceDataset(graphs, device)
    assert len(dataset) == len(graphs)
    for indices in ([7, 3, 3, 0], [2], [6, 2, 1], range(8), torch.arange(7, -1, -1)):
        expected = Batch.from_data_list([graphs[i] for i in indices])
        check_same(dataset.batch(indices), expected, device)
    for i, graph in enumerate(graphs):
        found, expected = dataset[i], Batch.from_data_list([graph]).get_example(0)
        assert type(found) is PairData
        for name in sorted(expected.keys()):
            check_same_value(found[name], expected[name], device)


def test_explicit_num_nodes(device):
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=n) for n in (2, 5, 3)]
    found = DeviceDataset(graphs, device).batch([2, 0])
    check_same(found, Batch.from_data_list([graphs[2], graphs[0]]), device)
    assert [data.num_nodes for data in found.to_data_list()] == [3, 2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_same_order(drop_last, device):
    """That of DataLoader, epoch by epoch."""
    graphs = plain()
    options = {"batch_size": 5, "shuffle": True, "drop_last": drop_last}
    ours = DeviceLoader(
        graphs, **options, device=device, generator=torch.Generator().manual_seed(1)
    )
    theirs = DataLoader(graphs, **options, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        for found, expected in zip(ours, theirs, strict=True):
            check_same(found, expected, device)


def test_samplers(device):
    graphs = plain(4)
    dataset = DeviceDataset(graphs, device)
    for options in ({"sampler": [3, 1, 1], "batch_size": 2}, {"batch_sampler": [[1, 0], [2]]}):
        for found, expected in zip(
            DeviceLoader(dataset, **options), DataLoader(graphs, **options), strict=True
        ):
            check_same(found, expected, device)


@pytest.mark.parametrize("remove_edge_index", [False, True])
def test_precomputed(remove_edge_index, device):
    """Batches have their structure, and layers find it."""
    transform = PrecomputeGraph(remove_edge_index=remove_edge_index)
    graphs = [transform(graph) for graph in plain()]
    order = torch.Generator().manual_seed(0)
    for batch in DeviceLoader(graphs, 5, shuffle=True, device=device, generator=order):
        assert isinstance(batch, PrecomputedData)
        assert isinstance(batch, Batch)
        for self_loops in (False, True):
            check_prepared(batch, self_loops)
        nodes = batch.num_nodes
        prepared = batch.graph(False)
        assert pyg_dfgnn.build_graph(batch.edge_index, nodes, nodes) is prepared


def test_training(device):
    """Step by step as with DataLoader."""
    graphs = [PrecomputeGraph()(graph) for graph in plain()]
    losses = []
    for make in (lambda *a, **k: DeviceLoader(*a, **k, device=device), DataLoader):
        torch.manual_seed(0)
        model = torch_geometric.nn.Sequential(
            "x, edge_index",
            [
                (pyg_dfgnn.nn.GATConv(4, 4), "x, edge_index -> x"),
                (torch_geometric.nn.GCNConv(4, 1), "x, edge_index -> x"),
            ],
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in make(graphs, batch_size=5, shuffle=True):
            batch = batch.to(device)
            loss = (model(batch.x, batch.edge_index).squeeze(-1) - batch.x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    found, expected = torch.stack(losses).view(2, -1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_results_are_tensors_of_their_own(device):
    batch = DeviceDataset(pairs(), device, follow_batch=["x"]).batch([0, 1])
    before = batch.batch.clone(), batch.ptr.clone()
    batch.x_batch += 1
    batch.x_ptr += 1
    assert torch.equal(batch.batch, before[0])
    assert torch.equal(batch.ptr, before[1])


def test_exclude_keys(device):
    graphs = pairs()
    for graph in graphs:
        graph.adj = torch.eye(2).to_sparse()
        graph.nested = {"a": torch.zeros(2)}
    keys = ["adj", "nested", "name"]
    found = DeviceDataset(graphs, device, exclude_keys=keys).batch([1, 5])
    check_same(found, Batch.from_data_list([graphs[1], graphs[5]], exclude_keys=keys), device)


def test_waits_for_nothing(cuda):
    dataset = DeviceDataset([PrecomputeGraph()(graph) for graph in plain()], cuda)
    dataset.batch([0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = dataset.batch([3, 1])
        batch.graph(True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nested", {"a": torch.zeros(2)}),
        ("parts", [torch.zeros(2), torch.zeros(3)]),
        ("sparse", torch.eye(3).to_sparse()),
    ],
)
def test_bad_attributes(name, value):
    graph = plain(1)[0]
    graph[name] = value
    with pytest.raises(TypeError, match=f"{name}: expected dense tensors"):
        DeviceDataset([graph, graph], "cpu")


def test_required_arguments(device):
    """Of a class, which batches do not call."""

    class Named(Data):
        def __init__(self, name, **attributes):
            super().__init__(**attributes)

    graphs = [Named("a", x=torch.rand(n, 2)) for n in (2, 3)]
    check_same(DeviceDataset(graphs, device).batch([1]), Batch.from_data_list(graphs[1:]), device)


def test_graphs_on_the_device(cuda):
    graphs = [graph.to(cuda) for graph in pairs()]
    found = DeviceDataset(graphs, cuda).batch([7, 0, 3])
    expected = Batch.from_data_list([pairs()[i] for i in (7, 0, 3)])
    check_same(found, expected, cuda)


def test_graphs_that_differ():
    first = plain(1)[0]
    other = first.clone()
    other.y = torch.ones(1)
    with pytest.raises(ValueError, match="graphs: expected the same attributes"):
        DeviceDataset([first, other], "cpu")
    assert "y" not in DeviceDataset([first, other], "cpu", exclude_keys=["y"]).batch([1])
    other = first.clone()
    other.x = other.x.double()
    with pytest.raises(ValueError, match="x: expected one dtype"):
        DeviceDataset([first, other], "cpu")
    graphs = [Data(x=first.x, y=y) for y in (1, 2.5)]
    with pytest.raises(ValueError, match="y: expected one dtype"):
        DeviceDataset(graphs, "cpu")


def test_bad_increments():
    class Ragged(Data):
        def __inc__(self, key, value, *args):
            return torch.arange(value.size(0)) if key == "ranks" else super().__inc__(key, value)

    graph = Ragged(x=torch.zeros(2, 1), ranks=torch.zeros(3))
    with pytest.raises(TypeError, match="ranks: expected __inc__ to give"):
        DeviceDataset([graph, graph], "cpu")


def test_bad_arguments():
    graphs = plain(3)
    with pytest.raises(ValueError, match="graphs: expected at least one"):
        DeviceDataset([], "cpu")
    for other in (HeteroData(), pairs()[0]):
        with pytest.raises(TypeError, match=r"graphs: expected torch_geometric\.data\.Data of one"):
            DeviceDataset([graphs[0], other], "cpu")
    for first in (HeteroData(), ("a", 1)):
        with pytest.raises(TypeError, match=r"graphs: expected torch_geometric\.data\.Data of one"):
            DeviceDataset([first, graphs[0]], "cpu")
    with pytest.raises(ValueError, match="device: expected one of this machine, got 'nowhere'"):
        DeviceLoader(graphs, 2, device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device: expected one of this machine, got 'cuda'"):
            DeviceLoader(graphs, 2)
    dataset = DeviceDataset(graphs, "cpu")
    for indices in ([], [3], [-1], [0, 5]):
        with pytest.raises(IndexError, match="indices: expected graphs from 0 to 2"):
            dataset.batch(indices)
    for indices in ([True, False], torch.tensor([0.0]), 1, torch.zeros(1, 1, dtype=torch.long)):
        with pytest.raises(IndexError, match="indices: expected integers"):
            dataset.batch(indices)
    for option in ({"num_workers": 2}, {"pin_memory": True}, {"collate_fn": list}):
        with pytest.raises(TypeError, match=f"{next(iter(option))}: expected none"):
            DeviceLoader(dataset, **option)
    for option in ({"follow_batch": ["x"]}, {"device": "cpu"}):
        with pytest.raises(TypeError, match="dataset: a DeviceDataset has its own"):
            DeviceLoader(dataset, **option)
