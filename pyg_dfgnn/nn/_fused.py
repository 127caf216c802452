"""What the layers share: when a call runs fused, and on which graph.

A layer of ours is PyG's own layer class, with the steps between projecting the nodes and combining
the heads replaced by one fused operator. Where a call needs more than the operator gives (edge
features, attention weights, explainers, hooks, other aggregations, …) those steps are PyG's,
unchanged.
"""

from typing import TYPE_CHECKING, Any, Optional, TypeAlias, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import SparseTensor

from ..graph import Graph, build_graph, is_convertible

# The type of an argument whose presence decides the type of the result, in the overloads that
# TorchScript chooses by type: it is absent (None, which TorchScript has no type for) or a bool.
if TYPE_CHECKING:
    NotGiven: TypeAlias = None
    Given: TypeAlias = Any
else:
    NotGiven = Optional[Tensor]
    Given = bool

# What a subclass may define to change how messages are made; the fused operators would not call it.
_STEPS = (
    "propagate",
    "edge_updater",
    "message",
    "aggregate",
    "update",
    "edge_update",
    "message_and_aggregate",
)

_HOOKS = (
    "_propagate_forward_pre_hooks",
    "_propagate_forward_hooks",
    "_message_forward_pre_hooks",
    "_message_forward_hooks",
    "_aggregate_forward_pre_hooks",
    "_aggregate_forward_hooks",
    "_message_and_aggregate_forward_pre_hooks",
    "_message_and_aggregate_forward_hooks",
    "_edge_update_forward_pre_hooks",
    "_edge_update_forward_hooks",
)


class FusedConv(MessagePassing):
    """The part of a layer that says whether a call runs fused; it goes before PyG's layer.

    Attributes:
        method: ``"auto"``, ``"smmf"`` or ``"pmf"``, as in :mod:`pyg_dfgnn.ops`.
    """

    method = "auto"
    has_own_steps = False
    __constants__ = ("has_own_steps", "method")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.has_own_steps = cls.has_own_steps or any(step in vars(cls) for step in _STEPS)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        super()._set_jittable_templates(raise_on_error)
        # PyG takes the propagate that it finds on the class for the generic one, which explainers
        # need; here it finds the specialised one of PyG's layer.
        type(self)._orig_propagate = MessagePassing.propagate

    def fused_graph(
        self,
        edge_index: Union[Tensor, SparseTensor, Graph],
        value: Tensor,
        num_src: int,
        num_dst: int,
        self_loops: bool,
    ) -> Optional[Graph]:
        """The graph to run the fused operator on, or None where PyG's steps must run. Scriptable.

        Args:
            edge_index: The layer's argument.
            value: What is aggregated; its dtype and device must have kernels.
            num_src: The number of source nodes.
            num_dst: The number of destination nodes.
            self_loops: Whether the layer puts one self-loop per node in the place of those of the
                graph.

        Raises:
            ValueError: a Graph was given that does not fit.
            IndexError: ``edge_index`` holds a node that is out of range.
        """
        if not self.sums_messages() or not has_kernels(value):
            return None
        if isinstance(edge_index, Graph):
            if (
                edge_index.num_src != num_src
                or edge_index.num_dst != num_dst
                or edge_index.self_loops != self_loops
            ):
                raise ValueError(
                    f"edge_index: expected a Graph with num_src={num_src}, num_dst={num_dst} and "
                    f"self_loops={self_loops}, got one with num_src={edge_index.num_src}, "
                    f"num_dst={edge_index.num_dst} and self_loops={edge_index.self_loops}"
                )
            return edge_index

        if has_edge_features(edge_index) or not is_convertible(
            edge_index, num_src, num_dst, self.flow
        ):
            return None
        return build_graph(edge_index, num_src, num_dst, self_loops, self.flow)

    def sums_messages(self) -> bool:
        """Whether the layer sums PyG's messages, and nobody looks at them. Scriptable."""
        if self.has_own_steps:
            return False
        if not torch.jit.is_scripting():
            return self._sums_messages_in_python()
        if isinstance(self.aggr, str):
            return self.aggr == "add" or self.aggr == "sum"
        return False

    @torch.jit.unused
    def _sums_messages_in_python(self) -> bool:
        if (
            not isinstance(self.aggr_module, SumAggregation)
            or self.explain is True
            or self.decomposed_layers > 1
        ):
            return False
        if torch.compiler.is_compiling():  # PyG's compiled layers call no hooks either
            return True
        return not (
            any(getattr(self, hooks) for hooks in _HOOKS)
            or any(step in self.__dict__ for step in _STEPS if step != "propagate")
            or getattr(self.propagate, "__func__", None) is not type(self)._jinja_propagate
            or torch._C._functorch.peek_interpreter_stack() is not None
            or forward_ad._current_level >= 0
        )


def has_kernels(value: Tensor) -> bool:
    """Whether the operators run on values of this dtype and device. Scriptable."""
    dtype = value.dtype
    has_dtype = (
        dtype == torch.float32
        or dtype == torch.float16
        or dtype == torch.bfloat16
        or dtype == torch.float64
    )
    has_device = (
        value.is_cpu or value.is_meta or (value.is_cuda and torch.ops.dfgnn.cuda_version() > 0)
    )
    return has_dtype and has_device


def has_edge_features(adj_t: Union[Tensor, SparseTensor]) -> bool:
    """Whether this is an adjacency whose values PyG takes for edge features. Scriptable."""
    if isinstance(adj_t, SparseTensor):
        value = adj_t.storage.value()
        return value is not None and value.dim() > 1
    return False


def as_in_autocast(out: Tensor) -> Tensor:
    """Messages in the dtype of PyG's, whose sums are float32 in autocast on CUDA. Scriptable."""
    is_half = out.dtype == torch.float16 or out.dtype == torch.bfloat16
    return out.float() if is_half and out.is_cuda and torch.is_autocast_enabled() else out


def no_fused_path() -> str:
    """The message of the error about a Graph where PyG's steps must run. Scriptable."""
    return (
        "edge_index: a Graph only serves fused attention; give the edge_index itself for edge "
        "features, attention weights, explainers, hooks, aggregations other than 'add', or dtypes "
        "and devices without kernels"
    )
