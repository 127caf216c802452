"""What a table is, and how rows become one: cells are text."""

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .case import Row
from .labels import both_passes, distinct


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pivot(
    title: str,
    rows: list[Row],
    index: Mapping[str, Callable[[Row], str]],
    column: Callable[[Row], str],
    cell: Callable[[Row], str] = both_passes,
) -> Table:
    """A line for each combination of ``index``, a column for each value of ``column``.

    A column that has nothing but one note becomes part of the title.
    """
    columns = distinct(rows, column)
    for name in list(columns):
        cells = {cell(row) for row in rows if column(row) == name}
        if len(cells) == 1 and cells == {row["note"] for row in rows if column(row) == name}:
            columns.remove(name)
            title += f"; {name}: {cells.pop()}"
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = tuple(value(row) for value in index.values())
        lines.setdefault(key, {})[column(row)] = cell(row)
    body = [[*key, *(cells.get(name, "") for name in columns)] for key, cells in lines.items()]
    return Table(title, [*index, *columns], body)


def as_csv(rows: list[Row]) -> str:
    """All that is known of rows: times as three columns each, curves left out."""
    flat = [flattened(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def flattened(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, list):
            flat[name] = value
        elif name.endswith("ms"):
            flat |= dict(zip((name, f"{name}_low", f"{name}_high"), value, strict=True))
    return flat
