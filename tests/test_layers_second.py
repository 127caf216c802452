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
