"""Tables of a section's rows, their cells text."""

from collections.abc import Callable
from statistics import mean, stdev

from . import backends, steps
from .case import Row
from .labels import (
    MODELS,
    PASSES,
    distinct,
    graph,
    median_of,
    milliseconds,
    size,
    unordered,
    where,
)
from .layers import GIB
from .table import Table, pivot


def backend(row: Row) -> str:
    return backends.LABELS[row["backend"]]


def dtype(row: Row) -> str:
    return row["dtype"]


MS = "forward / forward+backward, ms"
GRAPH: dict[str, Callable[[Row], str]] = {"graph": graph}


def attention(rows: list[Row]) -> list[Table]:
    index = {"graph": graph, "nodes, edges": sizes(rows), "dtype": dtype}
    tables = [
        pivot(f"{MODELS[score]}: {MS}", where(rows, score=score), index, backend)
        for score in distinct(rows, "score")
    ]
    dot = where(rows, score="dot")
    if any("forward_backward_mib" in row for row in dot):
        title = "GT (dot): peak memory of forward+backward beyond inputs and outputs, MiB"
        tables.append(pivot(title, dot, index, backend, mib))
    return tables


def sizes(rows: list[Row]) -> Callable[[Row], str]:
    """The size of a row's graph, which rows that failed early do not know."""
    known = {(row["workload"], row["batch"]): size(row) for row in rows if "nodes" in row}
    return lambda row: known.get((row["workload"], row["batch"]), "")


def mib(row: Row) -> str:
    return f"{row['forward_backward_mib']:.0f}" if "forward_backward_mib" in row else row["note"]


def methods(rows: list[Row]) -> list[Table]:
    return [pivot(f"GT (dot): {MS}", rows, {"graph": graph, "dtype": dtype}, backend)]


def ablation(rows: list[Row]) -> list[Table]:
    degrees = [row for row in rows if " degrees, " in row["workload"]]
    ordered = distinct(where(rows, order="shuffled"), "workload")
    plain = [row for row in where(rows, order="sorted") if row not in degrees]
    fusion = [row for row in plain if row["backend"] != "auto"]
    order = [
        row for row in rows if row["workload"] in ordered and row["backend"] in ("smmf", "auto")
    ]
    tables = []
    if fusion:
        tables.append(pivot(f"Fusion: {MS}", fusion, GRAPH, backend))
    if order:
        tables.append(pivot(f"Order of nodes: {MS}", order, GRAPH, backend))
    if degrees:
        tables.append(pivot(f"Degrees: {MS}", degrees, GRAPH, backend))
    return tables


def techniques(rows: list[Row]) -> list[Table]:
    """Milliseconds, and for kernels without a technique how many times that with all it is."""

    def cell(row: Row) -> str:
        if "forward_ms" not in row:
            return row["note"]
        text = f"{milliseconds(row['forward_ms'])} {row['note']}".strip()
        alike = where(rows, workload=row["workload"], batch=row["batch"], backend="techniques")
        base = median_of(alike, "forward_ms")
        if row["backend"] in backends.OURS or row["backend"] == "techniques" or base is None:
            return text
        return f"{text} [{row['forward_ms'][0] / base:.2f}×]"

    return [pivot("GT (dot), fp32, forward, ms [times all techniques]", rows, GRAPH, backend, cell)]


def reordering(rows: list[Row]) -> list[Table]:
    cost, times = where(rows, kind="reordering"), where(rows, kind="attention")
    index = {"graph": unordered, "nodes, edges": sizes(rows)}
    tables = []
    if times:
        title = f"GT (dot), pyg_dfgnn, by the order of nodes: {MS}"
        order = lambda row: "as given" if row["order"] == "sorted" else row["order"]  # noqa: E731
        tables.append(pivot(title, times, {**index, "dtype": dtype}, order))
    if cost:
        took = lambda row: milliseconds(row.get("reorder_ms")) + row["note"]  # noqa: E731
        title = "ReorderNodes, once, on the CPU, ms"
        tables.append(pivot(title, cost, index, lambda row: row["method"], took))
    return tables


def stars(rows: list[Row]) -> list[Table]:
    index = {"graph": graph, "nodes, edges": sizes(rows)}
    return [pivot(f"GT (dot), pyg_dfgnn: {MS}", rows, index, dtype)]


def launches(rows: list[Row]) -> list[Table]:
    def microseconds(row: Row, name: str) -> str:
        times = filter(None, (row.get(f"{name}_{passes}") for passes in PASSES))
        scaled = ([1000 * part for part in time] for time in times)
        return " / ".join(map(milliseconds, scaled)) or "–"

    times = {
        "eager": "eager",
        "one_thread": "forward+backward in one thread",
        "graph": "CUDA graph",
    }
    if not any(microseconds(row, "one_thread") != "–" for row in rows):  # of older results
        del times["one_thread"]
    columns = ["graph", "nodes, edges", "model", "dtype", "", *times.values(), "note"]
    lines = []
    for row in rows:
        line = [graph(row), size(row), MODELS[row["score"]], row["dtype"], backend(row)]
        lines.append([*line, *(microseconds(row, name) for name in times), row["note"]])
    return [Table("A call: forward / forward+backward, µs", columns, lines)]


def features(rows: list[Row]) -> list[Table]:
    index = {"graph": graph, "dtype": dtype, "": backend}
    title = f"GT (dot), one head of so many features: {MS}"
    ascending = sorted(rows, key=lambda row: row["head_dim"])
    return [pivot(title, ascending, index, lambda row: str(row["head_dim"]))]


def batch_sizes(rows: list[Row]) -> list[Table]:
    index = {"data set": lambda row: f"{row['workload']} ({row.get('graph', '?')})", "": backend}
    ascending = sorted(rows, key=lambda row: row["batch"])
    title = f"GT (dot), so many graphs: {MS}"
    return [pivot(title, ascending, index, lambda row: str(row["batch"]))]


def heads(rows: list[Row]) -> list[Table]:
    index = {"graph": graph, "model": lambda row: MODELS[row["score"]], "": backend}
    shape = lambda row: f"{row['heads']}×{row['head_dim']}"  # noqa: E731
    return [pivot(f"Heads × features: {MS}", rows, index, shape)]


def edge_features(rows: list[Row]) -> list[Table]:
    loops = lambda row: "yes" if row["self_loops"] else "no"  # noqa: E731
    width = lambda row: str(row["edge_dim"])  # noqa: E731
    index = {"graph": graph, "layer": lambda row: row["layer"], "self-loops": loops}
    return [pivot(f"Layers: {MS}", rows, index | {"features": width}, backend)]


def end_to_end(rows: list[Row]) -> list[Table]:
    columns = ["graph", "model", "dtype", "layers", *steps.PHASES, "sum", "step", "speedup", ""]
    lines = []
    for row in rows:
        alike = where(rows, **{k: row[k] for k in ("workload", "batch", "model", "dtype")})
        base = [r["step_ms"][0] for r in where(alike, backend="pyg") if "step_ms" in r]
        parts = [row.get(f"{phase}_ms") for phase in steps.PHASES]
        known = [part[0] for part in parts if part is not None]
        line = [graph(row), row["model"].upper(), row["dtype"], steps.LABELS[row["backend"]]]
        line += [milliseconds(part) for part in parts]
        line.append(f"{sum(known):.3g}" if known else "–")
        line.append(milliseconds(row.get("step_ms")))
        line.append(f"{base[0] / row['step_ms'][0]:.1f}" if base and "step_ms" in row else "–")
        lines.append([*line, row["note"]])
    return [Table("One training step, ms", columns, lines)]


def conversion(rows: list[Row]) -> list[Table]:
    names = ("coo_to_csr", "csr_to_csc", "find_tiles", "with_masks", "all")
    lines = [
        [unordered(row), size(row), row["order"], "yes" if row["self_loops"] else "no"]
        + [milliseconds(row.get(f"{name}_ms")) for name in names]
        + [row["note"]]
        for row in rows
    ]
    return [Table("ms", ["graph", "nodes, edges", "edges", "self-loops", *names, ""], lines)]


def layers(rows: list[Row]) -> list[Table]:
    columns = ["layer", "library", "nodes, edges", "first step", "later steps", "kept", ""]
    lines = [
        [row["layer"], row["library"], size(row)]
        + [f"{row[n] / GIB:.3g}" if n in row else "–" for n in ("first_peak", "later_peak", "kept")]
        + [row["note"]]
        for row in rows
    ]
    return [Table("GiB beyond inputs, outputs and parameters (stand-in)", columns, lines)]


def workloads(rows: list[Row]) -> Table:
    """The graphs that attention was measured on."""
    known: dict[str, list[str]] = {}
    for row in where(rows, kind="attention", order="sorted"):
        if "nodes" in row:
            numbers = (row["nodes"], row["edges"], row["max_degree"])
            known[graph(row)] = [graph(row), *(f"{number:,}" for number in numbers)]
    columns = ["graph", "nodes", "edges", "largest degree"]
    return Table("Graphs", columns, sorted(known.values()))


def roofs(rows: list[Row]) -> list[Table]:
    lines = [["copy", "", "", gb(row)] for row in where(rows, kind="copy")]
    lines += [
        ["gather", str(row["table_mib"]), str(row["row_bytes"]), gb(row)]
        for row in where(rows, kind="gather")
    ]
    return [Table("Bandwidth", ["", "table, MiB", "row, bytes", "GB/s"], lines)]


def gb(row: Row) -> str:
    return str(row.get("gb_per_s", row["note"]))


def accuracy(rows: list[Row]) -> list[Table]:
    columns = ["data", "model", "seeds", "score", "pyg_dfgnn", "PyG", "largest difference"]
    lines = []
    for dataset, model in distinct(rows, lambda row: (row["dataset"], row["model"])):
        alike = where(rows, dataset=dataset, model=model)
        scores = {
            library: {
                row["seed"]: row["test"] for row in where(alike, library=library) if "test" in row
            }
            for library in ("dfgnn", "pyg")
        }
        ours, theirs = scores["dfgnn"], scores["pyg"]
        both = [abs(ours[seed] - theirs[seed]) for seed in ours if seed in theirs]
        line = [graph(alike[0]), model.upper(), str(len(both)), alike[0].get("metric", "")]
        line += [spread(list(ours.values())) or alike[0]["note"], spread(list(theirs.values()))]
        lines.append([*line, f"{max(both):.4f}" if both else "–"])
    return [Table("Test score of the epoch that validates best: mean ± deviation", columns, lines)]


def spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}" if values else ""
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


TABLES: dict[str, Callable[[list[Row]], list[Table]]] = {
    "roofs": roofs,
    "batch": attention,
    "full": attention,
    "super": attention,
    "methods": methods,
    "ablation": ablation,
    "techniques": techniques,
    "reordering": reordering,
    "stars": stars,
    "launches": launches,
    "features": features,
    "batch-size": batch_sizes,
    "heads": heads,
    "edge-features": edge_features,
    "end-to-end": end_to_end,
    "preprocess": conversion,
    "memory": layers,
    "accuracy": accuracy,
}
