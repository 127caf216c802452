"""The layer of attention-based graph neural networks."""

from typing import Any, Union

import torch
import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.typing import SparseTensor, torch_sparse
from torch_geometric.utils import add_self_loops, remove_self_loops

from ..graph import Graph
from ..ops import cosine_attention
from ._dtypes import dtype_of_sums, in_dtype
from ._fused import FusedConv, no_fused_path, of_its_own, wide


class AGNNConv(FusedConv, torch_geometric.nn.AGNNConv):
    """``torch_geometric.nn.AGNNConv`` with fused attention, and the same results.

    Graph attention (Thekumparampil et al., Attention-based Graph Neural Network, 2018).

    Args:
        method: That of the fused operator, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    All other arguments are those of ``torch_geometric.nn.AGNNConv``.
    """

    def __init__(
        self,
        requires_grad: bool = True,
        add_self_loops: bool = True,
        *,
        method: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(requires_grad, add_self_loops, method=method, **kwargs)

    def forward(self, x: Tensor, edge_index: Union[Tensor, SparseTensor, Graph]) -> Tensor:
        """``out = Σ_j α_ij x_j``, with ``α = softmax_j(beta · cos(x_i, x_j))``.

        Args:
            x: ``[N, F]``.
            edge_index: ``[2, E]``; or the transposed adjacency as a ``SparseTensor`` or a
                torch.sparse tensor; or a :class:`pyg_dfgnn.Graph`, built with ``self_loops=True``
                where the layer adds self-loops.

        Returns:
            ``[N, F]``.

        Raises:
            IndexError: ``edge_index`` holds a node that is out of range, but for self-loops that
                the layer drops; compiled code asserts that on the device.
            ValueError: of a Graph with other numbers of nodes or self-loops, or where PyG's steps
                are needed, which take an ``edge_index``.
        """
        if x.dim() == 2:
            graph = self.fused_graph(edge_index, x, x.size(0), x.size(0), self.add_self_loops)
            if graph is not None:
                features = to_save(x).unsqueeze(1)
                out = cosine_attention(features, features, self.beta, graph, method=self.method)
                out = in_dtype(out.squeeze(1), torch.promote_types(x.dtype, self.beta.dtype))
                return of_its_own(in_dtype(out, dtype_of_sums(out)))

        if torch.jit.is_scripting() and self.scripts_fused:
            raise ValueError(no_fused_path())
        if isinstance(edge_index, Graph):
            raise ValueError(no_fused_path())
        if self.add_self_loops:
            if isinstance(edge_index, SparseTensor):
                edge_index = torch_sparse.set_diag(edge_index)
            elif isinstance(edge_index, Tensor):
                edge_index, _ = remove_self_loops(edge_index)
                edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(self.node_dim))
        # propagate_type: (x: Tensor, x_norm: Tensor)
        return self.propagate(wide(edge_index), x=x, x_norm=F.normalize(x, p=2.0, dim=-1))


def to_save(x: Tensor) -> Tensor:
    """What autograd may save, as the operator needs and PyG's steps do not. Scriptable."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code does not ask)
        if not torch.compiler.is_compiling() and x.is_inference() and torch.is_grad_enabled():
            return x.clone()
    return x
