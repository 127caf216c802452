"""What a measurement is: a description by which its result is stored, and how to take it."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from .lab import Lab
from .unsupported import Unsupported

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case(ABC):
    """A measurement, told from all others by its kind and its fields."""

    kind: ClassVar[str]

    def about(self) -> Row:
        """Its fields, the first columns of its row."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    @abstractmethod
    def measure(self, lab: Lab, row: Row) -> None:
        """Adds results to the row. What it raises becomes a note there."""


@contextmanager
def noted(row: Row) -> Iterator[None]:
    """Adds a failure to the row's note, in a few words; the failure goes no further."""
    failure = ""
    try:
        yield
    except torch.OutOfMemoryError:
        failure = "out of memory"
    except Unsupported as reason:
        failure = str(reason)
    except Exception as error:
        first = str(error).strip().split("\n", 1)[0][:200]
        failure = f"failed: {type(error).__name__}: {first}"
    row["note"] = " ".join(filter(None, [row.get("note"), failure]))
