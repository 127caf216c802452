"""Training with our layers and with PyG's: the same seeds, the same weights to begin with."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..datasets import SBM
from .case import Case, Row
from .lab import Lab
from .models import Net
from .registry import find
from .tasks import SETTINGS, Task, kind, make_task
from .training import train
from .unsupported import Unsupported

CURVES = 0  # the seed whose curves are kept


@dataclass(frozen=True)
class Accuracy(Case):
    """Training of a model with one library's layers: the test score of the epoch that validates
    best; of one seed also the training loss and the validation score of every epoch."""

    kind: ClassVar[str] = "accuracy"
    dataset: str
    model: str
    library: str
    seed: int
    epochs: int
    graphs: int = 1000

    def measure(self, lab: Lab, row: Row) -> None:
        row["graph"] = "stand-in" if self.dataset in SBM else "real"
        task = self.task(lab)
        torch.manual_seed(self.seed)
        use = SETTINGS[kind(self.dataset)]
        shape = (use.hidden, use.heads, use.layers, use.dropout)
        net = Net(self.model, task.channels, task.classes, *shape, self.library).to(lab.device)
        history, best = train(
            net, task, lab.device, self.epochs, use.lr, use.weight_decay, progress=False
        )
        row |= {"metric": task.metric, "best_epoch": best["epoch"]}
        row |= {"val": round(best["val"], 4), "test": round(best["test_scores"][task.metric], 4)}
        if self.seed == CURVES:
            row["losses"] = [round(epoch["losses"][-1], 4) for epoch in history[1:]]
            row["vals"] = [round(epoch["val"], 4) for epoch in history[1:]]

    def task(self, lab: Lab) -> Task:
        key = ("task", self.dataset, self.graphs)
        if key not in lab.made:
            root = ""
            if self.dataset not in SBM:
                found = find(self.dataset, lab.roots)
                if found is None and not (lab.download and lab.roots):
                    raise Unsupported("its data is under no --root")
                root = found or lab.roots[0]
            lab.made[key] = make_task(self.dataset, root, lab.device, self.graphs, seed=lab.seed)
        return lab.made[key]
