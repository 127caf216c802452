"""A training loop for node classification."""

import sys
import time
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from .tasks import Task

Record = dict[str, Any]
Device = torch.device | str


def train(
    net: nn.Module,
    task: Task,
    device: Device,
    epochs: int,
    lr: float,
    weight_decay: float = 0.0,
    compile: bool = False,
    progress: bool = True,
    may_stop: bool = False,
) -> tuple[list[Record], Record]:
    """Returns a record of each epoch and that of the best, whose weights ``net`` has in the end.

    Record 0 is of the untrained net.

    Args:
        progress: Show a bar on stderr.
        may_stop: Where an interrupt comes after an epoch, return what there is.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay)
    steps = epochs * len(task.batches["train"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    run = torch.compile(net, dynamic=None if task.whole_graph else True) if compile else net
    [untrained] = evaluate(net, task, ["val"], device)
    history: list[Record] = [{"epoch": 0, "val": untrained[task.metric]}]
    best: Record = {"val": -1.0}
    weights: dict[str, Any] = {}
    calm = 0.2 if sys.stderr.isatty() else 5.0  # seconds between lines of a log
    numbers = range(1, epochs + 1)
    bar = tqdm(numbers, unit="epoch", ncols=100, mininterval=calm, disable=not progress)
    try:
        for epoch in bar:
            start = time.perf_counter()
            losses, scores = train_epoch(run, task, optimizer, schedule, device)
            seconds = time.perf_counter() - start
            val, test = evaluate(run, task, ["val", "test"], device)
            record = {"epoch": epoch, "losses": losses, "seconds": seconds, "test_scores": test}
            record |= {"train": scores[task.metric], "val": val[task.metric]}
            if not weights or record["val"] > best["val"]:
                best, weights = record, {k: v.clone() for k, v in net.state_dict().items()}
            history.append(record)
            loss, accuracies = losses[-1], f"train {record['train']:.3f} val {record['val']:.3f}"
            bar.set_postfix_str(f"loss {loss:.3f} {accuracies} {seconds:.2f} s", refresh=False)
    except KeyboardInterrupt:
        if not (may_stop and weights):
            raise
        bar.close()
    net.load_state_dict(weights)
    return history, best


def train_epoch(
    net: Any, task: Task, optimizer: Any, schedule: Any, device: Device
) -> tuple[list[float], dict[str, float]]:
    """The loss of each step, and the scores of the training nodes as they were trained on."""
    net.train()
    losses, outs, labels = [], [], []
    for batch in task.batches["train"]:
        batch = batch.to(device)
        out, y = task.labelled(batch, net(batch.x, batch.edge_index), "train")
        loss = task.loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        outs.append(out.detach())
        labels.append(y)
    return torch.stack(losses).tolist(), task.scores(torch.cat(outs), torch.cat(labels))


@torch.no_grad()
def evaluate(net: Any, task: Task, splits: list[str], device: Device) -> list[dict[str, float]]:
    """The scores of each split; a whole graph goes through the net once for all of them."""
    net.eval()
    if task.whole_graph:
        batch = task.batches[splits[0]][0]
        out = net(batch.x, batch.edge_index)
        return [task.scores(*task.labelled(batch, out, split)) for split in splits]
    results = []
    for split in splits:
        batches = [batch.to(device) for batch in task.batches[split]]
        outs = [net(batch.x, batch.edge_index) for batch in batches]
        results.append(task.scores(torch.cat(outs), torch.cat([batch.y for batch in batches])))
    return results
