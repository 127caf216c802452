"""Gradients of every operator against autograd through the float64 reference."""

import graphs
import pytest
import torch
from calls import (
    DTYPES,
    HEAD_DIMS,
    METHODS,
    PATHS,
    SCORES,
    SHAPES,
    check_backward,
    gradients,
    leaves_of,
    make_operands,
    run,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", PATHS)
def test_paths(path, score, dtype, device):
    graph = graphs.make("degrees_around_tiles", device)
    operands = make_operands(score, graph, head_dim=16, dtype=dtype, edge_terms=True)
    check_backward(path, score, graph, operands)


@pytest.mark.parametrize("edge_terms", [False, True], ids=["plain", "edge_terms"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_graphs(name, score, path, index, edge_terms, device):
    graph = graphs.make(name, device, index)
    operands = make_operands(score, graph, 3, 8, edge_terms=edge_terms)
    check_backward(path, score, graph, operands, csc=index == torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_shapes(score, path, heads, head_dim, dtype, device):
    graph = graphs.mixed(device)
    check_backward(path, score, graph, make_operands(score, graph, heads, head_dim, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_every_shape(score, path, dtype, cuda):
    graph = graphs.mixed(cuda)
    for heads in (1, 2, 3, 8):
        for head_dim in HEAD_DIMS:
            operands = make_operands(score, graph, heads, head_dim, dtype)
            check_backward(path, score, graph, operands)


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_many_rows(score, path, device):
    graph = graphs.random(20_000, 4, device)
    check_backward(path, score, graph, make_operands(score, graph, 2, 8, edge_terms=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("score", "options"),
    [
        ("dot", {"scale": 0.3}),
        ("additive", {"negative_slope": -0.5}),
        ("additive_v2", {"negative_slope": -0.5}),
    ],
)
def test_options(score, options, path, device):
    graph = graphs.mixed(device)
    check_backward(path, score, graph, make_operands(score, graph), **options)


@pytest.mark.parametrize("path", METHODS)
def test_beta_of_each_head(path, device):
    graph = graphs.mixed(device)
    operands = make_operands("cosine", graph, heads=4)
    operands["beta"] = torch.tensor([-3.0, 0.0, 1.0, 5.0], device=device)
    check_backward(path, "cosine", graph, operands)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize(
    ("score", "features"), [("additive", ["v"]), ("additive_v2", ["x_dst", "x_src"])]
)
def test_terms_of_half_precision_may_be_float32(score, features, path, dtype, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    operands |= {name: operands[name].to(dtype) for name in features}
    check_backward(path, score, graph, operands)


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("with_lse", [False, True], ids=["out", "out_and_lse"])
def test_one_tensor_for_several_operands(with_lse, score, path, device):
    """Contributions add up where one leaf is given twice."""
    graph = graphs.make("self_loops", device)
    operands = make_operands(score, graph, edge_terms=True)
    dst, src = {"dot": ("q", "k"), "additive": ("a_dst", "a_src")}.get(score, ("x_dst", "x_src"))
    shared = operands[src].requires_grad_()
    copies = {dst: shared.detach().clone().requires_grad_(), src: shared}
    apart = gradients(run(path, score, graph, operands | copies), copies, with_lse)
    once = gradients(run(path, score, graph, operands | {dst: shared}), {src: shared}, with_lse)
    torch.testing.assert_close(once[src], apart[dst] + apart[src])


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_each_operand_alone(score, path, device):
    """A gradient does not depend on which others are asked for."""
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    leaves = {name: t.clone().requires_grad_() for name, t in operands.items()}
    together = gradients(run(path, score, graph, leaves), leaves, with_lse=True)
    for name, t in leaves.items():
        alone = gradients(run(path, score, graph, {**operands, name: t}), {name: t}, with_lse=True)
        assert torch.equal(alone[name], together[name]), name


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_gradient_of_lse_alone(score, path, device):
    graph = graphs.make("self_loops", device)
    leaves = {
        name: t.requires_grad_()
        for name, t in make_operands(score, graph, dtype=torch.float64, edge_terms=True).items()
    }
    _, lse = run(path, score, graph, leaves)
    (found,) = torch.autograd.grad(lse.sum(), leaves["bias"])
    torch.testing.assert_close(found, torch.ones_like(found))  # d lse / d bias is the softmax


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_gradcheck(score, path, dropout_p, device):
    """Numerical derivatives of out and lse through the same kernels."""
    graph = graphs.from_rows([[0, 2, 2], [1], [3, 1, 0, 2]], 4).to(device)
    operands = make_operands(score, graph, 2, 3, torch.float64, edge_terms=True)
    seed = torch.tensor([5], device=device)

    def function(*values):
        named = dict(zip(operands, values, strict=True))
        return run(path, score, graph, named, dropout_p=dropout_p, seed=seed)

    leaves = tuple(t.requires_grad_() for t in operands.values())
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 8), (2, 64), (1, 128), (1, 520)])
def test_rows_of_one_edge(heads, head_dim, dropout_p, score, path, device):
    """Their weights are constant: logits have no gradient, not even one of roundings."""
    if device == "cuda" and "tile" in path:
        pytest.skip("tensor cores make both terms of the difference in other ways")
    graph = graphs.tree(300).to(device)
    operands = make_operands(score, graph, heads, head_dim)
    leaves = leaves_of(operands)
    options = {"dropout_p": dropout_p, "seed": torch.tensor([5], device=device)}
    found = gradients(run(path, score, graph, leaves, **options), leaves, with_lse=False)
    constant = {
        "dot": ("q", "k"),
        "cosine": ("x_dst", "beta"),
        "additive": ("a_dst", "a_src"),
        "additive_v2": ("x_dst", "att"),
    }
    for name in constant[score]:
        assert not found[name].any(), name
    check_backward(path, score, graph, operands, with_lse=True, **options)


@pytest.mark.parametrize("head_dim", [64, 520])
@pytest.mark.parametrize("score", SCORES)
def test_rows_in_pieces(score, head_dim, device):
    """By pmf's kernels, where heads are too wide for others by SpMMs."""
    graph = graphs.in_pieces().to(device)
    operands = make_operands(score, graph, 1, head_dim)
    check_backward("pmf_fwd", score, graph, operands, slack=5.0 if score == "cosine" else 2.0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_no_number_in_a_row_of_one_edge(score, path, value, device):
    """What its gradients are made of is not a number, and neither are they."""
    graph = graphs.from_rows([[1], [0, 2], [0, 1]], 3).to(device)
    operands = make_operands(score, graph, 2, 16)
    name = next(iter(operands))  # of destinations
    operands[name][0] = value
    leaves = leaves_of(operands)
    found = gradients(run(path, score, graph, leaves), leaves, with_lse=False)
    assert found[name][0].isnan().all()
