"""Dense attention of small graphs with a mask: scaled_dot_product_attention, FlexAttention."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .operands import Operands
from .unsupported import Unsupported
from .workload import Workload

MASK_BYTES = 2**30  # a mask that would need more does not fit
BLOCK = 128  # rows and columns of FlexAttention's blocks


class Padded(NamedTuple):
    """Graphs padded to the size of the largest.

    Attributes:
        mask: Bool ``[graphs, width, width]``, true at (destination, source) of an edge.
        graph, place: The graph of each node ``[N]``, and its place there.
    """

    mask: Tensor
    graph: Tensor
    place: Tensor

    @classmethod
    def of(cls, workload: Workload) -> "Padded":
        device, n = workload.col.device, workload.num_nodes
        ptr = torch.tensor([0, n]) if workload.ptr is None else workload.ptr
        ptr = ptr.to(device)
        sizes = ptr.diff()
        count, width = sizes.numel(), -(-int(sizes.max()) // 8) * 8
        if count * width * width > MASK_BYTES:
            raise Unsupported("its mask does not fit")
        graph = torch.arange(count, device=device).repeat_interleave(sizes)
        place = torch.arange(n, device=device) - ptr[graph]
        mask = torch.zeros(count, width, width, dtype=torch.bool, device=device)
        src, dst = workload.edge_index()
        mask[graph[dst], place[dst], place[src]] = True
        return cls(mask, graph, place)


def scaled_dot_product(score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """The mask is made before; operands are padded and results packed in the call."""
    if score != "dot":
        raise Unsupported("only dot scores")
    mask, graph, place = Padded.of(workload)
    count, width, _ = mask.shape
    mask = mask.unsqueeze(1)
    padded = graph * width + place

    def pad(x: Tensor) -> Tensor:
        filled = x.new_zeros(count * width, *x.shape[1:]).index_copy(0, padded, x)
        return filled.view(count, width, *x.shape[1:]).transpose(1, 2)

    def call(operands: Operands) -> Tensor:
        q, k, v = (pad(operands[name]) for name in ("q", "k", "v"))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).reshape(count * width, *operands["v"].shape[1:])[padded]

    return call


def flex(score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """Compiled; the blocks that have edges and the mask inside of them are made before."""
    if score != "dot":
        raise Unsupported("only dot scores")
    mask, graph, place = Padded.of(workload)

    def is_edge(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (graph[i] == graph[j]) & mask[graph[i], place[i], place[j]]

    n = workload.num_nodes
    blocks = -(-n // BLOCK)
    src, dst = workload.edge_index() // BLOCK
    block = (dst * blocks + src).unique()
    row, column = block // blocks, block % blocks
    counts = row.bincount(minlength=blocks)
    indices = torch.zeros(blocks, blocks, dtype=torch.int32, device=row.device)
    first = counts.cumsum(0) - counts
    indices[row, torch.arange(row.numel(), device=row.device) - first[row]] = column.int()
    block_mask = BlockMask.from_kv_blocks(
        counts.int().view(1, 1, -1),
        indices.view(1, 1, blocks, blocks),
        BLOCK_SIZE=BLOCK,
        mask_mod=is_edge,
        seq_lengths=(n, n),
    )
    torch._dynamo.reset()
    attention = torch.compile(flex_attention)

    def call(operands: Operands) -> Tensor:
        q, k, v = (operands[name].transpose(0, 1).unsqueeze(0) for name in ("q", "k", "v"))
        if not q.is_cuda:
            if torch.is_grad_enabled():
                raise Unsupported("FlexAttention has no backward pass on the CPU")
            q, k, v = q.detach(), k.detach(), v.detach()
        return attention(q, k, v, block_mask=block_mask).squeeze(0).transpose(0, 1)

    return call
