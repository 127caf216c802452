"""On a machine with several GPUs: what lies on one that is not the current one, threads of several,
and data-parallel training. Results are those of the first GPU, which must be of the same kind."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import calls
import graphs
import pytest
import torch
import torch.multiprocessing as mp
from calls import METHODS, SCORES, assert_same_bits, make_operands
from conftest import missing_cuda
from graphs import Csr
from layers import VARIANTS, edge_features, edge_index_of, features, outputs_and_gradients, pair
from surroundings import LAYERS, twins
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from pyg_dfgnn import build_graph
from pyg_dfgnn.transforms import PrecomputeGraph

FIRST, SECOND = "cuda:0", "cuda:1"
GPUS = 0 if missing_cuda() else torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="there are no two CUDA GPUs")


@pytest.fixture(autouse=True)
def first_is_current():
    """Nothing changes the current GPU."""
    with torch.cuda.device(0):
        yield
        assert torch.cuda.current_device() == 0


def moved(operands: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: t.to(device) for name, t in operands.items()}


def attention_results(
    path: str, score: str, graph: Csr, dtype: torch.dtype, device: str
) -> list[Tensor]:
    graph = graph.to(device)
    operands = moved(make_operands(score, graph, 2, 64, dtype, edge_terms=True), device)
    seed = torch.tensor([11], device=device)
    with_sources = graph.csc() if path in ("attention", "pmf_fwd") else {}
    return calls.results(path, score, graph, operands, dropout_p=0.2, seed=seed, **with_sources)


def on_host(tensors: list[Tensor]) -> list[Tensor]:
    return [t.cpu() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["batch", "hub", "degrees_around_tiles"])
@pytest.mark.parametrize("path", [*METHODS, "attention"])
@pytest.mark.parametrize("score", SCORES)
def test_operators(score, path, name, dtype):
    graph = graphs.make(name)
    there = attention_results(path, score, graph, dtype, SECOND)
    assert all(t.device == torch.device(SECOND) for t in there)
    here = attention_results(path, score, graph, dtype, FIRST)
    assert_same_bits(on_host(there), on_host(here))


@pytest.mark.parametrize("self_loops", [False, True])
def test_graphs(self_loops):
    edge_index = edge_index_of(graphs.random(5000, 20))
    size = 5000
    found = build_graph(edge_index.to(SECOND), size, size, self_loops)
    expected = build_graph(edge_index.to(FIRST), size, size, self_loops)
    for name in ("rowptr", "col", "colptr", "row", "perm", "eid", "tiles"):
        there, here = getattr(found, name), getattr(expected, name)
        assert (there is None) == (here is None)
        if there is not None:
            assert there.device == torch.device(SECOND)
            assert_same_bits(on_host([there]), on_host([here]))


def test_other_devices_operands():
    graph = graphs.mixed(FIRST)
    operands = make_operands("dot", graph)
    with pytest.raises(RuntimeError, match="k: "):
        calls.run("attention", "dot", graph, operands | {"k": operands["k"].to(SECOND)})
    with pytest.raises(RuntimeError, match="rowptr: "):
        calls.run("attention", "dot", graph.to(SECOND), operands)


@pytest.mark.parametrize("name", VARIANTS)
def test_layers(name):
    layer, arguments = VARIANTS[name]
    x, graph = features(40)[0], graphs.random(40, 6)
    ours, _ = pair(layer, **arguments)
    edge_index = edge_index_of(graph)
    given = {"edge_attr": edge_features(edge_index)} if "edge_dim" in arguments else {}
    found = []
    for device in (SECOND, FIRST):
        conv = copy.deepcopy(ours).to(device).eval()
        here = moved({"x": x, "edge_index": edge_index, **given}, device)
        found.append(outputs_and_gradients(conv, **here))
    assert found[0].keys() == found[1].keys()
    assert_same_bits(*(on_host(list(tensors.values())) for tensors in found))


def test_one_model_moves():
    """What is known of an edge list is known of that one alone."""
    model = twins(LAYERS["GATConv_loops"])[0].eval()
    x, edge_index = features(40)[0], edge_index_of(graphs.random(40, 6))
    expected = model(x, edge_index)
    for device in (FIRST, SECOND, FIRST, SECOND):
        out = model.to(device)(x.to(device), edge_index.to(device))
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_precomputed_batches():
    data = []
    for nodes in (20, 33, 64, 5):
        edge_index = edge_index_of(graphs.random(nodes, 5))
        data.append(PrecomputeGraph()(Data(x=features(nodes)[0], edge_index=edge_index)))
    found = []
    for device in (SECOND, FIRST):
        batch = next(iter(DataLoader(data, batch_size=4, pin_memory=True)))
        batch = batch.to(device, non_blocking=True)
        model = twins(LAYERS["TransformerConv"], device)[0].eval()
        found.append(model(batch.x, batch.edge_index))
    assert_same_bits(on_host(found[:1]), on_host(found[1:]))


def test_capture():
    graph = graphs.random(300, 10, SECOND)
    operands = make_operands("dot", graph, 2, 64)

    def call() -> Tensor:
        return calls.run("attention", "dot", graph, operands)[0]

    with torch.cuda.device(1):
        expected = call()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = call()
        out.zero_()
        captured.replay()
    assert_same_bits([out], [expected])


def test_threads():
    """Each with a GPU of its own, at the same time."""
    graph = graphs.random(3000, 12)
    work = [(score, device) for score in SCORES for device in (FIRST, SECOND)] * 4

    def one(task: tuple[str, str]) -> list[Tensor]:
        score, device = task
        return on_host(attention_results("attention", score, graph, torch.float32, device))

    expected = {score: one((score, FIRST)) for score in SCORES}
    with ThreadPoolExecutor(4) as pool:
        for (score, _), found in zip(work, pool.map(one, work), strict=True):
            assert_same_bits(found, expected[score])


def _train(rank: int, store: str, found: Any) -> None:
    """One process of a group: a step on its own graph."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        model = DistributedDataParallel(_model().to(rank), device_ids=[rank])
        _loss(model, rank, f"cuda:{rank}").backward()
        found[rank] = {n: p.grad.cpu() for n, p in model.module.named_parameters()}
    finally:
        dist.destroy_process_group()


def _model() -> torch.nn.Module:
    return twins(LAYERS["TransformerConv"])[0]


def _loss(model: torch.nn.Module, rank: int, device: str) -> Tensor:
    x, edge_index = features(60 + rank)[0], edge_index_of(graphs.random(60 + rank, 6))
    return model(x.to(device), edge_index.to(device)).square().mean()


def test_distributed_data_parallel(tmp_path):
    """NCCL over two GPUs: gradients are the mean of those of two models."""
    with mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(_train, (str(tmp_path / "store"), found), nprocs=2)
        found = dict(found)
    expected = []
    for rank in range(2):
        model = _model().to(FIRST)
        _loss(model, rank, FIRST).backward()
        expected.append({n: p.grad.cpu() for n, p in model.named_parameters()})
    for name in expected[0]:
        mean = (expected[0][name] + expected[1][name]) / 2
        for rank in range(2):
            torch.testing.assert_close(found[rank][name], mean, rtol=1e-4, atol=1e-6)
