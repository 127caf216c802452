"""The sections of the evaluation: which cases each is made of, on the device at hand.

A case that several sections ask for is measured once.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..reorder import METHODS
from .accuracy import Accuracy
from .attention import Attention
from .case import Case
from .conversion import IN_GRAPHS, ORDERS, PRECOMPUTED, Conversion
from .edge_layers import LAYERS, EdgeLayer
from .launches import Launches
from .layers import Layer
from .registry import BATCHES, DATASETS, DEGREES, KNOWN, LARGE, TREES
from .reordering import Reordering
from .roofs import ROW_BYTES, TABLE_MIB, Copy, Gather
from .scope import Scope
from .steps import MODELS, TrainingStep
from .techniques import VARIANTS

SCORES = ("dot", "cosine", "additive")
BATCH_SIZES = (64, 128, 256, 512, 1024, 2048)
HEAD_DIMS = (16, 32, 64, 128, 256)
COMPILED = ("compiled", "flex")
FLEX = (("PATTERN", "fp32"), ("PATTERN", "bf16"), ("MNIST", "bf16"), ("Cora", "fp32"))
COMMUNITY_EDGES = 5_000_000  # communities are found in Python: more would take minutes
TRAINED: tuple[str, ...] = ("Cora", "CiteSeer", "Tolokers")


class Section(NamedTuple):
    title: str
    cases: Callable[[Scope], Iterator[Case]]


def roofs(scope: Scope) -> Iterator[Case]:
    yield Copy()
    for row_bytes in ROW_BYTES:
        for table_mib in TABLE_MIB[:2] if scope.quick else TABLE_MIB:
            yield Gather(table_mib, row_bytes)


def batch(scope: Scope) -> Iterator[Case]:
    yield from beside(scope, scope.batches, ("sdpa", "flex", "cusparse", "dgl"))


def full(scope: Scope) -> Iterator[Case]:
    dense = () if scope.quick else ("sdpa", "flex")  # they take long on a CPU
    yield from beside(scope, scope.whole, (*dense, "cusparse", "dgl"))


def beside(scope: Scope, names: tuple[str, ...], others: tuple[str, ...]) -> Iterator[Case]:
    """All scores beside PyG eager, dot scores beside others too."""
    for name in names:
        for dtype in scope.dtypes:
            for score in SCORES:
                backends = ("auto", "pyg", "compiled", *(others if score == "dot" else ()))
                for backend in backends:
                    if backend not in COMPILED or is_compiled(scope, backend, name, dtype, score):
                        yield Attention(name, scope.size(name), score, dtype, backend)


def is_compiled(scope: Scope, backend: str, name: str, dtype: str, score: str) -> bool:
    """What torch.compile needs many seconds for is measured in some places only."""
    if scope.quick:
        return False
    if backend == "flex":
        return (name, dtype) in FLEX
    if score == "dot" and dtype == "fp32":
        return name in (*BATCHES, "Cora", "PubMed")
    return name == "PATTERN" and (score == "dot" or dtype == "fp32")


def super_nodes(scope: Scope) -> Iterator[Case]:
    """PyG's message passing, which takes a tenth of a second and more here, in some places."""
    for name in scope.large:
        for dtype in scope.dtypes:
            for backend in ("auto", "smmf", "pmf", "cusparse", "pyg"):
                yield Attention(name, 1, "dot", dtype, backend)
            for score in ("cosine", "additive"):
                yield Attention(name, 1, score, dtype, "auto")
        yield Attention(name, 1, "additive", "fp32", "pyg")


def methods(scope: Scope) -> Iterator[Case]:
    """Random and skewed graphs, too, which are like nothing that the choice was fitted to at
    first."""
    for name in (*scope.batches, *scope.whole, *scope.random, *scope.skewed):
        resident = ("resident",) if scope.device == "cuda" and KNOWN[name].is_batch else ()
        for dtype in scope.dtypes:
            for backend in ("smmf", "pmf", "tile", *resident, "auto"):
                yield Attention(name, scope.size(name), "dot", dtype, backend)


def ablation(scope: Scope) -> Iterator[Case]:
    """Fusion; the order of nodes; rows of equal degrees beside skewed ones."""
    for name in (*scope.batches, *scope.whole, *scope.large[:1]):
        for backend in ("smmf", "pmf", "unfused", *(() if name in LARGE else ("tile",))):
            yield Attention(name, scope.size(name), "dot", "fp32", backend)
    some = ("PATTERN", "COCO-SP", "PubMed", "ogbn-proteins")
    for name in scope.select(*some[: 1 if scope.quick or scope.device == "cpu" else 4]):
        for order in ("sorted", "shuffled"):
            for backend in ("smmf", "auto"):
                yield Attention(name, scope.size(name), "dot", "fp32", backend, order=order)
    size = "small" if scope.quick or scope.device == "cpu" else "large"
    for name in scope.select(*(name for name in DEGREES if name.endswith(size))):
        for backend in ("smmf", "pmf"):
            yield Attention(name, 1, "dot", "fp32", backend)


def techniques(scope: Scope) -> Iterator[Case]:
    """Kernels with single techniques switched off, beside the real ones."""
    names: tuple[str, ...] = ("PATTERN", "MNIST", "COCO-SP", "PubMed", "ogbl-ppa", "Reddit")
    names += ("equal degrees, large", "skewed degrees, large", "star in, 1M edges")
    if scope.quick or scope.device == "cpu":
        names = ("PATTERN",)
    for name in scope.select(*names):
        for backend in ("auto", "smmf", *VARIANTS):
            yield Attention(name, scope.size(name), "dot", "fp32", backend)


def reordering(scope: Scope) -> Iterator[Case]:
    names = ("Cora",) if scope.quick else ("PubMed", *LARGE)
    for name in scope.select(*names[: 1 if scope.device == "cpu" else None]):
        methods = [m for m in METHODS if m != "community" or KNOWN[name].edges < COMMUNITY_EDGES]
        for method in methods:
            yield Reordering(name, 1, method)
        for dtype in scope.dtypes:
            for order in ("sorted", "shuffled", *methods):
                yield Attention(name, 1, "dot", dtype, "auto", order=order)


def stars(scope: Scope) -> Iterator[Case]:
    size = "10K edges" if scope.quick or scope.device == "cpu" else "1M edges"
    for dtype in scope.dtypes:
        for name in scope.select(*(name for name in TREES if name.endswith(size))):
            yield Attention(name, 1, "dot", dtype, "auto")


def launches(scope: Scope) -> Iterator[Case]:
    for name in scope.select(*("Cora", "CiteSeer", "PubMed")[: 1 if scope.quick else None]):
        for dtype in scope.dtypes:
            for score in ("dot", "additive"):
                for backend in ("auto", "pyg"):
                    yield Launches(name, score, dtype, backend)


def features(scope: Scope) -> Iterator[Case]:
    for name in scope.select(*spread(scope)):
        for dtype in scope.dtypes:
            for head_dim in HEAD_DIMS[::2] if scope.quick else HEAD_DIMS:
                for backend in ("auto", "pyg"):
                    yield Attention(
                        name, scope.size(name), "dot", dtype, backend, head_dim=head_dim
                    )


def spread(scope: Scope) -> tuple[str, ...]:
    """Graphs of three kinds: dense, sparse, whole."""
    return ("PATTERN", "Cora") if scope.quick else ("PATTERN", "COCO-SP", "PubMed")


def batch_size(scope: Scope) -> Iterator[Case]:
    sizes: tuple[int, ...] = BATCH_SIZES
    if scope.quick or scope.device == "cpu":
        sizes = tuple(max(1, scope.batch * size // 64) for size in (64, 128, 256))
    for name in scope.select(*(("PATTERN",) if scope.quick else ("PATTERN", "MNIST", "COCO-SP"))):
        for size in sizes:
            for backend in ("auto", "pyg"):
                yield Attention(name, size, "dot", scope.dtypes[0], backend)


def heads(scope: Scope) -> Iterator[Case]:
    for name in scope.select(*spread(scope)):
        for score in SCORES[:1] if scope.quick else SCORES:
            for shape in ((1, 128), (8, 16)):
                for backend in ("auto", "pyg"):
                    yield Attention(name, scope.size(name), score, scope.dtypes[0], backend, *shape)


def edge_features(scope: Scope) -> Iterator[Case]:
    """PyG compiled on batches and without self-loops alone, for the minutes that takes; a graph of
    long rows on GPUs alone; many features on one batch alone."""
    dtype = scope.dtypes[0]
    long_rows = () if scope.quick or scope.device == "cpu" else ("Tolokers",)
    for name in scope.select(*spread(scope), *long_rows):
        may_compile = KNOWN[name].is_batch and not scope.quick and scope.device == "cuda"
        for layer in LAYERS[:2] if scope.quick else LAYERS:
            for self_loops in (False,) if layer == "TransformerConv" else (False, True):
                is_compiled = may_compile and not self_loops
                many = (64,) if is_compiled and name == "PATTERN" else ()
                for edge_dim in (8, *many):
                    for backend in ("auto", "pyg", *(("compiled",) if is_compiled else ())):
                        yield EdgeLayer(
                            name, scope.size(name), layer, dtype, backend, self_loops, edge_dim
                        )


def end_to_end(scope: Scope) -> Iterator[Case]:
    """Models in the outer loop, so that compiled code serves one data set after the other."""
    is_small = scope.quick or scope.device == "cpu"
    shape = (2, 32) if scope.quick else (4, 64) if scope.device == "cpu" else (10, 128)
    for dtype in scope.dtypes:
        some = ("PATTERN", "MNIST", "COCO-SP") if dtype != "fp32" else BATCHES
        for model in MODELS if dtype == "fp32" else MODELS[:1]:
            names = some if model == "gt" and not is_small else ("PATTERN",)
            backends = ["dfgnn", "dfgnn-convert", "dfgnn-device", "pyg"]
            if not scope.quick and model != "agnn":
                backends += ["dfgnn-compiled", "pyg-compiled"]
            for name in scope.select(*names):
                for backend in backends:
                    yield TrainingStep(name, scope.size(name), model, dtype, backend, *shape)


def preprocess(scope: Scope) -> Iterator[Case]:
    for name in (*scope.select(*spread(scope)), *scope.large[-1:]):
        is_batch = DATASETS[name].is_batch
        for order in (*ORDERS, *((IN_GRAPHS, PRECOMPUTED) if is_batch else ())):
            for self_loops in (False, True) if is_batch and not scope.quick else (False,):
                yield Conversion(name, scope.size(name), order, self_loops)


def memory(scope: Scope) -> Iterator[Case]:
    """Of layers; peaks of attention are measured along with its times."""
    if scope.quick or scope.device == "cpu":
        small = {"nodes": 2000, "edges": 60000, "features": 64}
        for layer in ("GATConv", "TransformerConv"):
            for library in ("dfgnn", "pyg"):
                yield Layer(layer, library, **small)
    else:
        for layer in ("GATConv", "TransformerConv", "AGNNConv"):
            for library in ("dfgnn", "pyg"):
                yield Layer(layer, library)


def accuracy(scope: Scope) -> Iterator[Case]:
    names = TRAINED
    if scope.names is None and scope.device == "cpu":
        names = TRAINED[:2]  # a training on Tolokers with PyG's layers takes minutes
    for name in scope.select(*(("pattern",) if scope.quick else names)):
        for model in MODELS[:1] if scope.quick else MODELS:
            for seed in range(scope.seeds):
                for library in ("dfgnn", "pyg"):
                    graphs = 16 if scope.quick else 1000
                    yield Accuracy(name, model, library, seed, scope.epochs, graphs)


SECTIONS = {
    "roofs": Section("Roofs of the device", roofs),
    "batch": Section("Batches of small graphs", batch),
    "full": Section("Whole graphs", full),
    "super": Section("Graphs with super nodes", super_nodes),
    "methods": Section("SMMF, PMF and tile", methods),
    "ablation": Section("Ablations", ablation),
    "techniques": Section("Single techniques", techniques),
    "reordering": Section("Order of nodes", reordering),
    "stars": Section("Stars", stars),
    "launches": Section("Launches", launches),
    "features": Section("Feature sizes", features),
    "batch-size": Section("Batch sizes", batch_size),
    "heads": Section("Heads", heads),
    "edge-features": Section("Features of edges", edge_features),
    "end-to-end": Section("Training steps, end to end", end_to_end),
    "preprocess": Section("Preprocessing", preprocess),
    "memory": Section("Memory of layers", memory),
    "accuracy": Section("Accuracy", accuracy),
}
