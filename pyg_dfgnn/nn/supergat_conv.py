"""The self-supervised graph attention layer."""

import math
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import OptTensor, SparseTensor, torch_sparse
from torch_geometric.utils import add_self_loops, remove_self_loops

from ..graph import Graph, build_graph
from ..ops import additive_logits, gat_scores, logits_attention, sddmm
from ._dtypes import dtype_of_messages, dtype_of_sums, in_dtype
from ._edges import destinations, order_of_edges
from ._fused import FusedConv, has_kernels, may_score, no_fused_path, wide
from ._linears import combine_heads


class SuperGATConv(FusedConv, torch_geometric.nn.SuperGATConv):
    """``torch_geometric.nn.SuperGATConv`` with fused attention, and the same results.

    Graph attention (Kim and Oh, How to Find Your Friendly Neighborhood, 2021).

    Self-supervision, in training, is not compiled, waits for the device (so that only evaluation
    can be captured in a CUDA graph), and in TorchScript, which PyG's layer does not know, there is
    none (nor a ``get_attention_loss``).

    Args:
        method: That of the fused operator, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.SuperGATConv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        attention_type: str = "MX",
        neg_sample_ratio: float = 0.5,
        edge_sample_ratio: float = 1.0,
        is_undirected: bool = False,
        *,
        method: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat,
            negative_slope,
            dropout,
            add_self_loops,
            bias,
            attention_type,
            neg_sample_ratio,
            edge_sample_ratio,
            is_undirected,
            method=method,
            **kwargs,
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Union[Tensor, SparseTensor, Graph],
        neg_edge_index: OptTensor = None,
        batch: OptTensor = None,
    ) -> Tensor:
        """``Σ_j α_ij W x_j``, with ``α = softmax_j(leaky_relu(s_ij))`` over the scores

        ``s = (a_r·W x_i + a_l·W x_j) σ(W x_i·W x_j)`` ("MX") or ``W x_i·W x_j / sqrt(C)`` ("SD").
        In training, the products ``W x_i·W x_j`` of edges and of pairs that are none go into
        ``get_attention_loss``.

        Args:
            x: ``[N, in_channels]``.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor`` or a
                torch.sparse tensor; or a :class:`pyg_dfgnn.Graph`, built with ``self_loops=True``
                where the layer adds self-loops.
            neg_edge_index: ``[2, num_pairs]``, pairs that are no edges; drawn where it is None.
            batch: ``[N]``, the example of each node: pairs are drawn within one.

        Returns:
            ``[N, heads * out_channels]`` (without ``concat``: ``[N, out_channels]``).

        Raises:
            IndexError: ``edge_index`` holds a node that is out of range, but for self-loops that
                the layer drops; compiled code asserts that on the device.
            ValueError: of a Graph with other numbers of nodes or self-loops, or where PyG's steps
                are needed, which take an ``edge_index``; or ``dropout`` is no probability.
        """
        num_nodes = x.size(0)
        is_static = x.dim() != 2
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        graph: Optional[Graph] = None
        if not is_static and may_score(self.att_l, x) and may_score(self.att_r, x):
            graph = self.fused_graph(edge_index, x, num_nodes, num_nodes, self.add_self_loops)
        if graph is not None:
            out, dtype = self.attend_fused(x, graph), self.message_dtype(x)
        else:
            out = self.attend(x, edge_index, num_nodes)
            dtype = out.dtype
        if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code leaves it out)
            if self.training:
                self.supervise(x, edge_index, graph, neg_edge_index, num_nodes, batch)
        width = self.heads * self.out_channels if self.concat else None
        return combine_heads(out, width, None, self.bias, dtype)

    def message_dtype(self, x: Tensor) -> torch.dtype:
        """That of PyG's."""
        return dtype_of_sums(x) if self.att_r is None else dtype_of_messages(x, self.att_r)

    def attend_fused(self, x: Tensor, graph: Graph) -> Tensor:
        """The aggregated messages ``[N, heads, out_channels]``, in the dtype of ``x``."""
        logits = sddmm(x, x, graph)
        if self.att_r is not None:  # "MX"; TorchScript would compile what compares strings for "SD"
            src, dst = gat_scores(x, x, self.att_l.squeeze(0), self.att_r.squeeze(0))
            logits = additive_logits(dst, src, graph) * logits.sigmoid()
        else:
            logits = logits / math.sqrt(self.out_channels)
        logits = F.leaky_relu(logits, self.negative_slope)
        dropout_p = self.dropout_p()
        return logits_attention(logits, x, graph, dropout_p, self.method)

    def attend(
        self, x: Tensor, edge_index: Union[Tensor, SparseTensor, Graph], num_nodes: int
    ) -> Tensor:
        """The same by PyG's steps."""
        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        edge_index = self.with_self_loops(edge_index, num_nodes)
        # propagate_type: (x: Tensor)
        return self.propagate(wide(edge_index), x=x)

    def with_self_loops(
        self, edge_index: Union[Tensor, SparseTensor], num_nodes: int
    ) -> Union[Tensor, SparseTensor]:
        """PyG's edges, with its self-loops where the layer adds some."""
        if not self.add_self_loops:
            return edge_index
        if isinstance(edge_index, SparseTensor):
            return torch_sparse.fill_diag(edge_index, 1.0)
        edge_index, _ = remove_self_loops(edge_index)
        edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
        return edge_index

    @torch.jit.unused
    @torch.compiler.disable
    def supervise(
        self,
        x: Tensor,
        edge_index: Any,
        graph: Any,
        negatives: OptTensor,
        num_nodes: int,
        batch: OptTensor,
    ) -> None:
        """Keeps the scores and the classes of edges and of others, for the loss."""
        edges = self.all_edges(edge_index, num_nodes)
        positives = self.positive_sampling(edges)
        # All edges are those of the graph, in whose order a SparseTensor's self-loops are last.
        known = positives is edges and not isinstance(edge_index, SparseTensor)
        scores = self.score_pairs(x, positives, graph if known else None)
        if negatives is None:
            negatives = self.negative_sampling(edges, num_nodes, batch)
        try:
            others = self.score_pairs(x, negatives, None)
        except (IndexError, TypeError, ValueError) as error:
            raise type(error)(str(error).replace("edge_index", "neg_edge_index", 1)) from error
        self.att_x = torch.cat([scores, others])
        self.att_y = self.att_x.new_zeros(self.att_x.size(0))
        self.att_y[: positives.size(1)] = 1.0

    def all_edges(self, edge_index: Any, num_nodes: int) -> Tensor:
        """The edges ``[2, E]``, self-loops included, in PyG's order."""
        if isinstance(edge_index, Graph):
            edges = torch.stack([edge_index.col.long(), destinations(edge_index)])
            return edges[:, order_of_edges(edge_index)]
        edge_index = self.with_self_loops(edge_index, num_nodes)
        if isinstance(edge_index, SparseTensor):
            dst, src, _ = edge_index.coo()
            return torch.stack([src, dst])
        return edge_index

    def score_pairs(self, x: Tensor, pairs: Tensor, graph: Optional[Graph]) -> Tensor:
        """The products ``[num_pairs, heads]`` that the loss is of; ``graph`` is of the pairs."""
        num_nodes = x.size(0)
        if not (self.may_fuse() and has_kernels(x)):
            ends = x[pairs[1]], x[pairs[0]]
            return self.get_attention(pairs[1], *ends, num_nodes=num_nodes, return_logits=True)
        if graph is None:
            graph = build_graph(pairs, num_nodes, num_nodes)
        products = sddmm(x, x, graph).index_select(0, order_of_edges(graph))
        products = in_dtype(products, dtype_of_sums(x))
        return products if self.attention_type == "MX" else products / math.sqrt(self.out_channels)
