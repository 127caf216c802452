"""What rows of results are called in tables and figures, and numbers as they are written there."""

from collections.abc import Callable, Iterable
from typing import Any

from .case import Row

PASSES = {"forward_ms": "forward", "forward_backward_ms": "forward + backward"}
MODELS = {"dot": "GT (dot)", "cosine": "AGNN (cosine)", "additive": "GAT (additive)"}


def graph(row: Row) -> str:
    """The data set, how many of its graphs, and whether it is the data itself."""
    batch = f" ×{row['batch']}" if row.get("batch", 1) > 1 else ""
    order = f", {row['order']}" if row.get("order", "sorted") != "sorted" else ""
    return f"{row.get('workload', row.get('dataset'))}{batch}{order} ({row.get('graph', '?')})"


def unordered(row: Row) -> str:
    """The graph, whatever the order of its nodes."""
    return graph({**row, "order": "sorted"})


def short(number: float) -> str:
    """Thousands and millions as K and M."""
    for size, letter in ((1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def size(row: Row) -> str:
    return f"{short(row['nodes'])}, {short(row['edges'])}" if "nodes" in row else ""


def milliseconds(time: list[float] | None) -> str:
    """The median, with the quartiles where they are 5 % or more apart."""
    if time is None:
        return "–"
    median, low, high = time
    spread = f" ({low:.3g}–{high:.3g})" if high - low >= 0.05 * median else ""
    return f"{median:.3g}{spread}"


def both_passes(row: Row) -> str:
    """Forward / forward+backward, and what is to be noted."""
    if "forward_ms" not in row:
        return row["note"] or "–"
    times = " / ".join(milliseconds(row.get(name)) for name in PASSES)
    return f"{times} {row['note']}".strip()


def distinct(rows: Iterable[Row], of: str | Callable[[Row], Any]) -> list[Any]:
    """The values of a column in the order in which they come."""
    value = (lambda row: row[of]) if isinstance(of, str) else of
    return list(dict.fromkeys(value(row) for row in rows))


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def median_of(rows: list[Row], name: str) -> float | None:
    """That of the first row, if it has the time."""
    return rows[0][name][0] if rows and name in rows[0] else None


def graphs_of(rows: Iterable[Row]) -> list[str]:
    """Those that something was measured on."""
    return distinct([row for row in rows if "graph" in row], graph)
