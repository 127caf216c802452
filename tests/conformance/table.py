"""The tables of docs/conformance.md: what each argument and input makes of a layer's call.

PYTHONPATH=tests python -m conformance.table        # writes them anew, from what runs
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn
from conformance.cases import LAYERS, Case, torch_dtype
from conformance.inputs import build, make, seed
from fused_calls import FusedCalls

import pyg_dfgnn
import pyg_dfgnn.nn

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- by tests/conformance/table.py -->\n", "<!-- end -->\n"
OURS = [layer for layer in LAYERS if hasattr(pyg_dfgnn.nn, layer)]
EDGES = ((0, 1), (1, 2), (2, 2), (3, 0), (1, 2), (3, 1))
NODES = 4


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        text: What it says.
        names: The parameters of PyG's constructor and call that it is about.
        arguments: Of the constructor.
        changes: Other fields of the case.
        layers: Those that it is about; where it is empty, those that have all of ``names``.
        prepare: What is done to the layer before the call.
        convert: Makes another ``edge_index`` of the layer and the case's.
    """

    text: str
    names: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    prepare: Callable[[Any], None] | None = None
    convert: Callable[[Any, Any], Any] | None = None

    def is_about(self, layer: str) -> bool:
        return layer in self.layers if self.layers else set(self.names) <= parameters(layer)

    def case(self, layer: str) -> Case:
        arguments = {"in_channels": 5, "out_channels": 3, "heads": 2} if layer != "AGNNConv" else {}
        base = Case(layer, {}, EDGES, NODES, NODES, training=False)
        return replace(base, arguments={**arguments, **self.arguments}, **self.changes)


def parameters(layer: str) -> set[str]:
    """The names of all arguments of PyG's constructor and call."""
    theirs = getattr(torch_geometric.nn, layer)
    names = {*inspect.signature(theirs).parameters, *inspect.signature(theirs.forward).parameters}
    return names - {"self", "kwargs"} | {"aggr", "flow", "decomposed_layers"}


def option(name: str, value: Any, text: str = "", **changes: Any) -> Row:
    """Of the constructor."""
    return Row(text or f"`{name}={value!r}`", (name,), {name: value}, changes)


def form(text: str, name: str) -> Row:
    return Row(f"`edge_index`: {text}", ("edge_index",), changes={"form": name})


def features(text: str, name: str, **arguments: Any) -> Row:
    """Of edges, where the graph comes in a form."""
    changes = {"edge_attr": (2,), "form": name}
    return Row(text, ("edge_attr", "edge_dim"), {"edge_dim": 2, **arguments}, changes)


def weights(text: str, name: str = "int64", training: bool = False, **arguments: Any) -> Row:
    changes = {"call": {"return_attention_weights": True}, "form": name, "training": training}
    return Row(text, ("return_attention_weights",), arguments, changes)


def sampling(text: str, *names: str, call: dict[str, Any] | None = None, **arguments: Any) -> Row:
    return Row(text, names, arguments, {"training": True, "call": call or {}}, ("SuperGATConv",))


def fill(text: str, value: Any) -> Row:
    arguments = {"edge_dim": 2, "fill_value": value}
    return Row(f"`fill_value`: {text}", ("fill_value",), arguments, {"edge_attr": (2,)})


def add_hook(layer: Any) -> None:
    layer.register_message_forward_hook(lambda *_: None)


def set_explain(layer: Any) -> None:
    layer.explain = True
    layer._edge_mask = torch.zeros(len(EDGES))
    layer._loop_mask = torch.tensor([src != dst for src, dst in EDGES])
    if not getattr(layer, "add_self_loops", False):
        layer._loop_mask[:] = True


def replace_message(layer: Any) -> None:
    layer.message = layer.message


def as_graph(layer: Any, edge_index: Any) -> Any:
    return pyg_dfgnn.build_graph(edge_index, NODES, NODES, getattr(layer, "add_self_loops", False))


PAIR = ("TransformerConv", "GATConv", "GATv2Conv")
ALL = tuple(LAYERS)
TABLES: dict[str, list[Row]] = {
    "Arguments of the constructor": [
        Row("`in_channels`, `out_channels`, `heads`", ("in_channels", "out_channels", "heads")),
        option("in_channels", -1, "`in_channels=-1`, lazy"),
        Row("`in_channels`: a pair", arguments={"in_channels": (5, -1)}, layers=PAIR),
        option("concat", False),
        option("bias", False),
        option("beta", True),
        option("root_weight", False),
        option("residual", True),
        option("share_weights", True),
        option("requires_grad", False),
        option("negative_slope", 0.5),
        option("dropout", 0.5, "`dropout`, in training", training=True),
        option("add_self_loops", True),
        option("add_self_loops", False),
        Row("`edge_dim`", ("edge_dim",), {"edge_dim": 2}, {"edge_attr": (2,)}),
        fill("`'mean'`", "mean"),
        fill("`'add'`, `'mul'`, `'min'`, `'max'`, `'amin'`, `'amax'`", "max"),
        fill("a number", 0.5),
        fill("a tensor", "tensor"),
        option("attention_type", "MX"),
        option("attention_type", "SD"),
        sampling("`neg_sample_ratio`, in training", "neg_sample_ratio", neg_sample_ratio=1.0),
        sampling("`edge_sample_ratio`, in training", "edge_sample_ratio", edge_sample_ratio=0.5),
        sampling("`is_undirected`, in training", "is_undirected", is_undirected=True),
        option("aggr", "sum"),
        option("aggr", "max", "`aggr`, any other"),
        option("flow", "target_to_source"),
        option("decomposed_layers", 2),
    ],
    "Inputs": [
        Row("`x` [N, F]", ("x",)),
        Row("`x`: a pair", ("x",), {}, {"x": "pair"}, PAIR),
        Row("`x`: a pair `(x, None)`", ("x",), {}, {"x": "sources"}, ("GATConv", "GATv2Conv")),
        form("int64 tensor", "int64"),
        form("int32 tensor", "int32"),
        form("`EdgeIndex`", "EdgeIndex_col"),
        form("`SparseTensor`", "SparseTensor"),
        form("torch.sparse COO", "sparse_coo"),
        form("torch.sparse CSR", "sparse_csr"),
        form("torch.sparse CSC", "sparse_csc"),
        Row("`edge_index`: `pyg_dfgnn.Graph`", convert=as_graph, layers=ALL),
        features("`edge_attr`", "int64"),
        features("`edge_attr`, of an `EdgeIndex`", "EdgeIndex_col"),
        features("values of a `SparseTensor`", "SparseTensor"),
        Row(
            "values of a `SparseTensor`, `add_self_loops=False`",
            ("edge_attr", "edge_dim", "add_self_loops"),
            {"edge_dim": 2, "add_self_loops": False},
            {"edge_attr": (2,), "form": "SparseTensor"},
        ),
        features("values of a torch.sparse COO", "sparse_coo"),
        features("values of a torch.sparse CSR", "sparse_csr"),
        Row("`edge_attr` [E], `edge_dim=1`", ("edge_attr",), {"edge_dim": 1}, {"edge_attr": ()}),
        Row("`edge_attr` without `edge_dim`", (), {}, {"edge_attr": (2, 3)}, PAIR),
        Row("`size`", ("size",), {}, {"call": {"size": (NODES, NODES)}}),
        weights("`return_attention_weights`"),
        weights("`return_attention_weights`, of a `SparseTensor`", "SparseTensor"),
        weights("`return_attention_weights`, of a torch.sparse", "sparse_coo"),
        weights("`return_attention_weights`, with dropout", training=True, dropout=0.5),
        sampling(
            "`neg_edge_index`", "neg_edge_index", call={"neg_edge_index": torch.eye(2).long()}
        ),
        sampling("`batch`", "batch", call={"batch": torch.tensor([0, 0, 1, 1])}),
    ],
    "Dtypes": [
        *(Row(d, (), {}, {"dtype": d}, ALL) for d in ("float32", "float64", "bfloat16", "float16")),
        Row("float32 in autocast", (), {}, {"autocast": "bfloat16"}, ALL),
    ],
    "What looks into messages": [
        Row("a hook of `MessagePassing`", prepare=add_hook, layers=ALL),
        Row("`explain=True`", prepare=set_explain, layers=ALL),
        Row("a `message` of the object's own", prepare=replace_message, layers=ALL),
    ],
}


def path(row: Row, layer: str) -> str:
    """How a call runs: ``fused``, ``PyG`` or ``refused``."""
    case = row.case(layer)
    ours = make(pyg_dfgnn.nn, case)
    arguments = build(ours, case, "cpu", torch_dtype(case.dtype))
    edge_index = arguments.edge_index
    if row.convert:
        edge_index = row.convert(ours, edge_index)
    if row.prepare:
        row.prepare(ours)
    seed(case.seed)
    try:
        with FusedCalls() as calls, torch.autocast("cpu", torch.bfloat16, bool(case.autocast)):
            ours(arguments.x, edge_index, **arguments.options)
    except Exception:
        return "refused"
    return "fused" if calls.names else "PyG"


def tables() -> str:
    """All of them, in Markdown."""
    lines = []
    for title, rows in TABLES.items():
        lines += [
            f"## {title}",
            "",
            "| | " + " | ".join(OURS) + " |",
            "|---" * (len(OURS) + 1) + "|",
        ]
        for row in rows:
            cells = [path(row, layer) if row.is_about(layer) else "" for layer in OURS]
            if any(cells):
                lines.append("| " + " | ".join([row.text, *cells]) + " |")
        lines.append("")
    return "\n".join(lines)


def written(document: str) -> str:
    """The part of a document between the marks."""
    return document.split(BEGIN)[1].split(END)[0]


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}{tables()}{END}{after}")
