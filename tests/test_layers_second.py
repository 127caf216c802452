"""Second derivatives of the layers: those of finite differences, and those of PyG."""

import pytest
import torch
from layers import (
    EDGE_LAYERS,
    LAYERS,
    VARIANTS,
    WEIGHT_LAYERS,
    edge_features,
    make,
    pair,
    square,
)
from torch.autograd import gradgradcheck

import pyg_dfgnn.nn


class Called(torch.nn.Module):
    """A layer in float64 and a way to call it, as a function of inputs and parameters."""

    def __init__(self, conv, call):
        super().__init__()
        self.conv = conv.double()
        self.call = call

    def forward(self, *inputs):
        torch.manual_seed(0)  # the same dropout in every evaluation
        return self.call(self.conv, *inputs)

    def check(self, *inputs):
        parameters = {n: p for n, p in self.named_parameters() if p.requires_grad}

        def function(*tensors):
            values = dict(zip(parameters, tensors[len(inputs) :], strict=True))
            with torch.nn.utils.stateless._reparametrize_module(self, values):
                return self(*tensors[: len(inputs)])

        leaves = [t.double().requires_grad_() for t in inputs]
        return gradgradcheck(function, (*leaves, *parameters.values()), fast_mode=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_second_derivatives(name, device):
    layer, arguments = VARIANTS[name]
    edge_index, x = square("empty_rows", device)
    conv = make(pyg_dfgnn.nn, layer, **arguments).to(device)
    assert Called(conv, lambda conv, x: conv(x, edge_index)).check(x)


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_of_edge_features(layer, device, fused):
    edge_index, x = square("empty_rows", device)
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3).to(device)
    assert Called(conv, lambda conv, x, e: conv(x, edge_index, e)).check(
        x, edge_features(edge_index)
    )
    assert fused


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_of_attention_weights(layer, device, fused):
    def both(conv, x):
        out, (_, alpha) = conv(x, edge_index, return_attention_weights=True)
        return out.sum() + alpha.square().sum()

    edge_index, x = square("empty_rows", device)
    assert Called(make(pyg_dfgnn.nn, layer, dropout=0.5).to(device), both).check(x)
    assert fused


@pytest.mark.parametrize("layer", LAYERS)
def test_gradient_penalty(layer, device, fused):
    """A loss of gradients, as it is trained with, has PyG's gradients."""
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    results = []
    for conv in (ours, theirs):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            conv(leaf, edge_index).square().sum(), leaf, create_graph=True
        )
        gradient.square().mean().backward()
        results.append([leaf.grad, *(p.grad for p in conv.parameters() if p.grad is not None)])
    assert len(fused) == 1
    for actual, expected in zip(*results, strict=True):
        atol = 1e-4 * expected.abs().max().item() + 1e-5
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("with_weights", [None, True])
@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_vectorized(layer, with_weights):
    """Backward passes that vmap runs, for all outputs at a time."""
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3)
    edge_index = torch.tensor([[0, 1, 2, 2, 3, 0], [1, 1, 0, 3, 3, 3]])

    def outputs(x, edge_attr):
        made = conv(x, edge_index, edge_attr, return_attention_weights=with_weights)
        return made if with_weights is None else (made[0], made[1][1])

    inputs = torch.randn(4, conv.in_channels), torch.randn(6, 3)
    jacobian = torch.autograd.functional.jacobian
    found, expected = (jacobian(outputs, inputs, vectorize=way) for way in (True, False))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_of_products_of_features(layer, device):
    """More than one self-loop is dropped, and counts 1."""
    edge_index = torch.tensor([[0, 0, 1, 2], [0, 0, 1, 1]], device=device)
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3, fill_value="mul").to(device)
    x = torch.randn(3, conv.in_channels, device=device)
    edge_attr = torch.rand(4, 3, device=device) + 0.5
    assert Called(conv, lambda conv, x, e: conv(x, edge_index, e)).check(x, edge_attr)
