"""Bars and lines of one style, for all figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import backends, steps

COLORS = {
    "auto": "#1b6ca8",
    "dfgnn": "#1b6ca8",
    "dfgnn-convert": "#6aaed6",
    "dfgnn-device": "#3f8fbf",
    "dfgnn-compiled": "#9ecae1",
    "smmf": "#4c9f70",
    "pmf": "#e0a030",
    "tile": "#b5548c",
    "unfused": "#999999",
    "pyg": "#c44e52",
    "compiled": "#e39c94",
    "pyg-compiled": "#e39c94",
    "cusparse": "#8172b3",
    "sdpa": "#937860",
    "flex": "#d4b483",
    "dgl": "#64b5cd",
    "techniques-without-balanced": "#fdae6b",
    "techniques-without-redundancy_free": "#e6550d",
    "techniques-without-vectorized": "#a1d99b",
    "techniques-without-split": "#9e9ac8",
    "techniques-without-online": "#bdbdbd",
    "techniques-none": "#525252",
}
LABELS = backends.LABELS | steps.LABELS
Figures = Iterator[tuple[str, Any]]  # names and figures
Values = Mapping[str, Sequence[float | None]]


def figure(rows: int, columns: int, width: float = 12.0, height: float = 3.2) -> tuple[Any, Any]:
    """A figure and its axes ``[rows][columns]``; ``height`` is that of a row, in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.dpi": 110,
            "font.size": 9,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "pyg_dfgnn",  # the same file of the same numbers
        }
    )
    made, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained"
    )
    return made, axes


def bars(
    axes: Any,
    groups: Sequence[str],
    series: Values,
    labelled: str = "",
    missing: str = "",
    at_most: float = float("inf"),
) -> None:
    """Bars side by side in groups, on a logarithmic axis.

    Args:
        groups: The names of the groups.
        series: By backend, a value for each group, or None where there is none.
        labelled: The backend whose bars bear their values.
        missing: What stands in the place of a bar that is not there.
        at_most: The axis begins there, or below.
    """
    width = 0.8 / max(1, len(series))
    axes.set_yscale("log")
    known = [value for values in series.values() for value in values if value is not None]
    bottom = min(min(known, default=1.0), at_most) / 1.6
    for number, (name, values) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * width
        places = [place + shift for place, value in enumerate(values) if value is not None]
        heights = [value for value in values if value is not None]
        drawn = axes.bar(
            places, heights, width * 0.95, color=COLORS.get(name), label=LABELS.get(name, name)
        )
        if name == labelled:
            axes.bar_label(drawn, [f"{height:.3g}" for height in heights], fontsize=7, padding=1)
        for place, value in enumerate(values):
            if value is None and missing:
                style = {"ha": "center", "va": "bottom", "color": COLORS.get(name)}
                axes.text(place + shift, bottom * 1.05, missing, **style)
    axes.set_ylim(bottom=bottom, top=max(known, default=1.0) * 2)
    axes.set_xticks(range(len(groups)), [wrapped(group) for group in groups], fontsize=7)
    axes.grid(axis="x", visible=False)
    plain_ticks(axes.yaxis)


def plain_ticks(axis: Any) -> None:
    """Numbers such as 0.2 and 50 along a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=14))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def wrapped(name: str) -> str:
    """The name of a graph, what it is in a line of its own."""
    return name.replace(" (", "\n(").replace(" ×", "\n×").replace(", ", ",\n")


def legend(made: Any, axes: Any) -> None:
    """One legend below all axes."""
    found: dict[str, Any] = {}
    for one in axes.flat:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    made.legend(found.values(), found.keys(), loc="outside lower center", ncols=6)


def lines(axes: Any, points: Mapping[float, list[float]], name: str, label: str, dash: str) -> None:
    """Medians ``[x: median, low, high]`` with a band between the quartiles, logarithmic axes."""
    xs = sorted(points)
    median, low, high = ([points[x][i] for x in xs] for i in range(3))
    color = COLORS.get(name)
    axes.plot(xs, median, dash, marker="o", markersize=4, color=color, label=label)
    axes.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.xaxis.minorticks_off()
