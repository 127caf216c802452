"""What the rows of a section say, in a sentence of numbers."""

from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

from .case import Row
from .labels import PASSES, distinct, where
from .techniques import LABELS

SAME_GRAPH = ("workload", "batch", "score", "dtype", "heads", "head_dim", "order")
SAME_NODES = ("workload", "batch", "score", "dtype", "heads", "head_dim", "backend")
SAME_STEP = ("workload", "batch", "model", "dtype", "layers")


def ratios(
    rows: list[Row], name: str, wanted: Row, base: Row, same: tuple[str, ...] = SAME_GRAPH
) -> list[float]:
    """Medians of ``base`` over those of ``wanted``, for every pair of rows that are otherwise the
    same and have both."""
    found = []
    for row in where(rows, **wanted):
        alike: dict[str, Any] = {key: row[key] for key in same} | base
        others = [other for other in where(rows, **alike) if name in other]
        if name in row and others:
            found.append(others[0][name][0] / row[name][0])
    return found


def spread(found: list[float]) -> str:
    """Geometric mean and range."""
    return f"{geometric_mean(found):.1f} times ({min(found):.1f} to {max(found):.1f})"


def over_eager(rows: list[Row]) -> str:
    parts = []
    for dtype in distinct(rows, "dtype"):
        for name, words in PASSES.items():
            some = where(rows, dtype=dtype)
            if found := ratios(some, name, {"backend": "auto"}, {"backend": "pyg"}):
                parts.append(f"{words} in {dtype} {spread(found)}")
    if not parts:
        return ""
    return f"Faster than PyG eager (geometric mean, range): {'; '.join(parts)}."


def choice(rows: list[Row]) -> str:
    """How far the method that is chosen is from the best."""
    losses = []
    for name in PASSES:
        for row in [row for row in where(rows, backend="auto") if name in row]:
            alike = {key: row[key] for key in SAME_GRAPH}
            best = min(other[name][0] for other in where(rows, **alike) if name in other)
            losses.append(row[name][0] / best)
    if not losses:
        return ""
    near = sum(loss <= 1.05 for loss in losses)
    return (
        f"The method that is chosen is within 5 % of the best in {near} of {len(losses)} cases, at "
        f"worst {max(losses):.2f} times its time."
    )


def ablations(rows: list[Row]) -> str:
    parts = []
    for name, words in PASSES.items():
        if found := ratios(rows, name, {"backend": "smmf"}, {"backend": "unfused"}):
            parts.append(f"without fusion {words} takes {spread(found)} smmf's time")
        sorted_, shuffled = {"order": "sorted"}, {"order": "shuffled"}
        some = where(rows, backend="auto")
        if found := ratios(some, name, sorted_, shuffled):
            parts.append(f"shuffled nodes make {words} take {spread(found)} as long")
    return f"In float32 (geometric mean, range): {'; '.join(parts)}." if parts else ""


def techniques(rows: list[Row]) -> str:
    parts = []
    for variant in distinct(rows, "backend"):
        pair = {"backend": "techniques"}, {"backend": variant}
        found = ratios(rows, "forward_ms", *pair) if variant in LABELS else []
        if found and variant != "techniques":
            parts.append(f"{LABELS[variant]} {spread(found)}")
    if not parts:
        return ""
    words = "Over the time of the kernel with all techniques (geometric mean, range)"
    return f"{words}: {'; '.join(parts)}."


def reordering(rows: list[Row]) -> str:
    parts = []
    for order in distinct(where(rows, kind="attention"), "order"):
        for name, words in PASSES.items():
            pair = {"order": order}, {"order": "shuffled"}
            if found := ratios(rows, name, *pair, same=SAME_NODES) if order != "shuffled" else []:
                called = "the order as given" if order == "sorted" else order
                parts.append(f"with {called} {words} is {spread(found)} as fast")
    return f"Beside random order (geometric mean, range), {'; '.join(parts)}." if parts else ""


def stars(rows: list[Row]) -> str:
    parts = []
    for dtype in distinct(rows, "dtype"):
        for name, words in PASSES.items():
            some = [row for row in where(rows, dtype=dtype) if name in row]
            paths = [row[name][0] for row in some if row["workload"].startswith("path")]
            others = [row[name][0] for row in some if not row["workload"].startswith("path")]
            if paths and others:
                low, high = min(others) / paths[0], max(others) / paths[0]
                parts.append(f"{words} in {dtype} {low:.2f} to {high:.2f} times")
    return f"Stars take, of the time of the path, {'; '.join(parts)}." if parts else ""


def whole_steps(rows: list[Row]) -> str:
    sentences = []
    for ours, words in (
        ("dfgnn", "A whole step"),
        ("dfgnn-device", "With DeviceLoader, it"),
        ("dfgnn-compiled", "Compiled, too, it"),
    ):
        parts = []
        for base, name in (("pyg", "PyG eager"), ("pyg-compiled", "PyG compiled")):
            pair = {"backend": ours}, {"backend": base}
            if found := ratios(rows, "step_ms", *pair, same=SAME_STEP):
                parts.append(f"{name} {spread(found)}")
        if parts:
            sentences.append(f"{words} is faster than with {'; '.join(parts)}.")
    return " ".join(sentences)


FINDINGS: dict[str, Callable[[list[Row]], str]] = {
    "batch": over_eager,
    "full": over_eager,
    "super": over_eager,
    "methods": choice,
    "ablation": ablations,
    "techniques": techniques,
    "reordering": reordering,
    "stars": stars,
    "end-to-end": whole_steps,
}
