"""The graph attention layer."""

import typing
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import (
    OptPairTensor,
    OptTensor,
    Size,
    SparseTensor,
    torch_sparse,
)
from torch_geometric.utils import add_self_loops, is_torch_sparse_tensor, remove_self_loops
from torch_geometric.utils.sparse import set_sparse_value

from ..graph import Graph, is_adjacency
from ..ops import additive_attention, spmm
from ._edges import (
    additive_logits,
    append_self_loops,
    attention_weights,
    edge_features,
    keeps_its_type,
    with_loops,
)
from ._fused import FusedConv, Given, NotGiven, no_fused_path

if typing.TYPE_CHECKING:
    from typing import overload
else:
    from torch.jit import _overload_method as overload


class GATConv(FusedConv, torch_geometric.nn.GATConv):
    """``torch_geometric.nn.GATConv`` with fused attention, and the same results.

    Args:
        method: The method of the fused operator, ``"auto"``, ``"smmf"`` or ``"pmf"``.

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
        """``Σ_j α_ij W x_j``, with ``α = softmax_j(leaky_relu(a_dst·W x_i + a_src·W x_j))``.

        Args:
            x: ``[N, in_channels]``, or a pair of such for the sources and the destinations, the
                latter perhaps None.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor``; or a
                :class:`pyg_dfgnn.Graph`, built with ``self_loops=True`` where the layer adds
                self-loops.
            edge_attr: ``[E, edge_dim]``.
            size: The number of sources and of destinations.
            return_attention_weights: Where it is True, attention weights ``[E, heads]`` (after
                dropout) are returned too; in scripted code, where types are static, also where it
                is False.

        Returns:
            ``[N_dst, heads * out_channels]`` (without ``concat``: ``[N_dst, out_channels]``), or,
            with attention weights, ``(out, (edge_index with self-loops, α))``, for a SparseTensor
            ``(out, adjacency with values α)``.
        """
        if not torch.jit.is_scripting():  # None or True, as scripted code tells apart types only
            return_attention_weights = True if return_attention_weights else None
        x_src, x_dst, residual = self.project(x)
        alpha_src = (x_src * self.att_src).sum(dim=-1)
        alpha_dst: Optional[Tensor] = None
        if x_dst is not None:
            alpha_dst = (x_dst * self.att_dst).sum(dim=-1)
        nodes, alphas = (x_src, x_dst), (alpha_src, alpha_dst)

        if not isinstance(return_attention_weights, bool):
            fused = self.attend_fused(edge_index, nodes, alphas, edge_attr, size)
            if fused is not None:
                return self.combine_heads(fused, residual)
            if torch.jit.is_scripting() and self.scripts_fused:
                raise ValueError(no_fused_path())

        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        if isinstance(edge_index, SparseTensor):
            if self.add_self_loops:
                if self.edge_dim is not None:
                    raise NotImplementedError(
                        "edge_index: a SparseTensor together with edge features and self-loops"
                    )
                edge_index = torch_sparse.set_diag(edge_index)
            weighted = self.attend_weighted(edge_index, nodes, alphas, edge_attr, size, False)
            if weighted is None:
                weighted = self.attend(edge_index, nodes, alphas, edge_attr, size)
            out = self.combine_heads(weighted[0], residual)
            if isinstance(return_attention_weights, bool):
                return out, edge_index.set_value(weighted[1], layout="coo")
            return out

        num_nodes = x_src.size(0) if x_dst is None else min(x_src.size(0), x_dst.size(0))
        if size is not None:
            num_nodes = min(size[0], size[1])
        self_loops = self.add_self_loops and isinstance(edge_index, Tensor)
        if not torch.jit.is_scripting() and self_loops and keeps_its_type(edge_index):
            edge_index, edge_attr = self.with_self_loops(edge_index, edge_attr, num_nodes)
            self_loops = False
        weighted = self.attend_weighted(edge_index, nodes, alphas, edge_attr, size, self_loops)
        if weighted is None:
            if torch.jit.is_scripting() and self.scripts_fused:
                raise ValueError(no_fused_path())
            if self_loops:
                edge_index, edge_attr = self.with_self_loops(edge_index, edge_attr, num_nodes)
            weighted = self.attend(edge_index, nodes, alphas, edge_attr, size)
        elif self_loops:
            edge_index = append_self_loops(edge_index, num_nodes)
        out = self.combine_heads(weighted[0], residual)
        if isinstance(return_attention_weights, bool):
            if is_torch_sparse_tensor(edge_index):
                return out, (set_sparse_value(edge_index, weighted[1]), weighted[1])
            return out, (edge_index, weighted[1])
        return out

    def with_self_loops(
        self, edge_index: Tensor, edge_attr: OptTensor, num_nodes: int
    ) -> tuple[Tensor, OptTensor]:
        """PyG's edges with its self-loops, and their features."""
        edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)
        return add_self_loops(
            edge_index, edge_attr, fill_value=self.fill_value, num_nodes=num_nodes
        )

    def project(
        self, x: Union[Tensor, OptPairTensor]
    ) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """The projected sources and destinations ``[N, heads, out_channels]``, and the residual."""
        H, C = self.heads, self.out_channels
        residual: Optional[Tensor] = None
        if isinstance(x, Tensor):
            assert x.dim() == 2, "Static graphs not supported in 'GATConv'"
            if self.res is not None:
                residual = self.res(x)
            if self.lin is not None:
                x_src = x_dst = self.lin(x).view(-1, H, C)
            else:
                x_src = self.lin_src(x).view(-1, H, C)
                x_dst = self.lin_dst(x).view(-1, H, C)
            return x_src, x_dst, residual

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
        return x_src, x_dst, residual

    def operands(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[tuple[Graph, Optional[Tensor]]]:
        """The graph and ``a_edge [E, heads]`` in its order; None where PyG's steps must run."""
        x_src, x_dst = x
        num_src, num_dst = x_src.size(0), num_destinations(edge_index, x_src, x_dst, size)
        if size is not None and isinstance(edge_index, Tensor) and size != (num_src, num_dst):
            return None
        if self.flow != "source_to_target" and num_src != num_dst:  # PyG takes N_src results
            return None
        if self.lin_edge is None:
            graph = self.fused_graph(edge_index, x_src, num_src, num_dst, self_loops)
            return None if graph is None else (graph, None)

        edge_attr = edge_features(edge_index, edge_attr)
        if self_loops and is_adjacency(edge_index):  # refused by PyG, or loops take other values
            return None
        graph = self.fused_graph(edge_index, x_src, num_src, num_dst, self_loops)
        if graph is None or edge_attr is None:
            return None if graph is None else (graph, None)
        if not self.may_project(edge_attr, graph):
            return None
        # att·(W e) = (Wᵀ att)·e, without W e for every edge
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        weight = (weight * self.att_edge.view(self.heads, self.out_channels, 1)).sum(dim=1)
        features = with_loops(edge_attr, graph, self.fill_value, self.flow)
        return graph, F.linear(features, weight).index_select(0, graph.eid)

    def attend_fused(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        alpha: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
    ) -> Optional[Tensor]:
        """The aggregated messages, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, size, self.add_self_loops)
        if operands is None:
            return None
        graph, a_edge = operands
        alpha_src, alpha_dst = alpha
        if alpha_dst is None:
            alpha_dst = alpha_src.new_zeros(graph.num_dst, self.heads)
        out = additive_attention(
            alpha_dst,
            alpha_src,
            x[0],
            graph,
            self.negative_slope,
            a_edge=a_edge,
            dropout_p=self.dropout if self.training else 0.0,
            method=self.method,
        )
        return out.to(alpha_src.dtype)

    def attend_weighted(
        self,
        edge_index: Union[Tensor, SparseTensor],
        x: OptPairTensor,
        alpha: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[tuple[Tensor, Tensor]]:
        """The aggregated messages and the attention weights, or None where PyG's steps must run."""
        operands = self.operands(edge_index, x, edge_attr, size, self_loops)
        if operands is None:
            return None
        graph, a_edge = operands
        logits = additive_logits(alpha[0], alpha[1], graph)
        if a_edge is not None:
            logits = logits + a_edge
        logits = F.leaky_relu(logits, self.negative_slope)
        dropout_p = self.dropout if self.training else 0.0
        in_order, _, weights = attention_weights(logits, graph, dropout_p, alpha[0])
        return spmm(in_order, x[0], graph).to(weights.dtype), weights

    def attend(
        self,
        edge_index: Union[Tensor, SparseTensor],
        x: OptPairTensor,
        alpha: OptPairTensor,
        edge_attr: OptTensor,
        size: Size,
    ) -> tuple[Tensor, Tensor]:
        """PyG's steps: the aggregated messages, and the attention weights of the edges."""
        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        weights = self.edge_updater(edge_index, alpha=alpha, edge_attr=edge_attr, size=size)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        return self.propagate(edge_index, x=x, alpha=weights, size=size), weights

    def combine_heads(self, out: Tensor, residual: OptTensor) -> Tensor:
        """From ``[N_dst, heads, out_channels]`` to the layer's output."""
        out = out.view(-1, self.heads * self.out_channels) if self.concat else out.mean(dim=1)
        if residual is not None:
            out = out + residual
        if self.bias is not None:
            out = out + self.bias
        return out


def num_destinations(
    edge_index: Union[Tensor, SparseTensor, Graph],
    x_src: Tensor,
    x_dst: Optional[Tensor],
    size: Size,
) -> int:
    """The number of destinations, where they have no features that of the graph. Scriptable."""
    if x_dst is not None:
        return x_dst.size(0)
    if isinstance(edge_index, Graph):
        return edge_index.num_dst
    if isinstance(edge_index, SparseTensor):
        return edge_index.size(0)
    return x_src.size(0) if size is None else size[1]
