"""What the layers that add self-loops and return attention weights share: GATConv and GATv2Conv."""

from typing import Optional, Union

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import OptPairTensor, OptTensor, Size, SparseTensor, torch_sparse
from torch_geometric.utils import add_self_loops, is_torch_sparse_tensor, remove_self_loops

from ..graph import Graph
from ._edges import append_self_loops
from ._fused import FusedConv, no_fused_path, wide_tensor
from ._linears import combine_heads, linears


class LoopedConv(FusedConv):
    """A layer with ``attend_weighted``, and ``attend`` for calls that it does not take."""

    def __prepare_scriptable__(self) -> FusedConv:
        if getattr(self, "fill_value", None) is None:  # as PyG's add_self_loops has it
            self.fill_value = 1.0
        return super().__prepare_scriptable__()

    def graph_of(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        x: OptPairTensor,
        size: Size,
        self_loops: bool,
    ) -> Optional[Graph]:
        """The graph to run fused on, or None where PyG's steps must run. Scriptable."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no EdgeIndex)
            if x[1] is None and isinstance(edge_index, EdgeIndex):  # PyG looks at its sizes
                return None
        num_src, num_dst = x[0].size(0), num_destinations(edge_index, x, size)
        if size is not None and isinstance(edge_index, Tensor) and size != (num_src, num_dst):
            return None
        if self.flow != "source_to_target" and num_src != num_dst:  # PyG takes N_src results
            return None
        return self.fused_graph(edge_index, x[0], num_src, num_dst, self_loops)

    def weigh_sparse(
        self, adj_t: SparseTensor, x: OptPairTensor, edge_attr: OptTensor, size: Size
    ) -> tuple[SparseTensor, Tensor, Tensor]:
        """The adjacency with self-loops, the aggregated messages, the attention weights."""
        if self.add_self_loops:
            if self.edge_dim is not None:
                raise NotImplementedError(
                    "edge_index: expected a tensor, as there are self-loops and edge features, "
                    "got a SparseTensor"
                )
            adj_t = torch_sparse.set_diag(adj_t)
        weighted: Optional[tuple[Tensor, Tensor]] = None
        if not torch.jit.is_scripting() or self.scripts_fused:
            weighted = self.attend_weighted(adj_t, x, edge_attr, size, False)
        if weighted is None:
            weighted = self.attend(adj_t, x, edge_attr, size)
        return adj_t, weighted[0], weighted[1]

    def weigh(
        self, edge_index: Tensor, x: OptPairTensor, edge_attr: OptTensor, size: Size
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The edges with self-loops, the aggregated messages, the attention weights."""
        x_src, x_dst = x
        num_nodes = x_src.size(0) if x_dst is None else min(x_src.size(0), x_dst.size(0))
        self_loops = self.add_self_loops and isinstance(edge_index, Tensor)
        if size is not None and self_loops:
            num_nodes = min(size[0], size[1])
        if not torch.jit.is_scripting() and self_loops and keeps_its_type(edge_index):
            edge_index, edge_attr = self.with_self_loops(edge_index, edge_attr, num_nodes)
            self_loops = False
        weighted: Optional[tuple[Tensor, Tensor]] = None
        if not torch.jit.is_scripting() or self.scripts_fused:
            weighted = self.attend_weighted(edge_index, x, edge_attr, size, self_loops)
        if weighted is not None:
            if self_loops:
                edge_index = append_self_loops(edge_index, num_nodes)
            return edge_index, weighted[0], weighted[1]
        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        if self_loops:
            edge_index, edge_attr = self.with_self_loops(edge_index, edge_attr, num_nodes)
        out, alpha = self.attend(edge_index, x, edge_attr, size)
        return edge_index, out, alpha

    def with_self_loops(
        self, edge_index: Tensor, edge_attr: OptTensor, num_nodes: int
    ) -> tuple[Tensor, OptTensor]:
        """PyG's edges with its self-loops, and their features."""
        edge_index, edge_attr = remove_self_loops(wide_tensor(edge_index), edge_attr)
        return add_self_loops(
            edge_index, edge_attr, fill_value=self.fill_value, num_nodes=num_nodes
        )

    @torch.jit.unused
    def project_at_once(
        self, x: Tensor, of_src: torch.nn.Module, of_dst: Optional[torch.nn.Module]
    ) -> tuple[OptPairTensor, Optional[Tensor]]:
        """The sources and destinations, one tensor where ``of_dst`` is None, and the residual, by
        one operator where that will do."""
        residual, x_src, x_dst = linears([self.res, of_src, of_dst], x)
        x_src = x_src.view(-1, self.heads, self.out_channels)
        if x_dst is None:
            return (x_src, x_src), residual
        return (x_src, x_dst.view(-1, self.heads, self.out_channels)), residual

    def combine_heads(self, out: Tensor, residual: OptTensor, dtype: torch.dtype) -> Tensor:
        """From ``[N_dst, heads, out_channels]`` to the layer's output, in that dtype."""
        width = self.heads * self.out_channels if self.concat else None
        return combine_heads(out, width, residual, self.bias, dtype)


def keeps_its_type(edge_index: Tensor) -> bool:
    """Whether PyG returns an EdgeIndex or a torch.sparse tensor, self-loops sorted in, for this."""
    return isinstance(edge_index, EdgeIndex) or is_torch_sparse_tensor(edge_index)


def num_destinations(
    edge_index: Union[Tensor, SparseTensor, Graph], x: OptPairTensor, size: Size
) -> int:
    """The number of destinations, where they have no features that of the graph. Scriptable."""
    x_src, x_dst = x
    if x_dst is not None:
        return x_dst.size(0)
    if isinstance(edge_index, Graph):
        return edge_index.num_dst
    if isinstance(edge_index, SparseTensor):
        return edge_index.size(0)
    if size is None or size[1] is None:
        return x_src.size(0)
    return size[1]
