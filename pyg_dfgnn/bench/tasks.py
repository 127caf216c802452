"""Node classification tasks: their graphs, loss, scores and default settings."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.transforms import AddRandomWalkPE, NormalizeFeatures

from .. import datasets
from ..loader import DeviceLoader
from ..transforms import PrecomputeGraph


class Settings(NamedTuple):
    """How a task is trained where nobody says otherwise."""

    epochs: int
    hidden: int
    heads: int
    layers: int
    dropout: float
    lr: float
    weight_decay: float


# By kind of data set
SETTINGS = {
    "sbm": Settings(50, 64, 8, 4, 0.0, 1e-3, 0.0),
    "citation": Settings(100, 64, 8, 2, 0.6, 5e-3, 5e-4),
    "other": Settings(100, 64, 8, 3, 0.2, 1e-2, 0.0),
}


def kind(dataset: str) -> str:
    if dataset in datasets.SBM:
        return "sbm"
    return "citation" if dataset in datasets.PLANETOID else "other"


@dataclass
class Task:
    """What to learn: batches by split ("train", "val", "test"), loss and scores.

    A whole graph is the only batch of all three splits, which its masks tell apart.
    """

    batches: dict[str, Any]
    channels: int
    classes: int
    balanced: bool  # classes count alike in the loss and the score, as the SBM benchmarks ask
    metric: str = field(init=False)  # the score that picks the best epoch

    def __post_init__(self) -> None:
        self.metric = "balanced accuracy" if self.balanced else "accuracy"
        if self.classes == 2 and not self.balanced:
            self.metric = "ROC-AUC"

    @property
    def whole_graph(self) -> bool:
        return isinstance(self.batches["train"], list)

    def describe(self) -> str:
        """How much there is to learn from, in words."""
        if self.whole_graph:
            data = self.batches["train"][0]
            return f"{data.num_nodes} nodes, {data.num_edges} edges, {self.classes} classes"
        dataset = self.batches["train"].dataset
        graphs = len(dataset)
        whole = dataset.batch(range(graphs))
        return (
            f"{graphs} training graphs of {whole.num_nodes / graphs:.0f} nodes and "
            f"{whole.num_edges / graphs:.0f} edges on average, {self.classes} classes"
        )

    def labelled(self, batch: Any, out: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and labels [n] of the split's nodes."""
        if self.whole_graph:
            mask = batch[f"{split}_mask"]
            return out[mask], batch.y[mask]
        return out, batch.y

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        weight = None
        if self.balanced:
            weight = 1 - y.bincount(minlength=self.classes) / y.numel()
        return F.cross_entropy(out, y, weight)

    def scores(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The metric first, in [0, 1]."""
        right = (out.argmax(dim=1) == y).float()
        if self.balanced:
            count = y.bincount(minlength=self.classes)
            recall = y.bincount(right, minlength=self.classes) / count.clamp(min=1)
            return {"balanced accuracy": recall[count > 0].mean().item()}
        accuracy = {"accuracy": right.mean().item()}
        if self.metric == "ROC-AUC":
            return {"ROC-AUC": roc_auc(out[:, 1] - out[:, 0], y)} | accuracy
        return accuracy

    def majority(self) -> float:
        """The metric of always naming the most frequent class."""
        if self.metric == "accuracy":
            batch = self.batches["test"][0]
            return (batch.y[batch.test_mask].bincount().max() / batch.test_mask.sum()).item()
        return 1 / self.classes


def make_task(
    dataset: str,
    root: str,
    device: torch.device | str,
    graphs: int = 1000,
    batch_size: int = 32,
    walks: int = 8,
    seed: int = 0,
) -> Task:
    """A task by the name of its data set, see :mod:`pyg_dfgnn.datasets`.

    Args:
        root: The folder of PyG's data sets.
        device: Of the graphs.
        graphs: The number of training graphs of CLUSTER, and about that of PATTERN, which are as
            many of each of its patterns as there are patterns.
        batch_size: Graphs of a training step.
        walks: Steps of the random-walk encoding of these graphs, 0 for none.
        seed: Of these graphs.

    Raises:
        FileNotFoundError: the data can't be had.
    """
    if dataset not in datasets.SBM:
        data = datasets.load(dataset, root).to(device)
        if kind(dataset) == "citation":
            data = NormalizeFeatures()(data)  # word counts to shares, as is usual
        whole = {split: [data] for split in ("train", "val", "test")}
        return Task(whole, data.num_features, int(data.y.max()) + 1, balanced=False)
    if dataset == "pattern":
        patterns = round(graphs**0.5)  # as many patterns as graphs of each, like the recipe
        each = round(graphs / patterns)
        few = max(1, each // 5)
        splits = datasets.pattern_graphs(patterns, each, few, few, seed)
    else:
        few = max(1, graphs // 5)
        splits = datasets.cluster_graphs(graphs, few, few, seed)
    if walks:
        add_random_walks(splits, walks)
    transform = PrecomputeGraph()
    batches = {
        split: DeviceLoader(map(transform, made), batch_size, split == "train", device)
        for split, made in splits._asdict().items()
    }
    classes = 2 if dataset == "pattern" else 6
    return Task(batches, splits.train[0].num_features, classes, balanced=True)


def add_random_walks(splits: datasets.Splits, steps: int) -> None:
    """Appends to x the probability that a random walk is back after 1, …, ``steps`` steps.

    Attention averages over the neighbours, so that it can't count them; this positional encoding
    (Dwivedi et al., ICLR 2022) tells of the node's degree and of the density around it. Its columns
    are standardised over the training nodes.
    """
    walk = AddRandomWalkPE(steps, "walk")
    for graphs in splits:
        graphs[:] = [walk(graph) for graph in graphs]
    seen = torch.cat([graph.walk for graph in splits.train])
    mean, std = seen.mean(0), seen.std(0).clamp(min=1e-6)
    for graphs in splits:
        for graph in graphs:
            graph.x = torch.cat([graph.x, (graph.walk - mean) / std], dim=1)
            del graph.walk


def roc_auc(score: Tensor, y: Tensor) -> float:
    """The chance that a random positive scores above a random negative, a tie counting half."""
    negatives = score[y == 0].sort().values
    positives = score[y == 1]
    below = torch.searchsorted(negatives, positives)
    not_above = torch.searchsorted(negatives, positives, right=True)
    return ((below + not_above).double().mean() / (2 * negatives.numel())).item()
