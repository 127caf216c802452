"""SuperGATConv's self-supervision: what PyG learns from edges and from pairs that are none."""

import graphs
import pytest
import torch
from layers import assert_same_call, edge_index_of, features, pair, square, transposed
from torch_geometric import seed_everything

import pyg_dfgnn
import pyg_dfgnn.nn

ARGUMENTS = [
    {},
    {"attention_type": "SD"},
    {"edge_sample_ratio": 0.7, "neg_sample_ratio": 2.0},
    {"is_undirected": True, "add_self_loops": False},
]


def losses(ours, theirs, *arguments, **kwargs):
    for conv in (ours, theirs):
        seed_everything(2)
        conv.zero_grad()
        out = conv(*arguments, **kwargs)
        loss = conv.get_attention_loss()
        (loss + out.square().sum()).backward()
        yield loss, conv.att_x, conv.att_y, [p.grad for p in conv.parameters()]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("graph", ["hub", "empty_rows"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_attention_loss(arguments, graph, is_sparse, device, fused):
    ours, theirs = pair("SuperGATConv", device, **arguments)
    edge_index, x = square(graph, device)
    edges = transposed(edge_index, x.size(0), x.size(0)) if is_sparse else edge_index
    actual, expected = losses(ours, theirs, x, edges)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(fused) == 1


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_loss_in_autocast(arguments, device):
    """It is float32 on a GPU, where sums are."""
    ours, theirs = pair("SuperGATConv", device, **arguments)
    edge_index, x = square("empty_rows", device)
    with torch.autocast(device, torch.bfloat16):
        actual, expected = losses(ours, theirs, x, edge_index)
    torch.testing.assert_close(actual[:3], expected[:3], rtol=5e-2, atol=5e-2)


def test_given_negatives(device):
    ours, theirs = pair("SuperGATConv", device)
    edge_index, x = square("hub", device)
    negatives = torch.tensor([[0, 3, 5], [7, 1, 2]], device=device)
    actual, expected = losses(ours, theirs, x, edge_index, negatives)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_negatives_within_examples(device):
    ours, theirs = pair("SuperGATConv", device)
    edge_index = edge_index_of(graphs.make("empty_rows", device))
    x = features(18, device=device)[0]
    batch = torch.arange(18, device=device) // 9
    both = torch.cat([edge_index, edge_index + 9], dim=1)
    actual, expected = losses(ours, theirs, x, both, batch=batch)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_graph_argument(device):
    ours, theirs = pair("SuperGATConv", device)
    edge_index, x = square("hub", device)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=True)
    seed_everything(2)
    ours(x, graph)
    seed_everything(2)
    theirs(x, edge_index)
    torch.testing.assert_close(ours.get_attention_loss(), theirs.get_attention_loss())
    torch.testing.assert_close(ours.att_x, theirs.att_x, rtol=1e-5, atol=1e-5)


def test_no_loss_outside_of_training():
    ours, theirs = (conv.eval() for conv in pair("SuperGATConv"))
    edge_index, x = square("hub")
    assert_same_call(ours, theirs, x, edge_index)
    torch.testing.assert_close(ours.get_attention_loss(), theirs.get_attention_loss())


def test_by_pyg(fused):
    ours, theirs = pair("SuperGATConv", aggr="mean")
    edge_index, x = square("hub")
    actual, expected = losses(ours, theirs, x, edge_index)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert not fused


def test_own_products(device, fused):
    """Of a class, or of an object, that computes them in another way."""

    def doubled(original):
        return lambda *args, **kwargs: 2 * original(*args, **kwargs)

    edge_index, x = square("hub", device)
    ours, theirs = (conv.eval() for conv in pair("SuperGATConv", device))
    plain = ours(x, edge_index)
    assert len(fused) == 1
    for conv in (ours, theirs):
        conv.get_attention = doubled(conv.get_attention)
    assert_same_call(ours, theirs, x, edge_index)
    assert not torch.allclose(ours(x, edge_index), plain)

    class Own(pyg_dfgnn.nn.SuperGATConv):
        def get_attention(self, *args, **kwargs):
            return 2 * super().get_attention(*args, **kwargs)

    own = Own(8, 5, heads=2).to(device).eval()
    own.load_state_dict(ours.state_dict())
    assert_same_call(own, theirs, x, edge_index)
    assert len(fused) == 1
