"""What a call of a layer may look like: constructor arguments, a graph, inputs, a dtype."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch_geometric.typing import WITH_TORCH_SPARSE

DTYPES = ("float32", "float64", "bfloat16", "float16")
FORMS = (
    "int64",
    "int32",
    "strided",
    "sorted_by_row",
    "sorted_by_col",
    "EdgeIndex",
    "EdgeIndex_row",
    "EdgeIndex_col",
    "SparseTensor",
    "sparse_coo",
    "sparse_coo_without_duplicates",
    "sparse_csr",
    "sparse_csc",
)
# What no layer takes.
MALFORMED = ("float", "three_rows", "three_dims", "too_large", "negative")


@dataclass(frozen=True)
class Case:
    """One call. Its repr is what reproduces it: ``run.check(Case(...))``.

    Attributes:
        layer: The class, of ``torch_geometric.nn`` and of ``pyg_dfgnn.nn``.
        arguments: The constructor's.
        edges: Pairs of a source and a destination.
        num_src: The number of sources.
        num_dst: The number of destinations; equal to ``num_src`` where ``x`` is one tensor.
        form: How the edges come, one of ``FORMS`` or ``MALFORMED``.
        x: ``"one"`` tensor, a ``"pair"``, ``"sources"`` (a pair whose second is None), or a
            ``"batch"`` of node features on one graph.
        edge_attr: The shape of an edge's features, None for no features. Where the form is that of
            a matrix they are its values.
        call: Other arguments of the call.
        training: The layer's mode.
        dtype: That of the weights and of all inputs.
        autocast: The dtype of autocast, None without.
        gradients: What they are asked for: ``"all"``, ``"weights"``, ``"inputs"`` or ``"nothing"``.
        zeros: Some features are exactly 0.
        transposed: Features lie in memory by column.
        swapped: Our layer is made by ``fuse`` of PyG's, if it does.
        seed: Of weights and inputs.
    """

    layer: str
    arguments: dict[str, Any] = field(default_factory=dict)
    edges: tuple[tuple[int, int], ...] = ()
    num_src: int = 1
    num_dst: int = 1
    form: str = "int64"
    x: str = "one"
    edge_attr: tuple[int, ...] | None = None
    call: dict[str, Any] = field(default_factory=dict)
    training: bool = True
    dtype: str = "float32"
    autocast: str | None = None
    gradients: str = "all"
    zeros: bool = False
    transposed: bool = False
    swapped: bool = False
    seed: int = 0

    @property
    def is_lazy(self) -> bool:
        return "-1" in str(self.arguments.get("in_channels"))

    @property
    def precision(self) -> str:
        return self.autocast or self.dtype

    @property
    def has_kink(self) -> bool:
        """Whether there is a leaky_relu: rounding may move a logit past 0, to another slope."""
        has_slope = self.layer in ("GATConv", "GATv2Conv", "SuperGATConv")
        return has_slope and self.arguments.get("negative_slope", 0.2) != 1


LAYERS = ("TransformerConv", "GATConv", "GATv2Conv", "AGNNConv", "SuperGATConv")


@st.composite
def cases(draw: st.DrawFn, layer: str) -> Case:
    """Calls that PyG's layer mostly takes."""

    def sometimes(strategy: Any, otherwise: Any = None) -> Any:
        return draw(st.one_of(st.just(otherwise), st.just(otherwise), strategy))

    formed = [form for form in FORMS if form != "SparseTensor" or WITH_TORCH_SPARSE]
    forms = (*formed, *formed, *formed, *MALFORMED)
    case = Case(
        layer,
        form=draw(st.sampled_from(forms)),
        dtype=draw(st.sampled_from(("float32", *DTYPES))),
        training=draw(st.booleans()),
        gradients=draw(st.sampled_from(("all", "all", "weights", "inputs", "nothing"))),
        zeros=draw(st.booleans()),
        transposed=draw(st.booleans()),
        swapped=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
    if case.dtype == "float32":
        case = replace(case, autocast=sometimes(st.sampled_from(("bfloat16", "float16"))))

    x = draw(st.sampled_from(inputs_of(layer)))
    num_src = draw(st.integers(0, 7))
    num_dst = draw(st.integers(0, 7)) if x in ("pair", "sources") else num_src
    case = replace(case, x=x, num_src=num_src, num_dst=num_dst, edges=draw(edges(num_src, num_dst)))

    arguments = draw(arguments_of(layer, x, case.training))
    edge_dim = arguments.get("edge_dim")
    if edge_dim is not None:
        shapes = [(edge_dim,), (edge_dim,), (edge_dim,), () if edge_dim == 1 else None]
        case = replace(case, edge_attr=draw(st.sampled_from(shapes)))
    elif layer == "TransformerConv":  # which adds them to the values as they are
        shape = (arguments.get("heads", 1), arguments["out_channels"])
        case = replace(case, edge_attr=sometimes(st.just(shape)))
    elif layer in ("GATConv", "GATv2Conv"):
        case = replace(case, edge_attr=sometimes(st.sampled_from(((), (2,)))))

    call: dict[str, Any] = {}
    if layer in ("TransformerConv", "GATConv", "GATv2Conv"):
        flag = sometimes(st.booleans(), otherwise="unset")
        if flag != "unset":
            call["return_attention_weights"] = flag
    if layer == "GATConv":
        right, wrong = (num_src, num_dst), (num_src + 1, num_dst)
        size = sometimes(st.sampled_from((right, right, right, wrong)))
        if size is not None:
            call["size"] = size
    return replace(case, arguments=arguments, call=call)


def inputs_of(layer: str) -> tuple[str, ...]:
    return {
        "TransformerConv": ("one", "pair"),
        "GATConv": ("one", "pair", "sources"),
        "GATv2Conv": ("one", "one", "pair", "pair", "sources"),
        "AGNNConv": ("one", "one", "one", "one", "batch"),
        "SuperGATConv": ("one",),
    }[layer]


@st.composite
def edges(draw: st.DrawFn, num_src: int, num_dst: int) -> tuple[tuple[int, int], ...]:
    """Few edges that are any, or a row that is long."""
    if num_src == 0 or num_dst == 0:
        return ()
    source, destination = st.integers(0, num_src - 1), st.integers(0, num_dst - 1)
    if draw(st.integers(0, 7)) == 7:
        hub, degree = draw(destination), draw(st.integers(30, 150))
        return tuple((i % num_src, hub if i % 5 else i % num_dst) for i in range(degree))
    return tuple(draw(st.lists(st.tuples(source, destination), max_size=20)))


@st.composite
def arguments_of(draw: st.DrawFn, layer: str, x: str, training: bool) -> dict[str, Any]:
    """Constructor arguments, those that are drawn and not the default."""
    channels = st.sampled_from((1, 3, 4, 8, 17))
    arguments: dict[str, Any] = {}

    def maybe(name: str, strategy: Any) -> None:
        if draw(st.booleans()):
            arguments[name] = draw(strategy)

    if layer == "AGNNConv":
        maybe("requires_grad", st.booleans())
        maybe("add_self_loops", st.booleans())
    else:
        width = draw(st.sampled_from((1, 5, 8)))
        widths = [width, -1]
        if layer != "SuperGATConv":
            widths += [(width, width), (width, -1)]
        arguments["in_channels"] = draw(st.sampled_from(widths))
        arguments["out_channels"] = draw(channels)
        maybe("heads", st.integers(1, 4))
        maybe("concat", st.booleans())
        maybe("bias", st.booleans())
        # A mask drawn at random is not PyG's; one of no edge or of every edge is. In SuperGATConv
        # it still takes random numbers, which changes the samples drawn after it.
        in_training = (0.0,) if layer == "SuperGATConv" else (0.0, 1.0)
        maybe("dropout", st.sampled_from(in_training if training else (0.6,)))
    if layer == "TransformerConv":
        maybe("beta", st.booleans())
        maybe("root_weight", st.booleans())
        maybe("edge_dim", st.sampled_from((1, 2, 5)))
    if layer in ("GATConv", "GATv2Conv"):
        maybe("residual", st.booleans())
        maybe("edge_dim", st.sampled_from((1, 2, 5)))
        fills = st.sampled_from(("mean", "add", "max", "min", "mul", 0.5, "tensor"))
        maybe("fill_value", fills)
    if layer in ("GATConv", "GATv2Conv", "SuperGATConv"):
        maybe("add_self_loops", st.booleans())
        maybe("negative_slope", st.sampled_from((0.0, 0.5, 1.0, -0.1)))
    if layer == "GATv2Conv":
        maybe("share_weights", st.booleans())
    if layer == "SuperGATConv":
        maybe("attention_type", st.sampled_from((*["SD", "MX"] * 5, "XM")))
        maybe("neg_sample_ratio", st.sampled_from((*[0.5, 1.0] * 5, 0.0)))
        maybe("edge_sample_ratio", st.sampled_from((*[0.5, 1.0] * 5, 2.0)))
        maybe("is_undirected", st.booleans())
    if draw(st.integers(0, 4)) == 4:
        arguments["aggr"] = draw(st.sampled_from(("sum", "mean", "max", ["sum", "mean"])))
    if draw(st.integers(0, 4)) == 4:
        flows = st.sampled_from((*["target_to_source"] * 7, "sideways"))
        arguments["flow"] = draw(flows)
    return arguments


def torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, name)
