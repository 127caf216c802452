"""A file of results: the runs that it is of, and a record of each case.

JSON with one record a line. Times are ``[median, lower quartile, upper quartile]`` in milliseconds,
names that end in ``_mib`` are MiB.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .case import Row

FILE = "results.json"


@dataclass
class Record:
    """What a case was, the sections that asked for it, what was found."""

    case: Row
    sections: list[str]
    result: Row

    @property
    def row(self) -> Row:
        return {"note": "", **self.case, **self.result}

    @property
    def key(self) -> str:
        return key_of(self.case)

    @property
    def is_failed(self) -> bool:
        return str(self.result.get("note", "")).startswith("failed")


def compact(value: Row) -> str:
    return json.dumps(value, separators=(",", ":"))


def key_of(about: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in about.items())


@dataclass
class Results:
    """Records by key, and what each run that made some of them depended on."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Of a file, or of the file in a folder.

        Raises:
            ValueError: it is no file of results.
        """
        path = path / FILE if path.is_dir() else path
        try:
            content = json.loads(path.read_text())
            records = [Record(**record) for record in content["records"]]
            results = cls(list(content["runs"]), {record.key: record for record in records})
            for run in results.runs:
                _ = run["machine"]["device"]
            for record in results.records.values():
                check(record)
            return results
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected a file of results, got {error!r}") from None

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        runs = ",\n".join(map(compact, self.runs))
        records = ",\n".join(compact(asdict(record)) for record in self.records.values())
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(f'{{"runs": [\n{runs}\n],\n"records": [\n{records}\n]}}\n')
        os.replace(unfinished, path)

    def add(self, other: "Results") -> None:
        """Takes in the runs and records of another; of two records of a case its one stays."""
        self.runs += [run for run in other.runs if run not in self.runs]
        for key, record in other.records.items():
            known = self.records.get(key)
            asked = known.sections if known else []
            both = list(dict.fromkeys([*asked, *record.sections]))
            self.records[key] = Record(record.case, both, record.result)

    @property
    def rows(self) -> list[Row]:
        return [record.row for record in self.records.values()]

    def of(self, section: str) -> list[Row]:
        """The rows of a section, in the order of their measurement."""
        return [record.row for record in self.records.values() if section in record.sections]


def check(record: Record) -> None:
    """ValueError where times are none."""
    dict(record.row)
    for name, (median, low, high) in times(record.result).items():
        if not 0 < low <= median <= high < float("inf"):
            raise ValueError(f"{name}: expected numbers > 0 in order, got {low}, {median}, {high}")


def times(result: Row) -> dict[str, list[float]]:
    return {name: value for name, value in result.items() if name.endswith("ms")}


def merged(paths: list[Path]) -> Results:
    results = Results()
    for path in paths:
        results.add(Results.load(path))
    return results
