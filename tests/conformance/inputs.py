"""From a case to a layer and the arguments of its call."""

import contextlib
import random
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.nn
from conformance.cases import Case, torch_dtype
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

import pyg_dfgnn.nn

MATRICES = (
    "SparseTensor",
    "sparse_coo",
    "sparse_coo_without_duplicates",
    "sparse_csr",
    "sparse_csc",
)


class Call(NamedTuple):
    """The arguments of a layer's call, and what gets gradients."""

    x: Any
    edge_index: Any
    options: dict[str, Any]
    leaves: dict[str, Tensor]


def seed(value: int) -> None:
    """PyG samples negative edges from each of the three."""
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002


def build(layer: Any, case: Case, device: str, dtype: torch.dtype) -> Call:
    """The call of a layer in ``dtype``; its weights and inputs are exact in the case's dtype."""
    generator = torch.Generator().manual_seed(case.seed)

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.detach().to(torch_dtype(case.dtype)).to(device, dtype)

    def leaf(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator)
        if case.zeros:
            values[::2] = 0
        if case.transposed and len(shape) == 2:
            values = values.t().contiguous().t()
        return rounded(values).requires_grad_(case.gradients in ("all", "inputs"))

    widths = case.arguments.get("in_channels", 6)
    widths = [5 if w == -1 else w for w in (widths if isinstance(widths, tuple) else (widths,))]
    sources, destinations = leaf(case.num_src, widths[0]), leaf(case.num_dst, widths[-1])
    leaves = {"x[0]": sources}
    x: Any = sources
    if case.x == "pair":
        x, leaves["x[1]"] = (sources, destinations), destinations
    elif case.x == "sources":
        x = (sources, None)
    elif case.x == "batch":
        x = torch.stack([sources, sources])

    options = dict(case.call)
    edge_attr = None
    if case.edge_attr is not None:
        edge_attr = leaf(len(case.edges), *case.edge_attr)
        if case.form in MATRICES:
            edge_attr = edge_attr.detach()
        else:
            options["edge_attr"] = leaves["edge_attr"] = edge_attr
    edge_index = edges_of(case, edge_attr, device)

    layer.to(device)
    if isinstance(getattr(layer, "fill_value", None), Tensor):
        layer.fill_value = layer.fill_value.to(device)
    if case.is_lazy:
        initialise(layer, case, (x, edge_index), options)
    layer.train(case.training)
    for name, parameter in layer.named_parameters():
        if is_lazy(parameter):
            continue
        if "lin" not in name or not case.is_lazy:  # whose values tell whether they were drawn alike
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.7
        parameter.data = rounded(parameter.data)
        parameter.requires_grad_(parameter.requires_grad and case.gradients in ("all", "weights"))
    if isinstance(getattr(layer, "fill_value", None), Tensor):
        layer.fill_value = rounded(layer.fill_value)
    leaves |= dict(layer.named_parameters())
    return Call(x, edge_index, options, leaves)


def make(library: Any, case: Case) -> Any:
    """A library's layer, as constructed."""
    arguments = dict(case.arguments)
    if arguments.get("fill_value") == "tensor":
        arguments["fill_value"] = torch.linspace(-1, 1, arguments.get("edge_dim", 1))
    if library is pyg_dfgnn.nn and case.swapped:
        seed(case.seed)
        layer = getattr(torch_geometric.nn, case.layer)(**arguments)
        if pyg_dfgnn.fuse(layer).swapped:
            return layer
    seed(case.seed)
    return getattr(library, case.layer)(**arguments)


def initialise(layer: Any, case: Case, inputs: Any, options: dict[str, Any]) -> None:
    """A first call, in float32 and without dropout, that gives lazy weights their sizes."""

    def as_float(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(as_float, value))
        is_features = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().float() if is_features and value.layout == torch.strided else value

    seed(case.seed)
    with torch.no_grad(), contextlib.suppress(Exception):
        layer.eval()(*map(as_float, inputs), **{name: as_float(v) for name, v in options.items()})


def edges_of(case: Case, value: Tensor | None, device: str) -> Any:
    """The edges in the case's form; a matrix holds ``value``."""
    edge_index = torch.tensor(case.edges, dtype=torch.int64).view(-1, 2).t().contiguous()
    edge_index = edge_index.to(device)
    src, dst = edge_index
    num_src, num_dst, form = case.num_src, case.num_dst, case.form
    if form == "int32":
        return edge_index.int()
    if form == "strided":
        return edge_index.t().contiguous().t()
    if form == "sorted_by_row":
        return edge_index[:, (src * (num_dst + 1) + dst).argsort(stable=True)]
    if form == "sorted_by_col":
        return edge_index[:, (dst * (num_src + 1) + src).argsort(stable=True)]
    if form == "EdgeIndex":
        return EdgeIndex(edge_index)
    if form in ("EdgeIndex_row", "EdgeIndex_col"):
        sized = EdgeIndex(edge_index, sparse_size=(num_src, num_dst))
        return sized.sort_by(form.removeprefix("EdgeIndex_")).values
    if form == "SparseTensor":
        return SparseTensor(row=dst, col=src, value=value, sparse_sizes=(num_dst, num_src))
    if form in MATRICES:
        value = torch.ones(len(case.edges), device=device) if value is None else value
        shape = (num_dst, num_src, *value.shape[1:])
        order = (dst * num_src + src).argsort(stable=True)  # with edges that are there twice
        ends = torch.stack([dst, src])[:, order]
        adj_t = torch.sparse_coo_tensor(ends, value[order], shape, is_coalesced=True)
        if form == "sparse_coo_without_duplicates":
            return adj_t._coalesced_(False).coalesce()
        return adj_t if form == "sparse_coo" else compressed(adj_t, form)
    malformed = {
        "float": lambda: edge_index.float(),
        "three_rows": lambda: torch.cat([edge_index, edge_index[:1]]),
        "three_dims": lambda: edge_index[None],
        "too_large": lambda: torch.cat([edge_index, tensor([[num_src + num_dst + 1], [0]])], dim=1),
        "negative": lambda: torch.cat([edge_index, tensor([[-1], [0]])], dim=1),
    }
    tensor = edge_index.new_tensor
    return malformed[form]() if form in malformed else edge_index


def compressed(adj_t: Tensor, form: str) -> Tensor:
    """CSR or CSC of a coalesced matrix, whose values may be vectors."""
    row, col = adj_t.indices()
    values = adj_t.values()

    def pointers(index: Tensor, size: int) -> Tensor:
        return torch.nn.functional.pad(index.bincount(minlength=size).cumsum(0), (1, 0))

    if form == "sparse_csr":
        return torch.sparse_csr_tensor(pointers(row, adj_t.size(0)), col, values, adj_t.shape)
    order = col.argsort(stable=True)
    ccol = pointers(col, adj_t.size(1))
    return torch.sparse_csc_tensor(ccol, row[order], values[order], adj_t.shape)
