"""Under autocast features are cast as in the layers of PyG; results are those of cast operands."""

import graphs
import pytest
import torch
from calls import PATHS, SCORES, gradients, make_operands, run

CAST = {
    "dot": {"q", "k", "v"},
    "cosine": set(),
    "additive": {"v"},
    "additive_v2": {"x_dst", "x_src"},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("score", SCORES)
def test_autocast(score, path, dtype, device):
    graph = graphs.mixed(device)
    leaves = {
        name: t.requires_grad_() for name, t in make_operands(score, graph, edge_terms=True).items()
    }
    with torch.autocast(device, dtype):
        out, lse = run(path, score, graph, leaves)
    cast = {name: t.to(dtype) if name in CAST[score] else t for name, t in leaves.items()}
    expected = run(path, score, graph, cast)
    assert out.dtype == expected[0].dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close((out, lse), expected, rtol=0, atol=0)
    found = gradients((out, lse), leaves, with_lse=True)
    wanted = gradients(expected, leaves, with_lse=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert all(t.dtype == torch.float32 for t in found.values())
