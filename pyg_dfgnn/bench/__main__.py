"""The evaluation of the DF-GNN paper, with this package and what there is beside it.

    python -m pyg_dfgnn.bench run                          # measures, then writes the report
    python -m pyg_dfgnn.bench run --quick                  # less than two minutes
    python -m pyg_dfgnn.bench report runs/bench/results.json --out report
    python -m pyg_dfgnn.bench compare old.json new.json    # 1 where something got slower

`run` stores each result as it is there; the same command again goes on where it was interrupted.
Data sets are read from PyG's and OGB's folders under --root; others are stand-ins with the same
statistics, and every table and figure says which is which.
"""

import argparse
import sys
from pathlib import Path

import torch

import pyg_dfgnn

from . import machine
from .compare import compare
from .lab import Lab
from .operands import DTYPES
from .options import duration, limit, positive, seed, share
from .registry import KNOWN
from .report import report, write_page
from .results import FILE, Results, merged
from .run import DeviceLost, run
from .scope import Scope
from .sections import SECTIONS


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m pyg_dfgnn.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(required=True, dest="command")

    add = commands.add_parser("run", help="measure, and write the report").add_argument
    add("--out", type=Path, default=Path("runs/bench"), help="folder of results and report")
    add("--device", choices=["cuda", "cpu"], help="default: cuda where it is to be had")
    add("--sections", nargs="+", choices=list(SECTIONS), metavar="SECTION", default=list(SECTIONS),
        help=", ".join(SECTIONS))  # fmt: skip
    names = [*KNOWN, "pattern"]
    add("--names", nargs="+", choices=names, metavar="NAME",
        help="data sets (default: those that suit the device): "
        + ", ".join(names).replace("%", "%%"))  # fmt: skip
    add("--dtypes", nargs="+", choices=list(DTYPES), help="default: fp32, on a GPU bf16 too")
    add("--batch-size", type=positive, help="graphs (default: 1024 on a GPU, 32 on a CPU)")
    add("--seeds", type=positive, help="of training (default 5)")
    add("--epochs", type=positive, help="of training (default 100)")
    add("--quick", action="store_true", help="some cases of each section")
    add("--root", nargs="+", default=[], help="folders of PyG's and OGB's data sets")
    add("--download", action="store_true", help="fetch missing data sets into the first root")
    add("--budget-ms", type=duration, help="time for each measurement (default 60, quick 20)")
    add("--limit-s", type=limit, default=float("inf"), help="begin no case after so many seconds")
    add("--retry", action="store_true", help="measure again what failed")
    add("--seed", type=seed, default=0, help="of stand-ins, operands and weights")
    add("--commit", help="what is measured (default: $DFGNN_COMMIT, else what git says)")

    add = commands.add_parser("report", help="tables and figures of results").add_argument
    add("results", nargs="+", type=Path, help="files of one machine, which are joined")
    add("--out", type=Path, required=True, help="folder for figures, tables and report.html")
    add("--page", type=Path, help="write this Markdown page, and only its figures to --out")

    add = commands.add_parser("compare", help="what got slower").add_argument
    add("before", type=Path)
    add("after", type=Path)
    add("--threshold", type=share, default=0.05, help="least change that counts (default 0.05)")
    return main


def run_command(arguments: argparse.Namespace) -> int:
    has_gpu = torch.cuda.is_available() and pyg_dfgnn.cuda_version() > 0
    device = arguments.device or ("cuda" if has_gpu else "cpu")
    if device == "cuda" and not has_gpu:
        raise ValueError("--device cuda: there is no CUDA GPU, or the operators are without CUDA")
    if arguments.download and not arguments.root:
        raise ValueError("--download: expected a --root to put the data sets in")
    for root in arguments.root:
        if not arguments.download and not Path(root).is_dir():
            raise ValueError(f"--root: expected folders of data sets, got {root}")
    scope = Scope.of(
        device,
        arguments.quick,
        arguments.names,
        arguments.dtypes,
        arguments.batch_size,
        arguments.seeds,
        arguments.epochs,
    )
    budget_ms = arguments.budget_ms or (20.0 if arguments.quick else 60.0)
    lab = Lab(device, budget_ms, arguments.seed, arguments.root, arguments.download)
    path = arguments.out / FILE
    before = len(Results.load(path).records) if path.exists() else 0
    results, left = run(
        arguments.sections,
        scope,
        lab,
        arguments.out,
        machine.describe(device, arguments.commit),
        arguments.limit_s,
        arguments.retry,
    )
    made = report_where_possible(results, arguments.out)
    for record in results.records.values():
        if record.is_failed or "[error" in record.row["note"]:
            print(f"{record.row['note']}: {record.key}")
    known = f", {before} of them of runs before" if before else ""
    print(
        f"{len(results.records)} results in {arguments.out / FILE}{known}, {left} left to measure"
    )
    if not results.records and left == 0:
        print("No case of these sections is of these data sets on this device")
    print(made)
    return 0


def report_where_possible(results: Results, out: Path) -> str:
    """What is there now, in words: results need no matplotlib."""
    try:
        report(results, out)
    except ImportError as error:
        return f"No report: {error}; make it of the results elsewhere"
    return f"Report: {out / 'report.html'}"


def report_command(arguments: argparse.Namespace) -> int:
    results = merged(arguments.results)
    if arguments.page is None:
        report(results, arguments.out)
    else:
        write_page(results, arguments.results, arguments.out, arguments.page)
    return 0


def compare_command(arguments: argparse.Namespace) -> int:
    before, after = Results.load(arguments.before), Results.load(arguments.after)
    text, is_slower = compare(before, after, arguments.threshold)
    print(text)
    return int(is_slower)


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    commands = {"run": run_command, "report": report_command, "compare": compare_command}
    try:
        return commands[arguments.command](arguments)
    except (ValueError, OSError, DeviceLost) as error:
        print(f"pyg_dfgnn.bench: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
