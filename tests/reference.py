"""What the operators compute, in float64 and plain torch ops, dropout's random bits included."""

import math

import numpy as np
import torch
from graphs import Csr
from torch import Tensor

NORM_EPS = 1e-12
# The operand that is the value, by score.
VALUE = {"dot": "v", "cosine": "x_src", "additive": "v", "additive_v2": "x_src"}


def philox2x32(counter: np.ndarray, key: int) -> np.ndarray:
    """Philox2x32-7 of Salmon et al., SC 2011: uint32 [n, 2] counters to as many random words."""
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    first, second = (counter[:, i].astype(np.uint64) for i in range(2))
    for _ in range(7):
        product = first * np.uint64(0xD256D193)
        first, second = (product >> shift) ^ np.uint64(key) ^ second, product & low32
        key = (key + 0x9E3779B9) % 2**32
    return np.stack([first, second], axis=1).astype(np.uint32)


def kept(seed: int, num_edges: int, heads: int, dropout_p: float) -> Tensor:
    """Which of a CSR's edges dropout keeps, bool [num_edges, heads]."""
    edge, head = (
        x.ravel() for x in np.meshgrid(np.arange(num_edges), np.arange(heads), indexing="ij")
    )
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    counter = np.stack([edge // 4, (head + high) % 2**32], axis=1)
    words = philox2x32(counter, low)[np.arange(edge.size), edge % 4 // 2]
    swapped = words << np.uint32(16) | words >> np.uint32(16)
    uniform = np.where(edge % 2 == 1, swapped, words) * 2.0**-32
    return torch.from_numpy(uniform >= dropout_p).view(num_edges, heads)


def logits(
    score: str, graph: Csr, x: dict[str, Tensor], scale: float | None, slope: float
) -> Tensor:
    """Of every edge, [num_edges, heads]."""
    dst, src, edges = graph.destinations(), graph.sources(), graph.num_edges
    if score == "dot":
        factor = 1 / math.sqrt(x["q"].size(-1)) if scale is None else scale
        s = factor * (x["q"][dst] * x["k"][src]).sum(-1)
    elif score == "cosine":
        unit_dst, unit_src = (
            t / t.norm(dim=-1, keepdim=True).clamp_min(NORM_EPS) for t in (x["x_dst"], x["x_src"])
        )
        s = x["beta"].reshape(1, -1) * (unit_dst[dst] * unit_src[src]).sum(-1)
    elif score == "additive_v2":
        z = torch.nn.functional.leaky_relu(x["x_dst"][dst] + x["x_src"][src], slope)
        s = (x["att"] * z).sum(-1)
    else:
        s = x["a_dst"][dst] + x["a_src"][src]
        if "a_edge" in x:
            s = s + x["a_edge"][:edges]
        s = torch.nn.functional.leaky_relu(s, slope)
    return s + x["bias"][:edges] if "bias" in x else s


def softmax(s: Tensor, graph: Csr) -> tuple[Tensor, Tensor]:
    """Softmax over the edges of each row, and its log-sum-exp [num_dst, heads]."""
    dst, shape = graph.destinations(), (graph.num_dst, s.size(1))
    index = dst.unsqueeze(-1).expand_as(s)
    top = s.new_full(shape, -math.inf).scatter_reduce(0, index, s.detach(), "amax")
    top = top.masked_fill(top == -math.inf, 0.0)
    e = (s - top[dst]).exp()
    total = s.new_zeros(shape).index_add(0, dst, e)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    return e / total[dst], (total.log() + top).masked_fill(empty, -math.inf)


def attention(
    score: str,
    graph: Csr,
    operands: dict[str, Tensor],
    *,
    scale: float | None = None,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) in float64; differentiable in the operands."""
    x = {name: t.double() for name, t in operands.items()}
    value = x[VALUE[score]]
    p, lse = softmax(logits(score, graph, x, scale, negative_slope), graph)
    if dropout_p > 0:
        assert seed is not None
        mask = kept(int(seed), graph.num_edges, value.size(1), dropout_p).to(p.device)
        p = p * mask / (1 - dropout_p) if dropout_p < 1 else p * 0
    messages = p.unsqueeze(-1) * value[graph.sources()]
    out = value.new_zeros(graph.num_dst, *value.shape[1:])
    return out.index_add(0, graph.destinations(), messages), lse
