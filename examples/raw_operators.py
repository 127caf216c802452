"""Calls torch.ops.dfgnn without any layer: attention and its gradients, beside plain torch."""

import torch
from common import Parser
from torch import Tensor

import pyg_dfgnn  # noqa: F401  loads the operators; torch.ops.load_library(path) does as well


def plain_attention(src: Tensor, dst: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in plain torch, which stores [E, heads, head_dim] more than once."""
    n = q.size(0)
    score = (q[dst] * k[src]).sum(-1) / q.size(-1) ** 0.5
    index = dst[:, None].expand_as(score)
    top = score.new_full((n, q.size(1)), -torch.inf).scatter_reduce(
        0, index, score.detach(), "amax"
    )
    weight = (score - top[dst]).exp()
    total = torch.zeros_like(top).scatter_add(0, index, weight)
    return torch.zeros_like(q).index_add(0, dst, (weight / total[dst])[..., None] * v[src])


def main():
    args = Parser(__doc__).parse_args()
    torch.manual_seed(0)
    n, edges, heads, head_dim = 500, 6000, 4, 16
    src, dst = torch.randint(n, (2, edges), device=args.device)
    q, k, v = (
        torch.randn(n, heads, head_dim, device=args.device, requires_grad=True) for _ in range(3)
    )

    # The graph by destination for the forward pass, by source for the backward pass
    rowptr, col, _, stats = torch.ops.dfgnn.coo_to_csr(src, dst, n, n)
    colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, n)
    print(f"largest degree {stats[0].item()}, edges with a node out of range {stats[1].item()}")

    def grads_of(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out.square().sum(), (q, k, v)))

    expected = plain_attention(src, dst, q, k, v)
    expected_grads = grads_of(expected)
    # "auto" chooses; smmf_fwd and pmf_fwd are the methods themselves, and differentiable alike
    for name in ("attention", "smmf_fwd", "pmf_fwd"):
        op = getattr(torch.ops.dfgnn, name)
        out, lse = op(rowptr, col, q=q, k=k, v=v, colptr=colptr, row=row, perm=perm)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(grads_of(out), expected_grads, rtol=1e-3, atol=1e-4)
        print(
            f"{name}: out {list(out.shape)}, lse {list(lse.shape)}; as plain torch, gradients too"
        )

    # A backward operator by hand, as in an autograd function or a C++ training loop of one's own
    out, lse = torch.ops.dfgnn.smmf_fwd(rowptr, col, q=q, k=k, v=v)
    graph = {"rowptr": rowptr, "col": col, "colptr": colptr, "row": row, "perm": perm}
    with torch.no_grad():
        grads = torch.ops.dfgnn.smmf_bwd(2 * out, None, out, lse, **graph, q=q, k=k, v=v)
    torch.testing.assert_close(list(grads[:3]), expected_grads, rtol=1e-3, atol=1e-4)
    print("smmf_bwd: as plain torch")


if __name__ == "__main__":
    main()
