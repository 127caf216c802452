"""docs/conformance.md is true."""

import pytest
from conformance.run import check
from conformance.table import DOCUMENT, OURS, TABLES, parameters, tables, written

ROWS = [row for rows in TABLES.values() for row in rows]


def test_tables_are_those_of_the_document():
    assert written(DOCUMENT.read_text()) == tables()


@pytest.mark.parametrize("layer", OURS)
def test_tables_have_every_argument(layer):
    named = {name for row in ROWS if row.is_about(layer) for name in row.names}
    assert parameters(layer) <= named


@pytest.mark.parametrize(
    ("row", "layer"),
    [
        (row, layer)
        for row in ROWS
        for layer in OURS
        # Others have tests of their own: those that a case does not describe, and dropout.
        if row.is_about(layer) and not row.prepare and not row.convert and "dropout" not in row.text
    ],
    ids=lambda value: value if isinstance(value, str) else value.text,
)
def test_lines_conform(row, layer):
    """The same results, or the same refusal."""
    check(row.case(layer))
