"""The figure of achieved bandwidth beside the roofs of the device."""

import math
from itertools import pairwise

from .case import Row
from .labels import MODELS, distinct, graph, graphs_of, where
from .operands import DTYPES
from .plots import COLORS, Figures, figure, legend, plain_ticks, wrapped
from .results import Results


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
