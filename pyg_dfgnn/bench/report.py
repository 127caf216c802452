"""Figures, tables and pages of results."""

import base64
import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .figures import FIGURES
from .findings import FINDINGS
from .results import Results
from .sections import SECTIONS
from .table import Table, as_csv
from .tables import TABLES, workloads
from .words import INTRODUCTION, SECTION_TEXTS


class Part(NamedTuple):
    """A section of the report; ``figures`` are names of files without their endings."""

    name: str
    title: str
    text: list[str]
    figures: list[str]
    tables: list[Table]


def report(results: Results, out: Path) -> None:
    """Writes to a folder: figures (PNG, SVG), a CSV for each section, ``report.html``."""
    out.mkdir(parents=True, exist_ok=True)
    parts = list(sections(results, out, ("png", "svg")))
    for part in parts:
        (out / f"{part.name}.csv").write_text(as_csv(results.of(part.name)))
    (out / "report.html").write_text(as_html(results, parts, out))


def write_page(results: Results, sources: list[Path], out: Path, page: Path) -> None:
    """Writes a Markdown page, and the figures that it shows (SVG) to a folder.

    Args:
        sources: The files that the results are of, which the page names.
    """
    out.mkdir(parents=True, exist_ok=True)
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = list(sections(results, out, ("svg",)))
    links = [os.path.relpath(source, page.parent) for source in sources]
    page.write_text(as_markdown(results, parts, links, os.path.relpath(out, page.parent)))


def sections(results: Results, out: Path, endings: tuple[str, ...]) -> Iterator[Part]:
    """Those that there are results of, roofs last; their figures are written."""
    for name in sorted(SECTIONS, key=lambda name: name == "roofs"):
        rows = results.of(name)
        if not rows:
            continue
        figures = []
        for draw in FIGURES.get(name, ()):
            for figure_name, figure in draw(rows, results, name):
                for ending in endings:
                    metadata = {"Date": None} if ending == "svg" else None
                    figure.savefig(out / f"{figure_name}.{ending}", metadata=metadata)
                close(figure)
                figures.append(figure_name)
        words = [SECTION_TEXTS[name]]
        if name in FINDINGS:
            words.append(FINDINGS[name](rows))
        title, tables = SECTIONS[name].title, TABLES[name](rows)
        yield Part(name, title, list(filter(None, words)), figures, tables)


def close(figure: object) -> None:
    from matplotlib import pyplot as plt

    plt.close(figure)


def runs_table(results: Results) -> Table:
    """The machine, the versions and the options of each run."""
    columns = ["", *(run["started"] for run in results.runs)]
    flat = [
        {**run["machine"], **{k: v for k, v in run.items() if k != "machine"}}
        for run in results.runs
    ]
    names = [name for name in dict.fromkeys(n for run in flat for n in run) if name != "started"]
    rows = [[name.replace("_", " "), *(text(run.get(name, "")) for run in flat)] for name in names]
    return Table("Runs", columns, rows)


def text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_markdown(results: Results, parts: list[Part], sources: list[str], folder: str) -> str:
    files = ", ".join(f"[{os.path.basename(source)}]({source})" for source in sources)
    made = f"`python -m pyg_dfgnn.bench report` made this page of {files}."
    lines = ["# Results", "", made, "", INTRODUCTION, ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        for paragraph in part.text:
            lines += [paragraph, ""]
        for name in part.figures:
            lines += [f"![{name}]({folder}/{name}.svg)", ""]
        for table in part.tables:
            lines += [f"**{table.title}**", "", table.markdown(), ""]
    for table in (workloads(results.rows), runs_table(results)):
        lines += [f"## {table.title}", "", table.markdown(), ""]
    lines.append("To measure again: `python -m pyg_dfgnn.bench run`, with `--root` for data sets.")
    return "\n".join(lines) + "\n"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px; margin: .5em 0 1.5em }
td, th { border-bottom: 1px solid #ddd; padding: .2em .7em; text-align: left; white-space: nowrap }
img { max-width: 100% } div { overflow-x: auto } nav a { margin-right: 1em }
"""


def as_html(results: Results, parts: list[Part], out: Path) -> str:
    """One file, its figures within."""
    links = " ".join(f'<a href="#{part.name}">{part.title}</a>' for part in parts)
    body = [f"<h1>pyg_dfgnn: results</h1><nav>{links}</nav><p>{html.escape(INTRODUCTION)}</p>"]
    for part in parts:
        body.append(f'<h2 id="{part.name}">{html.escape(part.title)}</h2>')
        body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in part.text]
        for name in part.figures:
            data = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
            body.append(f'<img alt="{name}" src="data:image/png;base64,{data}">')
        body += [html_table(table) for table in part.tables]
    body += [html_table(table) for table in (workloads(results.rows), runs_table(results))]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>pyg_dfgnn: results</title>'
        f"<style>{STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def html_table(table: Table) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    return (
        f"<h3>{html.escape(table.title)}</h3><div><table>{line(table.columns, 'th')}"
        f"{body}</table></div>"
    )
