"""The graph transformer layer."""

import typing
from typing import Any, Optional, Union

import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import OptTensor, PairTensor, SparseTensor

from ..graph import Graph
from ..ops import (
    dot_attention,
    message_attention,
    message_sddmm,
    message_spmm,
    sddmm,
    spmm,
)
from ._dtypes import dtype_of_sums, in_dtype, in_dtype_of
from ._edges import attention_weights, edge_features
from ._fused import FusedConv, Given, NotGiven, no_fused_path, wide
from ._linears import by_operator, combine_heads, concat_or_mean, is_lazy, linears

if typing.TYPE_CHECKING:
    from typing import overload
else:
    from torch.jit import _overload_method as overload


class TransformerConv(FusedConv, torch_geometric.nn.TransformerConv):
    """``torch_geometric.nn.TransformerConv`` with fused attention, and the same results.

    Graph attention (Shi et al., Masked Label Prediction, 2021).

    Args:
        method: That of the fused operator, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.TransformerConv``.
    """

    _alpha: OptTensor

    def __init__(
        self,
        in_channels: Union[int, tuple[int, int]],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: Optional[int] = None,
        bias: bool = True,
        root_weight: bool = True,
        *,
        method: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat,
            beta,
            dropout,
            edge_dim,
            bias,
            root_weight,
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
        """``out = Σ_j α_ij (v_j + W_e e) (+ root)``, ``α = softmax_j(q_i·(k_j + W_e e) / √C)``.

        Args:
            x: ``[N, in_channels]``, or a pair of such for the sources and the destinations.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor`` or a
                torch.sparse tensor; or a :class:`pyg_dfgnn.Graph`.
            edge_attr: ``[E, edge_dim]``.
            return_attention_weights: Where it is not None, attention weights ``[E, heads]`` (before
                dropout) are returned too.

        Returns:
            ``[N_dst, heads * out_channels]`` (without ``concat``: ``[N_dst, out_channels]``), or,
            with attention weights, ``(out, (edge_index, α))``, for a SparseTensor
            ``(out, adjacency with values α)``.

        Raises:
            IndexError: ``edge_index`` holds a node that is out of range; compiled code asserts
                that on the device.
            ValueError: of a Graph with other numbers of nodes or self-loops, or where PyG's steps
                are needed, which take an ``edge_index``; or ``dropout`` is no probability.
        """
        H, C = self.heads, self.out_channels
        if isinstance(x, Tensor):
            x = (x, x)
        query, key, value, root = self.project(x)
        query, key, value = query.view(-1, H, C), key.view(-1, H, C), value.view(-1, H, C)

        with_weights = isinstance(return_attention_weights, bool)
        fused: Optional[tuple[Tensor, Optional[Tensor]]] = None
        if not torch.jit.is_scripting() or self.scripts_fused:
            fused = self.attend_fused(edge_index, query, key, value, edge_attr, with_weights)
        if fused is not None:
            out, alpha = fused
            out = self.combine_heads(out, x[1], root, dtype_of_sums(out))
        else:
            out, alpha = self.attend(edge_index, query, key, value, edge_attr)
            out = self.combine_heads(out, x[1], root, out.dtype)
        if isinstance(return_attention_weights, bool):
            if isinstance(edge_index, Graph):
                raise ValueError(no_fused_path())
            assert alpha is not None
            if isinstance(edge_index, SparseTensor):
                return out, edge_index.set_value(alpha, layout="coo")
            return out, (edge_index, alpha)
        return out

    def project(self, x: PairTensor) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """Queries, keys and values ``[N, heads * out_channels]``, and what ``lin_skip`` makes where
        that comes with them."""
        if not torch.jit.is_scripting():
            return self.project_at_once(x)
        return self.lin_query(x[1]), self.lin_key(x[0]), self.lin_value(x[0]), None

    @torch.jit.unused
    def project_at_once(self, x: PairTensor) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """The same by an operator for each of ``x`` where that will do."""
        layers = [self.lin_query, self.lin_key, self.lin_value]
        # Whether numbers are drawn between those of lazy values and of lin_skip.
        draws = is_lazy(self.lin_skip) and (self.dropout_p() > 0 or is_lazy(self.lin_edge))
        if x[0] is x[1] and not draws:
            made = by_operator([*layers, self.lin_skip] if self.root_weight else layers, x[0])
            if made is not None:
                query, key, value, *root = made
                return query, key, value, root[0] if root else None
        # In PyG's order, in which lazy ones draw their weights, lin_skip behind the edges'.
        (query,) = linears(layers[:1], x[1])
        key, value = linears(layers[1:], x[0])
        return query, key, value, None

    def attend_fused(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: OptTensor,
        with_weights: bool,
    ) -> Optional[tuple[Tensor, Optional[Tensor]]]:
        """The aggregated messages and, ``with_weights``, α; None where PyG's steps must run."""
        edge_attr = edge_features(edge_index, edge_attr)
        if (edge_attr is None) != (self.lin_edge is None):  # PyG adds it to the values, or asserts
            if edge_attr is None and isinstance(edge_index, Graph):
                raise ValueError("edge_attr: expected the features of the edges, got None")
            return None
        if edge_attr is not None and edge_attr.dim() != 2:
            return None
        if query.dtype != key.dtype or key.dtype != value.dtype:
            return None
        graph = self.fused_graph(edge_index, value, value.size(0), query.size(0), False)
        if graph is None:
            return None
        dropout_p = self.dropout_p()
        if edge_attr is None and not with_weights:
            out = dot_attention(query, key, value, graph, dropout_p=dropout_p, method=self.method)
            return out, None

        features: Optional[Tensor] = None
        projection: Optional[Tensor] = None
        if self.lin_edge is not None and edge_attr is not None:
            if not self.may_project(edge_attr, edge_index, graph):
                return None
            features = edge_attr.view(graph.eid.size(0), self.lin_edge.weight.size(1))
            features = in_dtype_of(features, query)
            projection = in_dtype_of(self.lin_edge.weight, query)
            if not with_weights:
                out = message_attention(
                    query, key, value, features, projection, graph, dropout_p=dropout_p
                )
                return out, None
            logits = message_sddmm(query, key, features, projection, graph)
        else:
            logits = sddmm(query, key, graph)
        dtype = dtype_of_sums(value)
        scale = self.out_channels**-0.5
        dropped, alpha, _ = attention_weights(logits, graph, dropout_p, dtype, scale)
        if features is not None and projection is not None:
            return message_spmm(dropped, value, features, projection, graph), alpha
        return spmm(dropped, value, graph), alpha

    def attend(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: OptTensor,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """The aggregated messages and α by PyG's steps."""
        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        edges = wide(edge_index)
        # propagate_type: (query: Tensor, key:Tensor, value: Tensor, edge_attr: OptTensor)
        out = self.propagate(edges, query=query, key=key, value=value, edge_attr=edge_attr)
        alpha = self._alpha
        self._alpha = None
        return out, alpha

    def combine_heads(
        self, out: Tensor, x_dst: Tensor, root: Optional[Tensor], dtype: torch.dtype
    ) -> Tensor:
        """From ``[N_dst, heads, out_channels]`` to the layer's output, in that dtype."""
        width = self.heads * self.out_channels if self.concat else None
        if self.root_weight and root is None:
            root = self.lin_skip(x_dst)
        if root is None or self.lin_beta is None:
            return combine_heads(out, width, root, None, dtype)
        out = in_dtype(concat_or_mean(out, width, dtype), dtype)
        beta = self.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
        return beta * root + (1 - beta) * out
