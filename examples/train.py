"""Trains a Graph Transformer, GAT or AGNN to classify nodes, and times it beside PyG's layers.

python examples/train.py                              # PATTERN graphs, made on the spot
python examples/train.py --dataset Cora --model gat   # one whole graph, from PyG's loader
python examples/train.py --backend pyg                # the same model on PyG's own layers
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import report
import torch
from common import Parser, fail

from pyg_dfgnn import datasets
from pyg_dfgnn.bench.models import Net
from pyg_dfgnn.bench.options import count, positive, probability, seed, share
from pyg_dfgnn.bench.tasks import SETTINGS, kind, make_task
from pyg_dfgnn.bench.training import evaluate, train

INTERRUPTED = 130  # what shells take an exit by Ctrl-C for
TYPES = {"dropout": probability, "lr": share, "weight_decay": share}  # others are positive


def parse_args():
    parser = Parser(__doc__.split("\n\n")[0])
    add = parser.add_argument
    names = {name.lower(): name for name in datasets.NAMES}
    add("--model", default="gt", choices=["gt", "gat", "agnn"], help="Graph Transformer, GAT, AGNN")
    add("--dataset", default="pattern", type=lambda name: names.get(name.lower(), name),
        metavar="NAME", choices=datasets.NAMES, help=", ".join(datasets.NAMES))  # fmt: skip
    add("--root", default="data", help="folder of PyG's datasets, fetched where they are missing")
    add(
        "--graphs",
        default=1000,
        type=positive,
        help="training graphs of cluster, about so many of pattern",
    )
    add("--batch-size", default=32, type=positive, help="graphs of a training step")
    add("--walks", default=8, type=count, help="steps of the random-walk encoding, 0 for none")
    add("--backend", default="dfgnn", choices=["dfgnn", "pyg"], help="layers to train with")
    add(
        "--method",
        default="auto",
        choices=["auto", "smmf", "pmf", "tile", "resident"],
        help="of the fused layers",
    )
    add("--compile", action="store_true", help="train under torch.compile")
    add("--seed", default=0, type=seed, help="of the graphs and of the weights")
    add("--out", default="runs", help="folder for the plot and the result")
    add("--compare", default=20.0, type=share, help="seconds to measure speeds, 0 for none")
    for name in SETTINGS["sbm"]._fields:
        by_kind = ", ".join(f"{kind} {getattr(known, name)}" for kind, known in SETTINGS.items())
        add("--" + name.replace("_", "-"), default=argparse.SUPPRESS,
            type=TYPES.get(name, positive), help=by_kind)  # fmt: skip
    args = parser.parse_args()
    given = vars(args)
    args = argparse.Namespace(**SETTINGS[kind(args.dataset)]._asdict() | given)
    if args.hidden % args.heads:
        parser.error(f"--hidden ({args.hidden}) must be a multiple of --heads ({args.heads})")
    return args


def compare(args, task, nets: dict) -> dict:
    """Prints and returns what both kinds of layers score and take with the same weights."""
    scores = {name: evaluate(net, task, ["test"], args.device)[0] for name, net in nets.items()}
    batch = next(iter(task.batches["train"])).to(args.device)

    def loss_of(out):
        return task.loss(*task.labelled(batch, out, "train"))

    times = report.step_times(nets, batch, loss_of, args.compare)
    print("The same weights on the layers of pyg_dfgnn and of PyG:")
    print(report.format_table(task.metric, scores, times))
    return {"same_weights": scores, "times": times}


def save(path: Path, metric: str, result: dict[str, Any]) -> None:
    path.with_suffix(".json").write_text(json.dumps(result, indent=1))
    report.plot(path.with_suffix(".png"), path.name, metric, result["history"], result.get("times"))
    print(f"Saved {path}.png and .json")


def main():
    args = parse_args()
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)  # before what it is for
    except OSError as error:
        fail(f"argument --out: {error}")
    torch.manual_seed(args.seed)
    start = time.perf_counter()
    try:
        task = make_task(
            args.dataset,
            args.root,
            args.device,
            args.graphs,
            args.batch_size,
            args.walks,
            args.seed,
        )
    except FileNotFoundError as error:
        fail(str(error))
    print(f"{args.dataset}: {task.describe()} (ready in {time.perf_counter() - start:.1f} s)")

    def make_net(backend):
        shape = (task.channels, task.classes, args.hidden, args.heads, args.layers, args.dropout)
        return Net(args.model, *shape, backend, args.method).to(args.device)

    net = make_net(args.backend)
    history, best = train(
        net,
        task,
        args.device,
        args.epochs,
        args.lr,
        args.weight_decay,
        args.compile,
        may_stop=True,
    )
    scores = ", ".join(f"{name} {value:.4f}" for name, value in best["test_scores"].items())
    result = {
        "settings": {name: str(value) for name, value in vars(args).items()},
        "best": best,
        "majority": task.majority(),
        "epoch_seconds": report.median(epoch["seconds"] for epoch in history[1:]),
        "peak_mib": report.peak_memory(args.device),
        "history": history,
    }
    print(
        f"Untrained: validation {history[0]['val']:.4f}\n"
        f"Best epoch {best['epoch']}: train {best['train']:.4f}, validation {best['val']:.4f} "
        f"({task.metric}); test {scores} (always the commonest class: {result['majority']:.4f})\n"
        f"Epoch {result['epoch_seconds']:.2f} s, peak memory {result['peak_mib']:.0f} MiB "
        f"({'the GPU' if args.device.type == 'cuda' else 'the whole process'})"
    )
    name = f"{args.dataset}-{args.model}-{args.backend}-{args.seed}"
    save(Path(args.out) / name, task.metric, result)
    if len(history) <= args.epochs:
        fail(f"interrupted after {len(history) - 1} of {args.epochs} epochs", INTERRUPTED)
    if args.compare > 0:
        nets = {backend: make_net(backend) for backend in ("dfgnn", "pyg")}
        for twin in nets.values():
            twin.load_state_dict(net.state_dict())
        result |= compare(args, task, nets)
        save(Path(args.out) / name, task.metric, result)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
