"""The layers stay apart: kernels know CUDA alone, and nothing prints or exits."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lines_with(pattern: str, folder: str) -> list[str]:
    files = sorted((ROOT / folder).rglob("*.*"))
    assert files, f"nothing in {folder}"
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_kernels_know_no_torch():
    assert lines_with(r"#\s*include\s*[<\"](torch|ATen|c10|Python|pybind11)\b", "cuda") == []


def test_operators_know_no_python():
    assert (
        lines_with(
            r"#\s*include\s*[<\"](Python\.h|pybind11|torch/(extension|python)\.h)", "pyg_dfgnn/csrc"
        )
        == []
    )


@pytest.mark.parametrize("folder", ["cuda", "pyg_dfgnn/csrc"])
def test_nothing_prints(folder):
    found = lines_with(r"\b(f?printf|puts)\s*\(|\bstd::(cout|cerr|clog)\b", folder)
    assert [line for line in found if "if (log_enabled())" not in line] == []


@pytest.mark.parametrize("folder", ["cuda", "pyg_dfgnn/csrc"])
def test_nothing_exits_or_aborts(folder):
    assert lines_with(r"\b(exit|abort|assert)\s*\(", folder) == []
