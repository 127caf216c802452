"""What the operators compute, in float64 and plain torch ops, dropout's random bits included."""

import math

import numpy as np
import torch
from graphs import Csr
from torch import Tensor

NORM_EPS = 1e-12
# The operand that is the value, by score.
VALUE = {"dot": "v", "cosine": "x_src", "additive": "v", "additive_v2": "x_src"}


def philox4x32(counter: np.ndarray, key: tuple[int, int], rounds: int = 10) -> np.ndarray:
    """Philox4x32 of Salmon et al., SC 2011: uint32 [n, 4] counters to as many random words."""
    low32 = np.uint64(0xFFFFFFFF)
    words = [counter[:, i].astype(np.uint64) for i in range(4)]
    key_words = list(key)
    for _ in range(rounds):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        k0, k1 = np.uint64(key_words[0]), np.uint64(key_words[1])
        shift = np.uint64(32)
        words = [(b >> shift) ^ words[1] ^ k0, b & low32, (a >> shift) ^ words[3] ^ k1, a & low32]
        key_words = [(key_words[0] + 0x9E3779B9) % 2**32, (key_words[1] + 0xBB67AE85) % 2**32]
    return np.stack(words, axis=1).astype(np.uint32)


def kept(seed: int, num_edges: int, heads: int, dropout_p: float) -> Tensor:
    """Which of a CSR's edges dropout keeps, bool [num_edges, heads]."""
    edge, head = np.meshgrid(np.arange(num_edges), np.arange(heads), indexing="ij")
    counter = np.zeros((edge.size, 4), dtype=np.uint64)
    counter[:, 0] = edge.ravel() & 0xFFFFFFFF
    counter[:, 1] = edge.ravel() >> 32
    counter[:, 2] = head.ravel()
    words = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    uniform = words[:, 0] * 2.0**-32
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
