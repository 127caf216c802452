"""The graph attention layer."""

import typing
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import OptPairTensor, OptTensor, Size, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor
from torch_geometric.utils.sparse import set_sparse_value

from ..graph import Graph, is_adjacency
from ..ops import additive_attention, additive_logits, edge_sddmm, gat_scores, node_scores, spmm
from ._dtypes import dtype_of_messages, in_dtype_of
from ._edges import attention_weights, edge_features, has_rows, num_edges, with_loops
from ._fused import Given, NotGiven, may_score, no_fused_path, wide
from ._looped import LoopedConv

if typing.TYPE_CHECKING:
    from typing import overload
else:
    from torch.jit import _overload_method as overload


class GATConv(LoopedConv, torch_geometric.nn.GATConv):
    """``torch_geometric.nn.GATConv`` with fused attention, and the same results.

    Graph attention (Veličković et al., Graph Attention Networks, 2018).

    Args:
        method: That of the fused operator, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.GATConv``.
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
            residual,
            method=method,
            **kwargs,
        )

    @overload
    def forward(
        self,
        x: Union[Tensor, OptPairTensor],
        edge_index: Union[Tensor, SparseTensor, Graph],
        edge_attr: OptTensor = None,
        size: Size = None,
        return_attention_weights: NotGiven = None,
    ) -> Tensor:
        pass

    @overload
    def forward(  # noqa: F811
        self,
        x: Union[Tensor, OptPairTensor],
        edge_index: Tensor,
        edge_attr: OptTensor = None,
        size: Size = None,
        return_attention_weights: Given = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pass

    @overload
    def forward(  # noqa: F811
        self,
        x: Union[Tensor, OptPairTensor],
        edge_index: SparseTensor,
        edge_attr: OptTensor = None,
        size: Size = None,
        return_attention_weights: Given = None,
    ) -> tuple[Tensor, SparseTensor]:
        pass

    def forward(  # noqa: F811
        self,
        x: Union[Tensor, OptPairTensor],
        edge_index: Union[Tensor, SparseTensor, Graph],
        edge_attr: OptTensor = None,
        size: Size = None,
        return_attention_weights: Optional[bool] = None,
    ) -> Union[Tensor, tuple[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, SparseTensor]]:
        """``Σ_j α_ij W x_j``, ``α = softmax_j(leaky_relu(a_dst·W x_i + a_src·W x_j + a_e·W_e e))``.

        Args:
            x: ``[N, in_channels]``, or a pair of such for the sources and the destinations, the
                latter perhaps None.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor`` or a
                torch.sparse tensor; or a :class:`pyg_dfgnn.Graph`, built with ``self_loops=True``
                where the layer adds self-loops.
            edge_attr: ``[E, edge_dim]``.
            size: The number of sources and of destinations.
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
                fused = self.attend_fused(edge_index, x, edge_attr, size)
            if fused is not None:
                return self.combine_heads(fused, residual, self.message_dtype(x))
            if torch.jit.is_scripting() and self.scripts_fused:
                raise ValueError(no_fused_path())
        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        if isinstance(edge_index, SparseTensor):
            adj_t, out, alpha = self.weigh_sparse(edge_index, x, edge_attr, size)
            out = self.combine_heads(out, residual, out.dtype)
            if isinstance(return_attention_weights, bool):
                return out, adj_t.set_value(alpha, layout="coo")
            return out
        edge_index, out, alpha = self.weigh(edge_index, x, edge_attr, size)
        out = self.combine_heads(out, residual, out.dtype)
        if isinstance(return_attention_weights, bool):
            if is_torch_sparse_tensor(edge_index):
                return out, (set_sparse_value(edge_index, alpha), alpha)
            return out, (edge_index, alpha)
        return out

    def project(self, x: Union[Tensor, OptPairTensor]) -> tuple[OptPairTensor, Optional[Tensor]]:
        """The projected sources and destinations ``[N, heads, out_channels]``, and the residual."""
        H, C = self.heads, self.out_channels
        residual: Optional[Tensor] = None
        if isinstance(x, Tensor):
            assert x.dim() == 2, "Static graphs not supported in 'GATConv'"
            if not torch.jit.is_scripting():
                if self.lin is not None:
                    return self.project_at_once(x, self.lin, None)
                return self.project_at_once(x, self.lin_src, self.lin_dst)
            if self.res is not None:
                residual = self.res(x)
            if self.lin is not None:
                x_src = x_dst = self.lin(x).view(-1, H, C)
            else:
                x_src = self.lin_src(x).view(-1, H, C)
                x_dst = self.lin_dst(x).view(-1, H, C)
            return (x_src, x_dst), residual

        x_src, x_dst = x
        assert x_src.dim() == 2, "Static graphs not supported in 'GATConv'"
        if x_dst is not None and self.res is not None:
            residual = self.res(x_dst)
        if self.lin is not None:
            x_src = self.lin(x_src).view(-1, H, C)
            if x_dst is not None:
                x_dst = self.lin(x_dst).view(-1, H, C)
        else:
            x_src = self.lin_src(x_src).view(-1, H, C)
            if x_dst is not None:
                x_dst = self.lin_dst(x_dst).view(-1, H, C)
        return (x_src, x_dst), residual

    def message_dtype(self, x: OptPairTensor) -> torch.dtype:
        """That of PyG's."""
        return dtype_of_messages(x[0], self.att_src)

    def scalars(self, x: OptPairTensor) -> OptPairTensor:
        """The terms of the logits ``[N, heads]`` of sources and destinations."""
        x_src, x_dst = x
        alpha_src = (x_src * self.att_src).sum(dim=-1)
        if x_dst is None:
            return alpha_src, None
        return alpha_src, (x_dst * self.att_dst).sum(dim=-1)

    def scalars_of(self, graph: Graph, x: OptPairTensor) -> tuple[Tensor, Tensor]:
        """The same by one operator, of destinations without features 0."""
        x_src, x_dst = x
        att_src, att_dst = self.att_src.squeeze(0), self.att_dst.squeeze(0)
        if x_dst is not None:
            return gat_scores(x_src, x_dst, att_src, att_dst)
        alpha_src = node_scores(x_src, att_src)
        return alpha_src, alpha_src.new_zeros(graph.num_dst, self.heads)

    def operands(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[tuple[Graph, Optional[Tensor]]]:
        """The graph and ``a_edge [E, heads]`` in its order; None where PyG's steps must run."""
        if self.lin_edge is not None and self_loops and is_adjacency(edge_index):
            return None  # PyG refuses it, or fills in values
        if not may_score(self.att_src, x[0]) or not may_score(self.att_dst, x[0]):
            return None
        if not may_score(self.att_edge, x[0]):
            return None
        graph = self.graph_of(edge_index, x, size, self_loops)
        if graph is None:
            return None
        if self.lin_edge is None:
            if self_loops and edge_attr is not None and not has_rows(edge_attr, num_edges(graph)):
                return None  # PyG refuses it, though it is of no use
            return graph, None
        edge_attr = edge_features(edge_index, edge_attr)
        if edge_attr is None:
            return graph, None
        if not self.may_project(edge_attr, edge_index, graph):
            return None
        # att·(W e) = (Wᵀ att)·e, without W e for every edge
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        weight = (weight * self.att_edge.view(self.heads, self.out_channels, 1)).sum(dim=1)
        features = with_loops(edge_attr, graph, self.fill_value, self.flow)
        return graph, edge_sddmm(weight.unsqueeze(0), in_dtype_of(features, weight), graph)

    def attend_fused(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
    ) -> Optional[Tensor]:
        """The aggregated messages, in the dtype of ``x``, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, size, self.add_self_loops)
        if operands is None:
            return None
        graph, a_edge = operands
        alpha_src, alpha_dst = self.scalars_of(graph, x)
        return additive_attention(
            alpha_dst,
            alpha_src,
            x[0],
            graph,
            self.negative_slope,
            a_edge=a_edge,
            dropout_p=self.dropout_p(),
            method=self.method,
        )

    def attend_weighted(
        self,
        edge_index: Union[Tensor, SparseTensor],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[tuple[Tensor, Tensor]]:
        """The aggregated messages and the attention weights, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, size, self_loops)
        if operands is None:
            return None
        graph, a_edge = operands
        alpha_src, alpha_dst = self.scalars_of(graph, x)
        logits = additive_logits(alpha_dst, alpha_src, graph)
        if a_edge is not None:
            logits = logits + a_edge
        logits = F.leaky_relu(logits, self.negative_slope)
        dropout_p = self.dropout_p()
        dtype = self.message_dtype(x)
        in_order, _, weights = attention_weights(logits, graph, dropout_p, dtype)
        return in_dtype_of(spmm(in_order, x[0], graph), weights), weights

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
        edges = wide(edge_index)
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        alpha = self.edge_updater(edges, alpha=self.scalars(x), edge_attr=edge_attr, size=size)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        return self.propagate(edges, x=x, alpha=alpha, size=size), alpha
