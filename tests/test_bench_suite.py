"""python -m pyg_dfgnn.bench: every section runs, goes on where it ended, reports and compares."""

import csv
import gc
import weakref
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import pyg_dfgnn.bench.run
from pyg_dfgnn.bench import findings, registry, sections
from pyg_dfgnn.bench.__main__ import main
from pyg_dfgnn.bench.case import Case
from pyg_dfgnn.bench.results import FILE, Record, Results, key_of
from pyg_dfgnn.bench.run import wanted
from pyg_dfgnn.bench.scope import Scope
from pyg_dfgnn.bench.sections import SECTIONS, Section

TOY = ["--quick", "--device", "cpu", "--batch-size", "2", "--budget-ms", "0.1", "--epochs", "2"]

CANNOT_BE_HAD = ("not installed", "needs a CUDA GPU and nvcc")


@dataclass(frozen=True)
class Toy(Case):
    """A case that counts how often it is measured, and fails where it is told to."""

    kind: ClassVar[str] = "toy"
    measured: ClassVar[list[str]] = []
    failing: ClassVar[dict[str, BaseException]] = {}
    name: str

    def measure(self, lab, row) -> None:
        self.measured.append(self.name)
        row["ms"] = [1.0, 0.9, 1.1]
        if self.name in self.failing:
            raise self.failing[self.name]


@pytest.fixture
def toys(monkeypatch):
    """Sections "one" and "two" of toys a to d, of which both have b and c."""
    monkeypatch.setattr(Toy, "measured", [])
    monkeypatch.setattr(Toy, "failing", {})
    monkeypatch.setitem(SECTIONS, "roofs", Section("One", lambda scope: map(Toy, "abc")))
    monkeypatch.setitem(SECTIONS, "preprocess", Section("Two", lambda scope: map(Toy, "bcd")))
    monkeypatch.setattr("pyg_dfgnn.bench.report.TABLES", dict.fromkeys(SECTIONS, lambda rows: []))
    return Toy


def run(out, *options: str) -> dict[str, Record]:
    assert main(["run", *TOY, "--out", str(out), *options]) == 0
    return Results.load(out).records


@pytest.mark.parametrize("option", ["--batch-size", "--seeds", "--epochs"])
def test_numbers_are_positive(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["run", "--out", str(tmp_path), option, "0"])
    assert f"argument {option}: expected 1 or more, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["report"], ["compare"]], ids=str)
def test_help(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    assert "usage: " in capsys.readouterr().out


def test_no_case(tmp_path, capsys):
    options = ["--sections", "batch", "--names", "Cora", "--device", "cpu"]
    assert main(["run", "--out", str(tmp_path), *options]) == 0
    assert "No case of these sections is of these data sets" in capsys.readouterr().out


def test_shared_cases_are_measured_once(toys, tmp_path):
    records = run(tmp_path, "--sections", "roofs", "preprocess")
    assert toys.measured == ["a", "b", "c", "d"]
    asked = {record.case["name"]: record.sections for record in records.values()}
    both = ["roofs", "preprocess"]
    assert asked == {"a": ["roofs"], "b": both, "c": both, "d": ["preprocess"]}


def test_a_failing_case_loses_nothing(toys, tmp_path, capsys):
    toys.failing["b"] = RuntimeError("no such kernel\nlong trace")
    toys.failing["c"] = torch.OutOfMemoryError("all of it")
    records = run(tmp_path, "--sections", "roofs")
    notes = {r.case["name"]: r.result.get("note") for r in records.values()}
    assert notes == {
        "a": None,
        "b": "failed: RuntimeError: no such kernel",
        "c": "out of memory",
    }
    assert "failed: RuntimeError: no such kernel: kind=toy name=b" in capsys.readouterr().out


def test_a_run_goes_on_where_it_ended(toys, tmp_path):
    toys.failing["c"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--sections", "roofs")
    toys.failing.clear()
    run(tmp_path, "--sections", "roofs", "preprocess")
    assert toys.measured == ["a", "b", "c", "c", "d"]
    results = Results.load(tmp_path)
    assert len(results.runs) == 2
    assert results.runs[0]["machine"]["torch"] == torch.__version__
    run(tmp_path, "--sections", "roofs", "preprocess")
    assert len(toys.measured) == 5
    assert len(Results.load(tmp_path).runs) == 2  # nothing was left to run


def test_a_lost_device_ends_the_run(toys, tmp_path, monkeypatch, capsys):
    """What was measured is there, and the next run begins behind the case that it was lost in."""

    def lost() -> None:
        raise RuntimeError("an illegal memory access\nlong trace")

    release = pyg_dfgnn.bench.run.release
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr("pyg_dfgnn.bench.run.release", lambda _: release("cuda"))
    assert main(["run", *TOY, "--out", str(tmp_path), "--sections", "roofs"]) == 2
    assert "takes no more work: an illegal memory access; run again" in capsys.readouterr().err
    monkeypatch.undo()
    assert len(Results.load(tmp_path).records) == 1


def test_failures_are_retried_when_asked(toys, tmp_path):
    toys.failing["b"] = RuntimeError("once")
    run(tmp_path, "--sections", "roofs")
    toys.failing.clear()
    run(tmp_path, "--sections", "roofs")
    assert toys.measured == ["a", "b", "c"]
    records = run(tmp_path, "--sections", "preprocess", "--retry")
    assert toys.measured == ["a", "b", "c", "b", "d"]
    asked = {record.case["name"]: record.sections for record in records.values()}
    assert asked["b"] == asked["c"] == ["roofs", "preprocess"]
    assert not any(record.is_failed for record in records.values())


def test_no_case_begins_after_the_limit(toys, tmp_path, capsys):
    assert run(tmp_path, "--sections", "roofs", "--limit-s", "-1") == {}
    assert "0 results" in (out := capsys.readouterr().out)
    assert "3 left to measure" in out


def test_a_graph_is_made_once(tmp_path, monkeypatch):
    made = []
    original = registry.load

    def load(name, *arguments):
        made.append(name)
        return original(name, *arguments)

    monkeypatch.setattr(registry, "load", load)
    run(tmp_path, "--sections", "full", "methods", "--names", "Cora")
    assert made == ["Cora"]


def test_everything(tmp_path):
    """A run of all sections, as small as they get, its report, and one of parts of it."""
    assert main(["run", *TOY, "--out", str(tmp_path), "--commit", "abc"]) == 0
    results = Results.load(tmp_path)
    assert results.runs[0]["machine"]["commit"] == "abc"
    for name in SECTIONS:
        assert bool(results.of(name)) == (name != "super")  # needs a GPU, or --names
    for record in results.records.values():
        assert record.result.get("note", "") in ("", *CANNOT_BE_HAD), record
        assert ("graph" in record.result) == (record.case["kind"] not in ("copy", "gather"))
    check_report(tmp_path, results)
    check_report_of_parts(tmp_path, results)


def check_report(out, results: Results) -> None:
    page = (out / "report.html").read_text()
    for name, section in SECTIONS.items():
        assert (f'<h2 id="{name}">{section.title}</h2>' in page) == (name != "super")
    figures = {file.stem for file in out.glob("*.png")}
    assert page.count("data:image/png;base64,") == len(figures) >= 12
    assert {file.stem for file in out.glob("*.svg")} == figures
    assert "PATTERN ×2 (stand-in)" in page
    assert "; DGL: not installed" in page
    assert "<td>Cora (stand-in)</td><td>2,708</td><td>10,556</td><td>168</td>" in page
    with (out / "batch.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = results.of("batch")[0]
    assert float(rows[0]["forward_ms"]) == first["forward_ms"][0]
    assert float(rows[0]["forward_ms_high"]) == first["forward_ms"][2]
    assert {row["graph"] for row in rows if not row["note"]} == {"stand-in"}


def check_report_of_parts(folder, results: Results) -> None:
    """Files of a run in two parts make one report, and a page shows its figures."""
    parts = []
    for number, names in enumerate((["batch", "roofs"], ["features"])):
        part = Results(
            [{**results.runs[0], "started": str(number)}],
            {k: r for k, r in results.records.items() if set(r.sections) & set(names)},
        )
        parts.append(folder / f"{number}.json")
        part.save(parts[-1])
    page = folder / "docs" / "page.md"
    out = ["--out", str(folder / "docs" / "figures"), "--page", str(page)]
    assert main(["report", *map(str, parts), *out]) == 0
    text = page.read_text()
    assert "](figures/features.svg)" in text
    assert "](figures/headline.svg)" in text
    assert "](figures/batch-speedup-fp32.svg)" in text
    assert "|  | 0 | 1 |" in text  # the runs
    assert "[0.json](../0.json), [1.json](../1.json)" in text
    assert (folder / "docs" / "figures" / "features.svg").exists()


def test_results_that_are_none(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    out = ["--out", str(tmp_path)]
    assert main(["report", str(tmp_path / "results.json"), *out]) == 2
    assert "expected a file of results" in capsys.readouterr().err


def test_findings():
    """Ratios of medians, of rows that differ in what is compared alone."""

    def row(backend: str, ms: float, **different):
        same = {"workload": "w", "batch": 1, "score": "dot", "dtype": "fp32", "heads": 1}
        same |= {"head_dim": 8, "order": "sorted", "backend": backend}
        times = {name: [ms, ms, ms] for name in ("forward_ms", "forward_backward_ms")}
        return {**same, **different, **times}

    rows = [
        row("auto", 1),
        row("pyg", 2),
        row("auto", 1, workload="x"),
        row("pyg", 8, workload="x"),
    ]
    rows += [row("auto", 1, workload="y"), row("pyg", 100, workload="y", head_dim=16)]
    text = findings.over_eager(rows)
    assert "forward in fp32 4.0 times (2.0 to 8.0); forward + backward in fp32 4.0" in text
    assert findings.over_eager(rows[::2]) == ""

    rows = [row("auto", 1.2), row("tile", 1.0), row("smmf", 3.0)]
    assert "in 0 of 2 cases, at worst 1.20 times" in findings.choice(rows)
    rows = [row("smmf", 1), row("unfused", 3), row("auto", 1), row("auto", 2, order="shuffled")]
    text = findings.ablations(rows)
    assert "without fusion forward takes 3.0 times" in text
    assert "shuffled nodes make forward take 2.0 times" in text

    some = [row("techniques", 2), row("techniques-none", 6), row("smmf", 1)]
    assert findings.techniques(some).endswith(": no technique 3.0 times (3.0 to 3.0).")
    orders = {"sorted": 2, "shuffled": 4, "rcm": 5}
    some = [row("auto", ms, kind="attention", order=order) for order, ms in orders.items()]
    text = findings.reordering(some)
    assert "with the order as given forward is 2.0 times (2.0 to 2.0) as fast" in text
    assert "with rcm forward is 0.8 times" in text
    some = [row("auto", 2, workload="path"), row("auto", 1, workload="star in")]
    some.append(row("auto", 3, workload="star out"))
    assert "forward in fp32 0.50 to 1.50 times" in findings.stars(some)


def results_of(path, **times: list[float] | str):
    """A file of toys with these times, or notes."""
    records = {}
    for name, time in times.items():
        result = {"note": time} if isinstance(time, str) else {"ms": time}
        record = Record({"kind": "toy", "name": name}, ["roofs"], result)
        records[record.key] = record
    Results([{"machine": {"device": "toy"}, "started": ""}], records).save(path)
    return str(path)


def test_compare(tmp_path, capsys):
    before = results_of(tmp_path / "a.json", a=[1, 0.9, 1.1], b=[1, 0.9, 1.1], c=[1, 1, 1])
    noise = results_of(
        tmp_path / "b.json", a=[1.15, 1.05, 1.3], b=[0.8, 0.7, 0.95], c=[1.04, 1.04, 1.04]
    )
    assert main(["compare", before, noise]) == 0
    out = capsys.readouterr().out
    assert "Slower: 0" in out
    assert "Faster: 0" in out
    assert main(["compare", before, noise, "--threshold", "0.01"]) == 1  # c
    assert "1.04x" in capsys.readouterr().out

    slower = results_of(tmp_path / "c.json", a=[2, 1.9, 2.1], b=[0.5, 0.4, 0.6], d=[1, 1, 1])
    assert main(["compare", before, slower]) == 1
    out = capsys.readouterr().out
    assert "2 cases in both files" in out
    assert "Slower: 1\n    2.00x" in out
    assert "Faster: 1\n    0.50x" in out
    assert main(["compare", slower, before]) == 1  # b
    assert main(["compare", before, before]) == 0

    broken = results_of(tmp_path / "d.json", a="out of memory", b=[1, 0.9, 1.1])
    assert main(["compare", before, broken]) == 1
    assert "Works no more: 1\n  out of memory: kind=toy name=a" in capsys.readouterr().out

    noted = results_of(tmp_path / "e.json", a="[error 3e-02]", b=[1, 0.9, 1.1])
    failed = results_of(tmp_path / "f.json", a="failed: no", b=[1, 0.9, 1.1])
    assert main(["compare", noted, failed]) == 1
    assert "Works no more: 1" in capsys.readouterr().out
    assert main(["compare", failed, noted]) == 0

    assert main(["compare", before, results_of(tmp_path / "g.json", d=[1, 1, 1])]) == 2
    assert "none that is in both files" in capsys.readouterr().err
    for times in (5, None, [0, 0, 0], [2, 1, 1.5], ["1", "1", "1"]):
        assert main(["compare", before, results_of(tmp_path / "h.json", a=times)]) == 2
        assert "expected a file of results" in capsys.readouterr().err
    for threshold in ("nan", "inf", "-1"):
        with pytest.raises(SystemExit) as stopped:
            main(["compare", before, noise, "--threshold", threshold])
        assert stopped.value.code == 2
        assert "--threshold: expected a finite number >= 0" in capsys.readouterr().err


def test_results_of_another_device(toys, tmp_path, capsys):
    run(tmp_path, "--sections", "roofs")
    results = Results.load(tmp_path)
    results.runs[0]["machine"]["device"] = "another"
    results.save(tmp_path / FILE)
    capsys.readouterr()
    assert main(["run", *TOY, "--out", str(tmp_path), "--sections", "roofs"]) == 2
    assert "got some of another; choose another folder" in capsys.readouterr().err


def test_results_of_another_seed(toys, tmp_path, capsys):
    run(tmp_path, "--sections", "roofs")
    options = ["--out", str(tmp_path), "--sections", "roofs", "--seed", "7"]
    assert main(["run", *TOY, *options]) == 2
    assert "of this seed (7), got some of 0; choose another folder" in capsys.readouterr().err


def test_roots_are_folders(toys, tmp_path, capsys):
    options = ["--out", str(tmp_path), "--sections", "roofs", "--root", str(tmp_path / "no")]
    assert main(["run", *TOY, *options]) == 2
    assert (
        f"--root: expected folders of data sets, got {tmp_path / 'no'}" in capsys.readouterr().err
    )


def test_stand_ins_give_way_to_data(tmp_path):
    scope = Scope.of("cpu", quick=True, names=["Cora", "CiteSeer"])
    cases = wanted(Results(), ["full"], scope)
    records = [Record(case.about(), ["full"], {"graph": "stand-in"}) for case in cases]
    known = Results([], {record.key: record for record in records})
    assert cases
    assert not wanted(known, ["full"], scope)
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    (tmp_path / "Cora" / "raw" / "file").touch()
    again = wanted(known, ["full"], scope, roots=[str(tmp_path)])
    assert {case.about()["workload"] for case in again} == {"Cora"}
    for case in again:
        known.records[key_of(case.about())].result["graph"] = "real"
    assert not wanted(known, ["full"], scope, roots=[str(tmp_path)])


def test_real_data_is_found_under_a_root(tmp_path, monkeypatch):
    folder = tmp_path / "second" / "Cora" / "raw"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    roots = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert registry.find("Cora", roots) == roots[1]
    assert registry.find("CiteSeer", roots) is None

    import torch_geometric.data

    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    data = torch_geometric.data.Data(edge_index=edge_index, num_nodes=3)
    asked = []
    known = registry.KNOWN["Cora"]._replace(load=lambda root: asked.append(root) or data)
    monkeypatch.setitem(registry.KNOWN, "Cora", known)
    made = registry.load("Cora", 1, "cpu", 0, roots, download=False)
    assert (made.is_real, made.num_edges, asked) == (True, 3, [roots[1]])
    (folder / "file").unlink()
    assert not registry.load("Cora", 1, "cpu", 0, roots, download=False).is_real
    assert registry.load("Cora", 1, "cpu", 0, roots, download=True).is_real
    assert asked == [roots[1], roots[0]]  # into the first


def test_downloads_need_a_root(capsys):
    assert main(["run", *TOY, "--download"]) == 2
    assert "--download: expected a --root" in capsys.readouterr().err


def test_scopes():
    """What suits a device; all that is named; and compiled baselines on few graphs."""
    gpu, cpu = Scope.of("cuda", False), Scope.of("cpu", False)
    assert gpu.large == registry.LARGE
    assert cpu.large == ()
    assert Scope.of("cpu", False, names=["Reddit"]).large == ("Reddit",)
    assert Scope.of("cpu", False, names=["Reddit"]).batches == ()
    cases = {case for section in SECTIONS.values() for case in section.cases(gpu)}
    compiled = [c for c in cases if getattr(c, "backend", "") in sections.COMPILED]
    assert 5 < len(compiled) < 25  # each takes ten seconds


def test_training_steps_of_all_batches():
    """In an order in which what is compiled serves one data set after the other."""
    steps = list(SECTIONS["end-to-end"].cases(Scope.of("cuda", False)))
    trained = [(c.model, c.dtype, c.workload) for c in steps if c.backend == "pyg-compiled"]
    assert trained[:6] == [("gt", "fp32", name) for name in registry.BATCHES]
    assert trained[6:] == [
        ("gat", "fp32", "PATTERN"),
        *(("gt", "bf16", name) for name in ("PATTERN", "MNIST", "COCO-SP")),
    ]
    for backend in ("dfgnn", "dfgnn-convert", "dfgnn-device", "dfgnn-compiled", "pyg"):
        names = {c.workload for c in steps if (c.model, c.dtype) == ("gt", "fp32")}
        assert {c.workload for c in steps if c.backend == backend} == names


def test_what_a_failure_keeps_is_let_go_of():
    """Frames in a cycle with their exception, and tensors in those."""

    def fail() -> weakref.ref:
        kept = torch.zeros(1)
        try:
            raise RuntimeError("out of memory")
        except RuntimeError as error:
            cycle = error  # noqa: F841
        return weakref.ref(kept)

    gc.disable()
    try:
        kept = fail()
        assert kept() is not None
        pyg_dfgnn.bench.run.release("cpu")
        assert kept() is None
    finally:
        gc.enable()
