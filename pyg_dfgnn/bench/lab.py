"""What measurements have in common: the device, where data is, and the graphs made so far."""

from dataclasses import dataclass, field
from typing import Any

from torch_geometric.data import Data

from . import registry
from .renumber import Reordered, reorder
from .workload import Workload

LARGE_EDGES = 20_000_000  # no two graphs with more are kept


@dataclass
class Lab:
    """The circumstances of a run.

    Attributes:
        budget_ms: About how long the repetitions of one call may take.
        seed: Of stand-ins, operands and weights.
        roots: Folders that are searched for PyG's and OGB's data sets.
        download: Whether to fetch what they lack, into the first.
        made: What several cases use, by how it is made.
    """

    device: str
    budget_ms: float = 60.0
    seed: int = 0
    roots: list[str] = field(default_factory=list)
    download: bool = False
    made: dict[Any, Any] = field(default_factory=dict)

    def workload(self, name: str, batch: int, order: str = "sorted") -> Workload:
        """A data set's graph, or the first ``batch`` of its graphs; the same again.

        ``order`` is that of the nodes: "sorted", as the data set has them, "shuffled" or, from
        there, a method of :mod:`pyg_dfgnn.reorder`.
        """
        key = (name, batch, order)
        if key not in self.made:
            if order == "shuffled":
                workload = self.workload(name, batch).shuffled(self.seed)
            elif order != "sorted":
                number = self.reordering(name, batch, order).number
                workload = self.workload(name, batch, "shuffled").renumbered(number)
            else:
                workload = registry.load(
                    name, batch, self.device, self.seed, self.roots, self.download
                )
            if workload.num_edges > LARGE_EDGES:
                self.forget_large(keep=name)
            self.made[key] = workload
        return self.made[key]

    def reordering(self, name: str, batch: int, method: str) -> Reordered:
        """New numbers for the shuffled nodes of a data set's graph; the same again."""
        key = ("reordering", name, batch, method)
        if key not in self.made:
            self.made[key] = reorder(self.workload(name, batch, "shuffled"), method)
        return self.made[key]

    def forget_large(self, keep: str) -> None:
        self.made = {
            key: made
            for key, made in self.made.items()
            if not isinstance(made, Workload) or made.num_edges <= LARGE_EDGES or key[0] == keep
        }

    def graphs(self, name: str, batch: int) -> list[Data]:
        """The first ``batch`` graphs of a data set, on the CPU; the same again, to be copied."""
        key = ("graphs", name, batch)
        if key not in self.made:
            self.made[key] = self.workload(name, batch).graphs()
        return self.made[key]
