"""Figures of a section's rows."""

from collections.abc import Callable
from typing import Any

from . import steps
from .bandwidth import bandwidth
from .case import Row
from .labels import MODELS, PASSES, distinct, graph, graphs_of, median_of, unordered, where
from .plots import COLORS, LABELS, Figures, bars, figure, legend, lines
from .results import Results

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


def techniques(rows: list[Row], results: Results, section: str) -> Figures:
    """Times of kernels over that of the one with all techniques."""
    names = graphs_of(r for r in where(rows, backend="techniques") if "forward_ms" in r)
    if not names:
        return
    series = by_graph(rows, "forward_ms", names)
    base = series.pop("techniques")
    slower = {
        backend: [v / b if b and v else None for b, v in zip(base, values, strict=True)]
        for backend, values in series.items()
    }
    made, axes = figure(1, 1, height=3.8)
    bars(axes[0][0], names, slower, at_most=1.0)
    axes[0][0].axhline(1, color="black", linewidth=1, label=LABELS["techniques"])
    title = "GT (dot), fp32, forward: time over that of the kernel with all techniques"
    axes[0][0].set(title=title, ylabel="times all techniques")
    legend(made, axes)
    yield section, made


def reordering(rows: list[Row], results: Results, section: str) -> Figures:
    """Milliseconds by the order of nodes, a row of axes for each dtype."""
    rows = [row for row in where(rows, kind="attention") if "graph" in row]
    dtypes = distinct(rows, "dtype")
    if not dtypes:
        return
    made, axes = figure(len(dtypes), 2)
    for i, dtype in enumerate(dtypes):
        some = where(rows, dtype=dtype)
        names = distinct(some, unordered)
        for j, (name, words) in enumerate(PASSES.items()):
            series = {
                "as given" if order == "sorted" else order: [
                    median_of([r for r in where(some, order=order) if unordered(r) == one], name)
                    for one in names
                ]
                for order in distinct(some, "order")
            }
            bars(axes[i][j], names, series)
            axes[i][j].set(title=f"{words}, {dtype}", ylabel="ms")
    made.suptitle("GT (dot), pyg_dfgnn, by the order of nodes")
    legend(made, axes)
    yield section, made


def stars(rows: list[Row], results: Results, section: str) -> Figures:
    """Milliseconds of the trees, axes for each pass."""
    names = graphs_of(rows)
    if not names:
        return
    made, axes = figure(1, 2)
    for one, (name, words) in zip(axes[0], PASSES.items(), strict=True):
        series = {
            dtype: by_graph(where(rows, dtype=dtype), name, names).get("auto", [])
            for dtype in distinct(rows, "dtype")
        }
        bars(one, names, series)
        one.set(title=f"GT (dot), pyg_dfgnn, {words}", ylabel="ms")
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
    "techniques": (techniques,),
    "reordering": (reordering,),
    "stars": (stars,),
    "features": (features,),
    "batch-size": (batch_sizes,),
    "heads": (heads,),
    "end-to-end": (end_to_end,),
    "memory": (peaks,),
    "accuracy": (accuracy,),
}
