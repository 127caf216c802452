"""What the layers share: when a call runs fused, and on which graph.

A layer of ours is PyG's own layer class, with the steps between projecting the nodes and combining
the heads replaced by fused operators. Where a call needs more than the operators give (explainers,
hooks, other aggregations, …) those steps are PyG's, unchanged.
"""

from typing import TYPE_CHECKING, Any, Optional, TypeAlias, Union

import torch
import torch_geometric.nn
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import SparseTensor

from .. import _library
from .._dtype_names import dtype_name
from ..graph import Graph, build_graph, is_convertible
from ._dtypes import is_autocast, is_half
from ._edges import num_edges

# The type of an argument whose presence decides the type of the result, in the overloads that
# TorchScript chooses by type: it is absent (None, which TorchScript has no type for) or a bool.
if TYPE_CHECKING:
    NotGiven: TypeAlias = None
    Given: TypeAlias = Any
else:
    NotGiven = Optional[Tensor]
    Given = bool

METHODS = ("auto", "smmf", "pmf", "tile", "resident")

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# What a subclass may define to change how messages are made; the fused operators would not call it.
_STEPS = (
    "propagate",
    "edge_updater",
    "message",
    "aggregate",
    "update",
    "edge_update",
    "message_and_aggregate",
    "get_attention",  # SuperGATConv's
)

# What FusedConv.set_up puts into a layer.
OWN_ATTRIBUTES = ("method", "scripts_fused", "__jit_ignored_attributes__")

_NUMBERS = ("dropout", "negative_slope", "fill_value")

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

    Args:
        method: ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.
        args: The arguments of PyG's layer, like ``kwargs``.
    """

    dropout: float  # of layers that have it
    method = "auto"
    has_own_steps = False
    # Where the layer's arguments do not ask for PyG's steps, TorchScript leaves them out: with them
    # a saved model would need the operators of torch_scatter wherever it is loaded.
    scripts_fused = False
    __constants__ = ("method", "scripts_fused")

    def __init__(self, *args: Any, method: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_up(method)

    def set_up(self, method: str) -> None:
        """Gives a layer what ours have on top of PyG's; also one that just became ours in place."""
        check_method(method)
        self.method = method
        for name in _NUMBERS:  # for TorchScript, to which an integer is none
            value = getattr(self, name, None)
            if isinstance(value, int):
                setattr(self, name, float(value))

    def __prepare_scriptable__(self) -> "FusedConv":
        """The layer for TorchScript, which asks nothing when it runs: all is answered here, by what
        the layer is now."""
        self.scripts_fused = self._sums_messages() and self._projects_edges()
        self.__jit_ignored_attributes__ = ["aggr_module"] if self.scripts_fused else []
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # PyG puts a propagate of each layer's own into its class: those of layers say nothing here.
        new = [cls, *(c for c in cls.__mro__ if not issubclass(c, FusedConv))]
        own = [c for c in new if c.__module__.split(".")[0] != "torch_geometric"]
        defined = any(step in vars(c) for c in own for step in _STEPS)
        cls.has_own_steps = cls.has_own_steps or defined

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
        if not self.may_fuse():
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

        if not torch.jit.is_scripting():  # scripted code fails where PyG's steps might not
            if not has_kernels(value):
                return None
            if not is_convertible(edge_index, num_src, num_dst, self.flow):
                return None
        return build_graph(edge_index, num_src, num_dst, self_loops, self.flow)

    def may_fuse(self) -> bool:
        """Whether the layer sums PyG's messages, and nobody looks at them. Scriptable."""
        if not torch.jit.is_scripting():
            if self.explain is True or self.decomposed_layers > 1 or not self._sums_messages():
                return False
            if self._has_replaced_steps() or is_transformed():
                return False
            # PyG's compiled layers call no hooks either.
            return torch.compiler.is_compiling() or not self._is_observed()
        return self.scripts_fused

    def dropout_p(self) -> float:
        """The probability with which this call drops attention weights. Scriptable.

        Raises:
            ValueError: ``dropout`` is no probability, in evaluation too, as in PyG.
        """
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout: expected a probability in [0, 1], got {self.dropout}")
        return self.dropout if self.training else 0.0

    def may_project(
        self,
        edge_attr: Tensor,
        edge_index: Union[Tensor, SparseTensor, Graph],
        graph: Graph,
    ) -> bool:
        """Whether ``lin_edge`` multiplies fitting features by its weight, and no more. Scriptable.

        Args:
            edge_attr: The features, of any shape.
            edge_index: What they belong to.
            graph: Made of it.

        Raises:
            ValueError: ``edge_attr`` does not fit, and there are no steps of PyG's to take it or
                to say so: in TorchScript, and for a Graph.
        """
        if not torch.jit.is_scripting():
            return self._may_project(edge_attr, isinstance(edge_index, Graph), graph)
        lin_edge = self.lin_edge
        assert lin_edge is not None
        check_features(edge_attr, lin_edge.weight, graph)
        return True

    @torch.jit.unused
    def _may_project(self, edge_attr: Tensor, must_fit: bool, graph: Graph) -> bool:
        if not self._projects_edges():
            return False
        weight = self.lin_edge.weight
        if must_fit:
            if edge_attr.layout != torch.strided:
                raise ValueError(f"edge_attr: expected a dense tensor, got {edge_attr.layout}")
            check_features(edge_attr, weight, graph)
        return (
            has_shape_of_features(edge_attr, weight, graph)
            and has_dtype_of(edge_attr, weight)
            and edge_attr.dtype in _DTYPES
            and edge_attr.layout == torch.strided
        )

    @torch.jit.unused
    def _projects_edges(self) -> bool:
        """Whether ``lin_edge``, if there is one, multiplies by its weight."""
        lin = getattr(self, "lin_edge", None)
        return lin is None or (is_linear(lin) and lin.bias is None)

    @torch.jit.unused
    def _sums_messages(self) -> bool:
        return (
            not self.has_own_steps
            and self.node_dim in (0, -2)
            and type(self.aggr_module) is SumAggregation
            and not is_watched(self.aggr_module)
        )

    @torch.jit.unused
    def _has_replaced_steps(self) -> bool:
        """Whether the object has steps of its own, which its class does not know."""
        return any(step in self.__dict__ for step in _STEPS if step != "propagate")

    @torch.jit.unused
    def _is_observed(self) -> bool:
        """Whether there are hooks that the operators do not know."""
        return (
            any(getattr(self, hooks) for hooks in _HOOKS)
            or getattr(self.propagate, "__func__", None) is not type(self)._jinja_propagate
        )


def has_shape_of_features(edge_attr: Tensor, weight: Tensor, graph: Graph) -> bool:
    """Whether these are features of a graph's edges as a weight ``[out, edge_dim]`` takes them.
    Scriptable."""
    width = edge_attr.size(1) if edge_attr.dim() == 2 else 1
    if edge_attr.dim() != 2 and edge_attr.dim() != 1:
        return False
    return edge_attr.size(0) == num_edges(graph) and width == weight.size(1) and width > 0


def has_dtype_of(edge_attr: Tensor, weight: Tensor) -> bool:
    """Whether a matrix product takes both. Scriptable."""
    return edge_attr.dtype == weight.dtype or (
        edge_attr.is_floating_point() and is_autocast(edge_attr)
    )


def check_features(edge_attr: Tensor, weight: Tensor, graph: Graph) -> None:
    """Scriptable.

    Raises:
        ValueError: The features do not fit.
    """
    if not has_shape_of_features(edge_attr, weight, graph):
        expected = [num_edges(graph), weight.size(1)]
        raise ValueError(
            f"edge_attr: expected [E, edge_dim] = {expected}, got shape {list(edge_attr.shape)}"
        )
    if not has_dtype_of(edge_attr, weight):
        raise ValueError(
            f"edge_attr: expected the dtype of lin_edge's weight, {dtype_name(weight)}, "
            f"got {dtype_name(edge_attr)}"
        )


def check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")


@torch.compiler.assume_constant_result  # asked while dynamo traces, to which the stack is an object
def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode AD is at work, which operators with
    derivatives of their own do not know."""
    is_func = torch._C._functorch.peek_interpreter_stack() is not None
    return is_func or forward_ad._current_level >= 0


def is_watched(module: torch.nn.Module) -> bool:
    """Whether somebody looks at what goes through the module, or has put a forward of their own
    into it."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or "forward" in vars(module)
    )


def is_linear(layer: Optional[torch.nn.Module]) -> bool:
    """Whether it is a linear layer that nobody has changed, or looks at."""
    return (
        layer is not None
        and type(layer) in (torch.nn.Linear, torch_geometric.nn.Linear)
        and not any(name in vars(layer) for name in ("weight", "bias"))
        and not is_watched(layer)
        and not torch.nn.modules.module._has_any_global_hook()
    )


def has_kernels(value: Tensor) -> bool:
    """Whether the operators run on values of this dtype and device."""
    if value.is_cuda and not _library.has_cuda:
        return False
    return value.dtype in _DTYPES and value.device.type in ("cpu", "cuda", "meta")


def may_score(att: Optional[Tensor], x: Tensor) -> bool:
    """Whether operators take ``att``, if there is one, and features ``x``; scripted code fails
    where they do not. Scriptable."""
    return torch.jit.is_scripting() or _may_score(att, x)


@torch.jit.unused
def _may_score(att: Optional[Tensor], x: Tensor) -> bool:
    if att is None:
        return True
    return att.dtype in (x.dtype, torch.float32) or (is_half(att) and is_autocast(x))


def wide_tensor(edge_index: Tensor) -> Tensor:
    """int64 for int32, with which torch 2.13 gives PyG's steps wrong gradients. Scriptable."""
    return edge_index.long() if edge_index.dtype == torch.int32 else edge_index


def wide(edge_index: Union[Tensor, SparseTensor]) -> Union[Tensor, SparseTensor]:
    """The same of what else edges come as. Scriptable."""
    if isinstance(edge_index, Tensor):
        return wide_tensor(edge_index)
    return edge_index


def of_its_own(out: Tensor) -> Tensor:
    """An operator's result to hand out as it is: a copy where the operator may keep it for the
    backward pass, so that callers may change theirs in place, as they may PyG's. Scriptable."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code is not traced)
        if torch.jit.is_tracing():  # for calls in either mode
            return out.clone()
    return out.clone() if torch.is_grad_enabled() else out


def no_fused_path() -> str:
    """The message of the error where PyG's steps are needed and cannot run. Scriptable."""
    return (
        "This call needs PyG's message passing: for attention weights of a Graph, explainers, "
        "hooks, transforms of torch.func, forward-mode derivatives, an aggregation other than "
        "'add', or a dtype or device without kernels. That takes an edge_index, not a Graph, and "
        "in TorchScript a layer with another aggr."
    )
