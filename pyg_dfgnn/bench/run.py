"""Runs the cases of sections, one by one; each result is stored as it is there."""

import datetime
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .case import Case, Row, noted
from .lab import Lab
from .registry import KNOWN, root_of
from .results import FILE, Record, Results, key_of
from .scope import Scope
from .sections import SECTIONS


class DeviceLost(RuntimeError):
    """After an error in a kernel, no other runs in the same process."""


def run(
    sections: list[str],
    scope: Scope,
    lab: Lab,
    out: Path,
    machine: dict[str, str],
    limit_s: float = float("inf"),
    retry: bool = False,
) -> tuple[Results, int]:
    """Measures what ``out`` has no results of.

    Args:
        machine: What the results depend on, see :func:`pyg_dfgnn.bench.machine.describe`.
        limit_s: After so many seconds no other case begins.
        retry: Measure again what failed.

    Returns:
        The results in ``out``, and the number of cases left.

    Raises:
        ValueError: ``out`` has results of another device, or of another seed.
        DeviceLost: the GPU takes no more work from this process; a new run goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / FILE
    results = Results.load(path) if path.exists() else Results()
    for what, of_run, this_one in (
        ("device", lambda run: run["machine"]["device"], machine["device"]),
        ("seed", lambda run: run.get("seed", lab.seed), lab.seed),
    ):
        others = {str(of_run(run)) for run in results.runs} - {str(this_one)}
        if others:
            raise ValueError(
                f"--out {out}: expected results of this {what} ({this_one}), got some of "
                f"{', '.join(sorted(others))}; choose another folder"
            )
    cases = wanted(results, sections, scope, retry, lab.roots, lab.download)
    results.save(path)
    this = circumstances(machine, sections, scope, lab)
    end = time.monotonic() + limit_s
    left = len(cases)
    calm = 0.2 if sys.stderr.isatty() else 10.0  # seconds between lines of a log
    with tqdm(cases.items(), unit="case", dynamic_ncols=True, mininterval=calm) as bar:
        for case, asked in bar:
            if time.monotonic() > end:
                break
            what = " ".join(str(value) for value in case.about().values())
            bar.set_postfix_str(what, refresh=sys.stderr.isatty())
            record = Record(case.about(), asked, take(case, lab))
            results.records[record.key] = record
            if this not in results.runs:
                results.runs.append(this)
            results.save(path)
            left -= 1
            release(lab.device)
    return results, left


def wanted(
    results: Results,
    sections: list[str],
    scope: Scope,
    retry: bool = False,
    roots: Sequence[str] = (),
    download: bool = False,
) -> dict[Case, list[str]]:
    """The cases that are to be measured, and the sections that ask for them.

    Those of stand-ins are measured again where ``roots`` have the data by now, or get it.
    """
    cases: dict[Case, list[str]] = {}
    for section in sections:
        for case in SECTIONS[section].cases(scope):
            known = results.records.get(key_of(case.about()))
            if (
                known is None
                or (retry and known.is_failed)
                or could_be_real(known, roots, download)
            ):
                asked = cases.setdefault(case, list(known.sections) if known else [])
            else:
                asked = known.sections
            if section not in asked:
                asked.append(section)
    return cases


def could_be_real(record: Record, roots: Sequence[str], download: bool) -> bool:
    name = record.case.get("workload", "")
    is_stand_in = record.result.get("graph") == "stand-in" and name in KNOWN
    return is_stand_in and root_of(name, roots, download) is not None


def take(case: Case, lab: Lab) -> Row:
    """The result of a case, with a note where something went wrong."""
    torch.manual_seed(lab.seed)
    row: Row = {}
    start = time.perf_counter()
    with noted(row):
        case.measure(lab, row)
    row["seconds"] = round(time.perf_counter() - start, 2)
    return {name: value for name, value in row.items() if value is not None and value != ""}


def release(device: str) -> None:
    """Lets go of the memory that the last case left; DeviceLost where the GPU does not answer."""
    gc.collect()  # a failure keeps its frames, and their tensors, in a cycle
    if device == "cuda":
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise DeviceLost(f"the GPU takes no more work: {reason}; run again to go on") from None


def circumstances(
    machine: dict[str, str], sections: list[str], scope: Scope, lab: Lab
) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "started": now.isoformat(timespec="seconds"),
        "machine": machine,
        "sections": sections,
        "seed": lab.seed,
        "budget_ms": lab.budget_ms,
        "batch": scope.batch,
        "quick": scope.quick,
    }
