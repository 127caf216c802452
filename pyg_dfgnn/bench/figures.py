"""Figures of a section's rows."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from . import steps
from .case import Row
from .labels import MODELS, PASSES, distinct, graph, median_of, where
from .operands import DTYPES
from .plots import COLORS, LABELS, bars, figure, legend, lines, plain_ticks, wrapped
from .results import Results

Figures = Iterator[tuple[str, Any]]  # names and figures
OUT = "✕"
MISSING = f"{OUT}: not measured, out of memory or not to be computed so"


def by_graph(rows: list[Row], name: str, names: list[str]) -> dict[str, list[float | None]]:
    """By backend, the medians of the graphs of these names."""
    return {
        backend: [
            median_of([r for r in where(rows, backend=backend) if graph(r) == one], name)
            for one in names
        ]
        for backend in distinct(rows, "backend")
        if any(name in row for row in where(rows, backend=backend))
    }


def graphs_of(rows: list[Row]) -> list[str]:
    """Those that something was measured on."""
    return distinct([row for row in rows if "graph" in row], graph)


def speedup(rows: list[Row], results: Results, section: str) -> Figures:
    """How many times faster than PyG eager, a row of axes for each score."""
    for dtype in distinct(rows, "dtype"):
        chosen = where(rows, dtype=dtype)
        scores = distinct(chosen, "score")
        made, axes = figure(len(scores), 2)
        for i, score in enumerate(scores):
            some = where(chosen, score=score)
            names = graphs_of(some)
            for j, (name, words) in enumerate(PASSES.items()):
                speedup_bars(axes[i][j], some, name, names)
                axes[i][j].set(title=f"{MODELS[score]}, {words}")
        made.suptitle(f"Speedup over PyG eager, {dtype}")
        legend(made, axes)
        yield f"{section}-speedup-{dtype}", made


def speedup_bars(axes: Any, rows: list[Row], name: str, names: list[str]) -> None:
    """Of all backends over PyG eager, on the graphs of these names."""
    series = by_graph(rows, name, names)
    base = series.pop("pyg", [None] * len(names))
    faster = {
        backend: [b / v if b and v else None for b, v in zip(base, values, strict=True)]
        for backend, values in series.items()
    }
    bars(axes, names, faster, labelled="auto", at_most=1.0)
    axes.axhline(1, color=COLORS["pyg"], linewidth=1.5, label=LABELS["pyg"])
    axes.set_ylabel("times PyG eager's speed")


def headline(rows: list[Row], results: Results, section: str) -> Figures:
    """The one figure to show: a training step of the graph transformer's attention in fp32."""
    rows = [row for part in ("batch", "full", "super") for row in results.of(part)]
    rows = where(rows, score="dot", dtype="fp32")
    rows = [row for row in rows if row["backend"] not in ("smmf", "pmf")]
    name = "forward_backward_ms"
    names = graphs_of([row for row in where(rows, backend="pyg") if name in row])
    if not names:
        return
    made, axes = figure(1, 1, height=3.6)
    speedup_bars(axes[0][0], rows, name, names)
    runs = results.runs[-1:]
    device = "".join(run["machine"]["device"] for run in runs)
    title = "Graph transformer attention, forward + backward, fp32, 128 features"
    axes[0][0].set_title(f"{title}: speedup over PyG eager, {device}")
    legend(made, axes)
    yield "headline", made


def times(rows: list[Row], results: Results, section: str) -> Figures:
    """Milliseconds of dot attention, axes for each dtype and pass; ✕ where there are none."""
    dot = where(rows, score="dot")
    dtypes = distinct(dot, "dtype")
    if not dtypes:
        return
    made, axes = figure(2 * len(dtypes), 1, height=2.5)
    parts = [(dtype, name) for dtype in dtypes for name in PASSES]
    for [one], (dtype, name) in zip(axes, parts, strict=True):
        some = where(dot, dtype=dtype)
        names = graphs_of(some)
        bars(one, names, by_graph(some, name, names), labelled="auto", missing=OUT)
        one.set(title=f"GT (dot), {PASSES[name]}, {dtype}", ylabel="ms")
    made.suptitle(f"Time, less is better; {MISSING}")
    legend(made, axes)
    yield f"{section}-times", made


def moved_bytes(row: Row) -> tuple[float, float]:
    """What the forward pass reads and writes if every edge fetches its rows, and the size of the
    table that they are fetched from."""
    features = row["heads"] * row["head_dim"] * DTYPES[row["dtype"]].itemsize
    fetched = 2 if row["score"] == "dot" else 1
    streamed = {"dot": 2, "cosine": 2, "additive": 1}[row["score"]]
    moved = (fetched * row["edges"] + streamed * row["nodes"]) * features
    return float(moved), float(fetched * row["nodes"] * features)


def bandwidth(rows: list[Row], results: Results, section: str) -> Figures:
    """What the forward passes achieve beside the roofs that were measured along with them."""
    rows = [row for row in where(rows, backend="auto") if "forward_ms" in row]
    if not rows:
        return
    roofs = results.of("roofs")
    names, dtypes = graphs_of(rows), distinct(rows, "dtype")
    made, axes = figure(1, len(dtypes), height=3.8)
    markers = dict(zip(MODELS, "os^", strict=True))
    for one, dtype in zip(axes[0], dtypes, strict=True):
        for row in where(roofs, kind="copy"):
            if "gb_per_s" in row:
                one.axhline(row["gb_per_s"], color="gray", linestyle="--", label="stream copy")
        for number, name in enumerate(names):
            for row in [row for row in where(rows, dtype=dtype) if graph(row) == name]:
                moved, table = moved_bytes(row)
                score, achieved = row["score"], moved / row["forward_ms"][0] / 1e6
                place = number + 0.2 * (list(MODELS).index(score) - 1)
                one.plot(place, achieved, markers[score], color=COLORS["auto"], label=MODELS[score])
                roof = gather_roof(roofs, table)
                if roof is not None:
                    one.hlines(roof, place - 0.09, place + 0.09, color="black", label="gather")
        one.set_yscale("log")
        plain_ticks(one.yaxis)
        one.set_xticks(range(len(names)), [wrapped(name) for name in names], fontsize=7)
        one.set(title=f"forward, {dtype}", ylabel="GB/s as if every edge fetched its rows")
    made.suptitle(
        "Achieved bandwidth beside what the device does at best (above it: rows used again on chip)"
    )
    legend(made, axes)
    yield f"{section}-bandwidth", made


def gather_roof(roofs: list[Row], table: float) -> float | None:
    """GB/s of gathering 512-byte rows of a table of so many bytes, between those measured."""
    known = sorted(
        (math.log(row["table_mib"] * 2**20), row["gb_per_s"])
        for row in where(roofs, kind="gather", row_bytes=512)
        if "gb_per_s" in row
    )
    if not known:
        return None
    x = math.log(max(table, 1.0))
    if x <= known[0][0]:
        return known[0][1]
    for (low, first), (high, second) in pairwise(known):
        if x <= high:
            return first + (second - first) * (x - low) / (high - low)
    return known[-1][1]


def ablation(rows: list[Row], results: Results, section: str) -> Figures:
    """Milliseconds of fp32 dot attention: fused or not, sorted or shuffled, equal or skewed."""
    chosen = [row for row in rows if row["backend"] in ("smmf", "pmf", "tile", "unfused")]
    degrees = [row for row in chosen if " degrees, " in row["workload"]]
    shuffled = distinct(where(rows, order="shuffled"), "workload")
    plain = [row for row in where(chosen, order="sorted") if row not in degrees]
    order = [r for r in where(rows, backend="smmf") if r["workload"] in shuffled]
    order += [r for r in where(rows, backend="auto") if r["workload"] in shuffled]
    parts = {"Fusion": plain, "Order of nodes": order, "Degrees": degrees}
    parts = {title: some for title, some in parts.items() if some}
    if not parts:
        return
    made, axes = figure(len(parts), 2)
    for i, (title, some) in enumerate(parts.items()):
        names = graphs_of(some)
        for j, (name, words) in enumerate(PASSES.items()):
            bars(axes[i][j], names, by_graph(some, name, names))
            axes[i][j].set(title=f"{title}, {words}", ylabel="ms")
    made.suptitle("Ablations: GT (dot), fp32")
    legend(made, axes)
    yield section, made


def features(rows: list[Row], results: Results, section: str) -> Figures:
    yield from sweep(rows, "head_dim", "features of the head", section)


def batch_sizes(rows: list[Row], results: Results, section: str) -> Figures:
    yield from sweep(rows, "batch", "graphs", section)


def sweep(rows: list[Row], name: str, words: str, section: str) -> Figures:
    """Time over one quantity, a column of axes for each data set."""
    names = distinct(rows, "workload")
    made, axes = figure(2, len(names), height=3.0)
    for j, workload in enumerate(names):
        for i, (time, what) in enumerate(PASSES.items()):
            some = [row for row in where(rows, workload=workload) if time in row]
            for backend, dtype in distinct(some, lambda row: (row["backend"], row["dtype"])):
                alike = where(some, backend=backend, dtype=dtype)
                points = {row[name]: row[time] for row in alike}
                dash = "-" if dtype == "fp32" else "--"
                lines(axes[i][j], points, backend, f"{LABELS[backend]}, {dtype}", dash)
            kind = next((row["graph"] for row in some), "")
            axes[i][j].set(title=f"{workload} ({kind}), {what}", xlabel=words, ylabel="ms")
    legend(made, axes)
    yield section, made


def heads(rows: list[Row], results: Results, section: str) -> Figures:
    """Milliseconds with one head and with eight, a column of axes for each score."""
    scores = distinct(rows, "score")
    made, axes = figure(1, len(scores), height=3.4)
    for one, score in zip(axes[0], scores, strict=True):
        some = where(rows, score=score)
        names = graphs_of(some)
        series = {}
        for count, dim in distinct(some, lambda row: (row["heads"], row["head_dim"])):
            found = by_graph(where(some, heads=count, head_dim=dim), "forward_backward_ms", names)
            for backend, values in found.items():
                series[f"{LABELS[backend]}, {count}×{dim}"] = values
        bars(one, names, series)
        one.set(title=f"{MODELS[score]}, forward + backward", ylabel="ms")
    legend(made, axes)
    yield section, made


def end_to_end(rows: list[Row], results: Results, section: str) -> Figures:
    """Stacked parts of a step."""
    rows = [row for row in rows if "step_ms" in row]
    if not rows:
        return
    made, axes = figure(1, 1, height=0.6 + 0.28 * len(rows))
    one = axes[0][0]
    shades = ("#d9d9d9", "#bdbdbd", "#e0a030", "#4c9f70", "#1b6ca8", "#8172b3")
    names = [
        f"{graph(row)}, {row['model'].upper()}, {row['dtype']}: {LABELS[row['backend']]}"
        for row in rows
    ]
    left = [0.0] * len(rows)
    for phase, color in zip(steps.PHASES, shades, strict=True):
        widths = [row[f"{phase}_ms"][0] for row in rows]
        one.barh(range(len(rows)), widths, left=left, color=color, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        one.text(total, place, f" {total:.3g}", va="center", fontsize=7)
    one.set_yticks(range(len(rows)), names, fontsize=7)
    one.set_ylim(len(rows) - 0.4, -0.6)
    one.set(xlabel="ms of one training step")
    legend(made, axes)
    yield section, made


def peaks(rows: list[Row], results: Results, section: str) -> Figures:
    """Peak memory of attention, forward and backward, in fp32."""
    rows = [row for part in ("batch", "full", "super") for row in results.of(part)]
    rows = where(rows, score="dot", dtype="fp32")
    if not any("forward_backward_mib" in row for row in rows):
        return
    rows = [
        row for row in rows if row["backend"] in ("auto", "pyg", "compiled", "cusparse", "sdpa")
    ]
    names = graphs_of(rows)
    series = {
        backend: [
            next(
                (
                    max(row["forward_backward_mib"], 0.5)
                    for row in where(rows, backend=backend)
                    if graph(row) == name and "forward_backward_mib" in row
                ),
                None,
            )
            for name in names
        ]
        for backend in distinct(rows, "backend")
    }
    made, axes = figure(1, 1, height=4)
    bars(axes[0][0], names, series, labelled="auto", missing=OUT)
    axes[0][0].set(
        title="GT (dot), fp32, forward + backward: peak beyond inputs and outputs; " + MISSING,
        ylabel="MiB",
    )
    legend(made, axes)
    yield section, made


def accuracy(rows: list[Row], results: Results, section: str) -> Figures:
    """The curves of the first seed, ours over PyG's."""
    rows = [row for row in rows if "vals" in row]
    if not rows:
        return
    models, data = distinct(rows, "model"), distinct(rows, "dataset")
    made, axes = figure(len(models), 2 * len(data), height=2.4, width=2.6 * 2 * len(data))
    for i, model in enumerate(models):
        for j, dataset in enumerate(data):
            for row in where(rows, model=model, dataset=dataset):
                style: dict[str, Any] = {"color": COLORS[row["library"]]}
                style |= {"label": {"dfgnn": "pyg_dfgnn", "pyg": "PyG"}[row["library"]]}
                style |= (
                    {"linewidth": 3.5, "alpha": 0.5}
                    if row["library"] == "dfgnn"
                    else {"linewidth": 1.0}
                )
                epochs = range(1, len(row["vals"]) + 1)
                axes[i][2 * j].plot(epochs, row["losses"], **style)
                axes[i][2 * j + 1].plot(epochs, row["vals"], **style)
                title = f"{dataset} ({row['graph']}), {model.upper()}"
                axes[i][2 * j].set(title=title, xlabel="epoch", ylabel="training loss")
                axes[i][2 * j + 1].set(title=title, xlabel="epoch", ylabel=f"val. {row['metric']}")
    legend(made, axes)
    yield section, made


FIGURES: dict[str, tuple[Callable[[list[Row], Results, str], Figures], ...]] = {
    "batch": (headline, speedup, bandwidth),
    "full": (speedup, bandwidth),
    "super": (times, bandwidth),
    "methods": (times,),
    "ablation": (ablation,),
    "features": (features,),
    "batch-size": (batch_sizes,),
    "heads": (heads,),
    "end-to-end": (end_to_end,),
    "memory": (peaks,),
    "accuracy": (accuracy,),
}
