"""What it costs to give the nodes of a graph new numbers."""

from dataclasses import dataclass
from typing import ClassVar

from .case import Case, Row
from .lab import Lab
from .measure import Timing


@dataclass(frozen=True)
class Reordering(Case):
    """``ReorderNodes`` once, on the CPU; attention in that order is measured as ``Attention``."""

    kind: ClassVar[str] = "reordering"
    workload: str
    batch: int
    method: str

    def measure(self, lab: Lab, row: Row) -> None:
        row |= lab.workload(self.workload, self.batch).statistics()
        made = lab.reordering(self.workload, self.batch, self.method)
        row["reorder_ms"] = Timing.of([made.ms]).rounded()
