"""Data sets are read from files as publishers lay them out; these are small, and made in place."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from pyg_dfgnn.bench import registry

SIZES = (5, 3, 7)  # nodes of the graphs of a batch
PUBLISHED = {
    "PATTERN": "PATTERN_v2",
    "CLUSTER": "CLUSTER_v2",
    "MNIST": "MNIST_v2",
    "CIFAR10": "CIFAR10_v2",
}


def cycle(nodes: int) -> Tensor:
    """The edges of a cycle, in both directions."""
    here = torch.arange(nodes)
    there = (here + 1) % nodes
    return torch.stack([torch.cat([here, there]), torch.cat([there, here])])


def benchmark(root: Path, name: str) -> None:
    """Of "Benchmarking Graph Neural Networks": dictionaries of tensors, a list a split."""
    graphs = [
        {"x": torch.rand(nodes, 3), "edge_index": cycle(nodes), "y": torch.zeros(1)}
        for nodes in SIZES
    ]
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    torch.save([graphs, graphs[:1], graphs[:1]], raw / f"{PUBLISHED[name]}.pt")


def long_range(root: Path, name: str) -> None:
    """Of the Long Range Graph Benchmark: tuples of features, edge features, edges and labels."""
    raw = root / name.lower() / "raw"
    raw.mkdir(parents=True)
    graphs = [
        (torch.rand(nodes, 14), torch.rand(2 * nodes, 2), cycle(nodes), [1] * nodes)
        for nodes in SIZES
    ]
    for split in ("train", "val", "test"):
        (raw / f"{split}.pickle").write_bytes(pickle.dumps(graphs))


def reddit(root: Path) -> None:
    raw = root / "Reddit" / "raw"
    raw.mkdir(parents=True)
    src, dst = cycle(40).numpy()
    matrix = scipy.sparse.coo_matrix((np.ones(80), (src, dst)), shape=(40, 40))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", matrix)
    labels = np.zeros(40, dtype=np.int64)
    np.savez(raw / "reddit_data.npz", feature=np.ones((40, 3)), label=labels, node_types=labels + 1)


def open_graph_benchmark(root: Path, folder: str, files: dict[str, np.ndarray]) -> None:
    """Of the Open Graph Benchmark: compressed tables, each edge once."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    (root / folder / "RELEASE_v1.txt").touch()
    edges = cycle(40)[:, :40].T.numpy()
    sizes = {"num-node-list": np.array([[40]]), "num-edge-list": np.array([[40]])}
    for name, table in {"edge": edges, **sizes, **files}.items():
        with gzip.open(raw / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, table, fmt="%d", delimiter=",")


def read(name: str, root: Path, device: str, count: int = 1):
    made = registry.load(name, count, device, 0, [str(root)], download=False)
    assert made.is_real
    return made


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, benchmark) for name in PUBLISHED),
        *((name, long_range) for name in ("PascalVOC-SP", "COCO-SP")),
    ],
)
def test_batches(name: str, write: Callable[[Path, str], None], tmp_path, device):
    write(tmp_path, name)
    made = read(name, tmp_path, device, count=2)  # of three
    assert made.ptr.tolist() == [0, 5, 8]
    expected = torch.cat([cycle(5), 5 + cycle(3)], dim=1)
    assert_same_edges(made.edge_index(), expected)


def test_reddit(tmp_path, device):
    reddit(tmp_path)
    made = read("Reddit", tmp_path, device)
    assert made.num_nodes == 40
    assert_same_edges(made.edge_index(), cycle(40))


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        (
            "ogbn-proteins",
            "ogbn_proteins",
            {
                "edge-feat": np.ones((40, 8), dtype=int),
                "node_species": np.ones((40, 1), dtype=int),
                "node-label": np.ones((40, 112), dtype=int),
            },
        ),
        ("ogbl-ppa", "ogbl_ppa", {"node-feat": np.ones((40, 58), dtype=int)}),
    ],
)
def test_open_graph_benchmark(name, folder, files, tmp_path, device):
    pytest.importorskip("ogb")
    open_graph_benchmark(tmp_path, folder, files)
    made = read(name, tmp_path, device)
    assert made.num_nodes == 40
    assert_same_edges(made.edge_index(), cycle(40))


def test_stand_in_where_there_are_no_files(tmp_path, device):
    (tmp_path / "PATTERN" / "raw").mkdir(parents=True)  # begun, and given up
    made = registry.load("PATTERN", 2, device, 0, [str(tmp_path)], download=False)
    assert not made.is_real


def assert_same_edges(found: Tensor, expected: Tensor) -> None:
    assert sorted(found.T.tolist()) == sorted(expected.T.tolist())
