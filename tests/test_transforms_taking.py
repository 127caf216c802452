"""PrecomputeGraph beside what takes some of the edges, adds others or renumbers nodes."""

import pytest
import torch
from layers import make
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.transforms import AddSelfLoops

import pyg_dfgnn
from pyg_dfgnn import build_graph
from pyg_dfgnn.reorder import ReorderNodes
from pyg_dfgnn.transforms import PrecomputeGraph


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
