"""The graph attention layer with dynamic attention."""

import typing
from typing import Any, Optional, Union

import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import OptPairTensor, OptTensor, PairTensor, Size, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor
from torch_geometric.utils.sparse import set_sparse_value

from ..graph import Graph, is_adjacency
from ..ops import additive_v2_attention, additive_v2_logits, logits_attention, spmm
from ._dtypes import full_precision, in_dtype_of
from ._edges import attention_weights, edge_features, with_loops
from ._fused import Given, NotGiven, may_score, no_fused_path, wide
from ._looped import LoopedConv

if typing.TYPE_CHECKING:
    from typing import overload
else:
    from torch.jit import _overload_method as overload


class GATv2Conv(LoopedConv, torch_geometric.nn.GATv2Conv):
    """``torch_geometric.nn.GATv2Conv`` with fused attention, and the same results.

    Graph attention (Brody et al., How Attentive are Graph Attention Networks?, 2022).

    Args:
        method: That of the fused operator, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.GATv2Conv``.
    """

    def __init__(
        self,
        in_channels: Union[int, tuple[int, int]],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: Optional[int] = None,
        fill_value: Union[float, Tensor, str] = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
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
            edge_dim,
            fill_value,
            bias,
            share_weights,
            residual,
            method=method,
            **kwargs,
        )

    @overload
    def forward(
        self,
        x: Union[Tensor, PairTensor],
        edge_index: Union[Tensor, SparseTensor, Graph],
        edge_attr: OptTensor = None,
        return_attention_weights: NotGiven = None,
    ) -> Tensor:
        pass

    @overload
    def forward(  # noqa: F811
        self,
        x: Union[Tensor, PairTensor],
        edge_index: Tensor,
        edge_attr: OptTensor = None,
        return_attention_weights: Given = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pass

    @overload
    def forward(  # noqa: F811
        self,
        x: Union[Tensor, PairTensor],
        edge_index: SparseTensor,
        edge_attr: OptTensor = None,
        return_attention_weights: Given = None,
    ) -> tuple[Tensor, SparseTensor]:
        pass

    def forward(  # noqa: F811
        self,
        x: Union[Tensor, PairTensor],
        edge_index: Union[Tensor, SparseTensor, Graph],
        edge_attr: OptTensor = None,
        return_attention_weights: Optional[bool] = None,
    ) -> Union[Tensor, tuple[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, SparseTensor]]:
        """``Σ_j α_ij W_l x_j``, with ``α = softmax_j(att·leaky_relu(W_r x_i + W_l x_j + W_e e))``.

        Args:
            x: ``[N, in_channels]``, or a pair of such for the sources and the destinations.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor`` or a
                torch.sparse tensor; or a :class:`pyg_dfgnn.Graph`, built with ``self_loops=True``
                where the layer adds self-loops.
            edge_attr: ``[E, edge_dim]``.
            return_attention_weights: Where it is True, attention weights ``[E, heads]`` (after
                dropout) are returned too; in scripted code, where types are static, also where it
                is False.

        Returns:
            ``[N_dst, heads * out_channels]`` (without ``concat``: ``[N_dst, out_channels]``), or,
            with attention weights, ``(out, (edge_index with self-loops, α))``, for a SparseTensor
            ``(out, adjacency with values α)``.

        Raises:
            IndexError: ``edge_index`` holds a node that is out of range, but for self-loops that
                the layer drops; compiled code asserts that on the device.
            ValueError: of a Graph with other numbers of nodes or self-loops, or where PyG's steps
                are needed, which take an ``edge_index``; or ``dropout`` is no probability.
        """
        if not torch.jit.is_scripting():  # None or True, as scripted code tells apart types only
            return_attention_weights = True if return_attention_weights else None
        x, residual = self.project(x)
        if not isinstance(return_attention_weights, bool):
            fused: Optional[Tensor] = None
            if not torch.jit.is_scripting() or self.scripts_fused:
                fused = self.attend_fused(edge_index, x, edge_attr)
            if fused is not None:
                return self.combine_heads(fused, residual, self.message_dtype(x))
            if torch.jit.is_scripting() and self.scripts_fused:
                raise ValueError(no_fused_path())
        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        if isinstance(edge_index, SparseTensor):
            adj_t, out, alpha = self.weigh_sparse(edge_index, x, edge_attr, None)
            out = self.combine_heads(out, residual, out.dtype)
            if isinstance(return_attention_weights, bool):
                return out, adj_t.set_value(alpha, layout="coo")
            return out
        edge_index, out, alpha = self.weigh(edge_index, x, edge_attr, None)
        out = self.combine_heads(out, residual, out.dtype)
        if isinstance(return_attention_weights, bool):
            if is_torch_sparse_tensor(edge_index):
                return out, (set_sparse_value(edge_index, alpha), alpha)
            return out, (edge_index, alpha)
        return out

    def project(self, x: Union[Tensor, PairTensor]) -> tuple[OptPairTensor, Optional[Tensor]]:
        """The projected sources and destinations ``[N, heads, out_channels]``, and the residual."""
        H, C = self.heads, self.out_channels
        residual: Optional[Tensor] = None
        if isinstance(x, Tensor):
            assert x.dim() == 2
            if not torch.jit.is_scripting():
                of_dst = None if self.share_weights else self.lin_r
                return self.project_at_once(x, self.lin_l, of_dst)
            if self.res is not None:
                residual = self.res(x)
            x_src = self.lin_l(x).view(-1, H, C)
            x_dst = x_src if self.share_weights else self.lin_r(x).view(-1, H, C)
            return (x_src, x_dst), residual

        x_src, x_dst = x
        assert x_src.dim() == 2
        assert x_dst is not None
        if self.res is not None:
            residual = self.res(x_dst)
        return (self.lin_l(x_src).view(-1, H, C), self.lin_r(x_dst).view(-1, H, C)), residual

    def operands(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        edge_attr: OptTensor,
        self_loops: bool,
    ) -> Optional[tuple[Graph, Optional[Tensor]]]:
        """The graph and features for its ``eid``; None where PyG's steps must run."""
        if self.lin_edge is not None and self_loops and is_adjacency(edge_index):
            return None  # PyG refuses it, or fills in values
        x_src, x_dst = x
        assert x_dst is not None
        if not may_score(self.att, x_src) or x_src.dtype != x_dst.dtype:
            return None
        graph = self.graph_of(edge_index, x, None, self_loops)
        if graph is None:
            return None
        edge_attr = edge_features(edge_index, edge_attr)
        if edge_attr is None:
            return graph, None
        if self.lin_edge is None:  # PyG asserts
            return None
        if not self.may_project(edge_attr, edge_index, graph):
            return None
        return graph, with_loops(edge_attr, graph, self.fill_value, self.flow)

    def message_dtype(self, x: OptPairTensor) -> torch.dtype:
        """That of PyG's."""
        return torch.promote_types(x[0].dtype, self.att.dtype)

    def logits(self, x: OptPairTensor, graph: Graph, features: OptTensor) -> Tensor:
        """The scores of the edges ``[E, heads]``, in the order of ``graph.col``."""
        x_src, x_dst = x
        assert x_dst is not None
        weight: Optional[Tensor] = None
        if self.lin_edge is not None and features is not None:
            features = in_dtype_of(features, x_src)
            weight = in_dtype_of(self.lin_edge.weight, x_src)
        att = self.att.squeeze(0)
        if att.dtype != x_src.dtype:
            att = full_precision(att)
        return additive_v2_logits(x_dst, x_src, att, graph, self.negative_slope, features, weight)

    def attend_fused(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        edge_attr: OptTensor,
    ) -> Optional[Tensor]:
        """The aggregated messages, in the dtype of ``x``, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, self.add_self_loops)
        if operands is None:
            return None
        graph, features = operands
        x_src, x_dst = x
        assert x_dst is not None
        dropout_p = self.dropout_p()
        if features is None:
            return additive_v2_attention(
                x_dst,
                x_src,
                self.att.squeeze(0),
                graph,
                self.negative_slope,
                dropout_p=dropout_p,
                method=self.method,
            )
        logits = self.logits(x, graph, features)
        return logits_attention(logits, x_src, graph, dropout_p, self.method)

    def attend_weighted(
        self,
        edge_index: Union[Tensor, SparseTensor],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[tuple[Tensor, Tensor]]:
        """The aggregated messages and the attention weights, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, self_loops)
        if operands is None:
            return None
        graph, features = operands
        x_src, _ = x
        logits = self.logits(x, graph, features)
        dropout_p = self.dropout_p()
        dtype = self.message_dtype(x)
        in_order, _, weights = attention_weights(logits, graph, dropout_p, dtype)
        return in_dtype_of(spmm(in_order, x_src, graph), weights), weights

    def attend(
        self,
        edge_index: Union[Tensor, SparseTensor],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
    ) -> tuple[Tensor, Tensor]:
        """PyG's steps: the aggregated messages, and the attention weights of the edges."""
        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        x_src, x_dst = x
        assert x_dst is not None
        pair, edges = (x_src, x_dst), wide(edge_index)
        # edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
        alpha = self.edge_updater(edges, x=pair, edge_attr=edge_attr)
        # propagate_type: (x: PairTensor, alpha: Tensor)
        return self.propagate(edges, x=pair, alpha=alpha), alpha
