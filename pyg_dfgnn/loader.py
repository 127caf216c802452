"""Batches that are collated on the device, of a dataset that lies there as a whole.

A dataset of small graphs is a few gigabytes at the most, and to collate a batch of it on the host
takes longer than to train on it. ``DeviceLoader`` copies it once, and then makes each batch with a
few gathers on the device:

    dataset = TUDataset(root, name, pre_transform=PrecomputeGraph())
    for batch in DeviceLoader(dataset, batch_size=1024, shuffle=True, device="cuda"):
        out = model(batch.x, batch.edge_index)
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Optional, Union

import torch
import torch.utils.data
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.collate import collate
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import cumsum, is_torch_sparse_tensor

# Of torch's DataLoader, what is about reading from the host.
HOST_OPTIONS = (
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
    "collate_fn",
)


class DeviceDataset(torch.utils.data.Dataset):
    """Graphs on a device, of which :meth:`batch` makes batches there.

    Args:
        graphs: ``Data`` objects of one class with the same attributes, a dataset for example. Its
            transforms are applied once, here.
        device: Where they are copied to. They take as much as one batch of them all.
        follow_batch: Attributes that get a ``<name>_batch`` and a ``<name>_ptr``, as in PyG.
        exclude_keys: Attributes that are left out.

    Raises:
        TypeError: of graphs that are no ``Data``, or an attribute that is not a dense tensor, a
            number, or something that PyG puts in a list (strings, for example).
        ValueError: there are no graphs, or not all have the same attributes, of one dtype each.
    """

    def __init__(
        self,
        graphs: Iterable[Data],
        device: Union[torch.device, str, int] = "cuda",
        follow_batch: Optional[Sequence[str]] = None,
        exclude_keys: Optional[Sequence[str]] = None,
    ) -> None:
        graphs = list(graphs)
        if not graphs:
            raise ValueError("graphs: expected at least one, got none")
        excluded = set(exclude_keys or ())
        names: Optional[set[str]] = None
        for graph in graphs:
            if not isinstance(graph, Data) or type(graph) is not type(graphs[0]):
                raise TypeError(
                    "graphs: expected torch_geometric.data.Data of one class, got "
                    f"{type(graphs[0]).__name__} and {type(graph).__name__}"
                )
            others = set(graph._store.keys()) - excluded
            names = others if names is None else names
            if others != names:
                raise ValueError(
                    "graphs: expected the same attributes of all, got "
                    f"{sorted(names)} and {sorted(others)}"
                )
        try:
            self.device = torch.empty(0, device=device).device
        except (AssertionError, RuntimeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise ValueError(
                f"device: expected one of this machine, got {device!r}: {reason}"
            ) from None
        self.follow_batch = follow_batch or ()
        self._class, self._length = type(graphs[0]), len(graphs)
        self._layouts: list[_Layout] = []
        whole, slices, _ = collate(
            Batch, graphs, increment=False, add_batch=False, exclude_keys=exclude_keys
        )
        store = whole._store
        self._num_nodes: Optional[list[int]] = store._num_nodes if "num_nodes" in store else None
        self._attributes = {
            name: self._attribute(name, value, slices[name], graphs)
            for name, value in store.items()
            if name != "num_nodes"
        }
        self._nodes: Optional[_Layout] = None
        if not isinstance(graphs[0], Batch) and graphs[0]._store.can_infer_num_nodes:
            sizes = torch.tensor([graph.num_nodes or 0 for graph in graphs])
            self._nodes = self._layout(cumsum(sizes))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Data:
        """A graph, on the device."""
        return self.batch([index]).get_example(0)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """As :meth:`batch`, for data loaders."""
        return self.batch(indices)

    def batch(self, indices: Union[Sequence[int], Tensor]) -> Batch:
        """What ``Batch.from_data_list`` makes of these graphs, on the device; waits for nothing.

        Args:
            indices: Of graphs, 0 to ``len(self) - 1``, on the host; at least one.

        Raises:
            IndexError: an index is out of range, or there are none.
        """
        chosen = _Chosen(torch.as_tensor(indices), self._length, self.device)
        out = Batch(_base_cls=self._class)
        store = out._store
        slices: dict[str, Tensor] = {}
        increments: dict[str, Optional[Tensor]] = {}
        for name, attribute in self._attributes.items():
            store[name], slices[name], increments[name] = attribute.of(chosen)
            if name in self.follow_batch:
                part = chosen.part(attribute.layout)
                store[f"{name}_batch"], store[f"{name}_ptr"] = part.graph.clone(), part.ptr.clone()
        if self._num_nodes is not None:
            store._num_nodes = [self._num_nodes[i] for i in chosen.indices.tolist()]
            store.num_nodes = sum(store._num_nodes)
        if self._nodes is not None:
            part = chosen.part(self._nodes)
            store.batch, store.ptr = part.graph, part.ptr
        out._num_graphs, out._slice_dict, out._inc_dict = len(chosen), slices, increments
        return out

    def _attribute(
        self, name: str, value: Any, slices: Any, graphs: list[Data]
    ) -> "Union[_Tensors, _Objects]":
        values, dim = [graph._store[name] for graph in graphs], 0
        first = values[0]
        is_sparse = isinstance(first, SparseTensor) or is_torch_sparse_tensor(first)
        if isinstance(value, list) and isinstance(slices, Tensor) and not is_sparse:
            return _Objects(value, self._layout(slices))
        if type(value) is not Tensor or is_sparse or value.is_nested:
            raise TypeError(
                f"{name}: expected dense tensors, numbers or what PyG puts in a list, got "
                f"{type(first).__name__}; leave it out with exclude_keys"
            )
        kinds = {_kind(part) for part in values}
        if len(kinds) > 1:
            raise ValueError(f"{name}: expected one dtype, got {sorted(map(str, kinds))}")
        if isinstance(first, Tensor):
            cat_dim = graphs[0].__cat_dim__(name, first, graphs[0]._store)
            dim = cat_dim or 0
            if cat_dim is None or first.dim() == 0:
                values = [tensor.unsqueeze(0) for tensor in values]
        steps = [
            graph.__inc__(name, part, graph._store)
            for graph, part in zip(graphs, values, strict=True)
        ]
        step = torch.stack(steps) if isinstance(steps[0], Tensor) else torch.tensor(steps)
        return _Tensors(name, value.to(self.device), dim, self._layout(slices), step.cpu())

    def _layout(self, slices: Tensor) -> "_Layout":
        """The same for all that is cut alike."""
        for layout in self._layouts:
            if torch.equal(layout.slices, slices):
                return layout
        self._layouts.append(_Layout(slices, self.device))
        return self._layouts[-1]


class DeviceLoader(torch.utils.data.DataLoader):
    """PyG's ``DataLoader`` for a dataset that fits on the device, where it collates the batches.

    They hold what ``DataLoader``'s hold, in the same order for the same ``generator``, and are on
    the device. The attributes of :class:`pyg_dfgnn.transforms.PrecomputeGraph` are like any other,
    so that a batch of what went through it has its structure.

    Args:
        dataset: As in :class:`DeviceDataset`; or one, which several loaders can share.
        batch_size: Graphs of a batch.
        shuffle: Whether each epoch has an order of its own.
        device: Where the dataset is copied to, "cuda" where it is None.
        follow_batch: As in :class:`DeviceDataset`.
        exclude_keys: As in :class:`DeviceDataset`.
        **options: ``drop_last``, ``sampler``, ``batch_sampler`` and ``generator`` of
            ``torch.utils.data.DataLoader``.

    Raises:
        TypeError: an option is about reading from the host; or as in :class:`DeviceDataset`.
        ValueError: as in :class:`DeviceDataset`.
    """

    def __init__(
        self,
        dataset: Union[DeviceDataset, Iterable[Data]],
        batch_size: Optional[int] = 1,
        shuffle: bool = False,
        device: Union[torch.device, str, int, None] = None,
        follow_batch: Optional[Sequence[str]] = None,
        exclude_keys: Optional[Sequence[str]] = None,
        **options: Any,
    ) -> None:
        for name in HOST_OPTIONS:
            if value := options.pop(name, None):
                raise TypeError(
                    f"{name}: expected none, as nothing is read from the host, got {value!r}"
                )
        if not isinstance(dataset, DeviceDataset):
            device = "cuda" if device is None else device
            dataset = DeviceDataset(dataset, device, follow_batch, exclude_keys)
        elif device is not None or follow_batch or exclude_keys:
            raise TypeError(
                "dataset: a DeviceDataset has its own device, follow_batch and exclude_keys"
            )
        super().__init__(dataset, batch_size, shuffle, collate_fn=_as_it_is, **options)


def _kind(value: Any) -> Any:
    return value.dtype if isinstance(value, Tensor) else type(value)


def _as_it_is(batch: Batch) -> Batch:
    return batch


class _Layout:
    """Where each graph's part of an attribute begins."""

    def __init__(self, slices: Tensor, device: torch.device) -> None:
        self.slices = slices
        self.size = slices.diff()
        self.begin_on_device, self.size_on_device = slices[:-1].to(device), self.size.to(device)


class _Chosen:
    """The graphs of a batch."""

    def __init__(self, indices: Tensor, length: int, device: torch.device) -> None:
        is_index = indices.dtype != torch.bool and not indices.is_floating_point()
        if indices.dim() != 1 or (indices.numel() > 0 and not is_index):
            raise IndexError(
                f"indices: expected integers in a list, got {indices.dtype} of shape "
                f"{list(indices.shape)}"
            )
        if indices.numel() == 0 or not 0 <= int(indices.min()) <= int(indices.max()) < length:
            raise IndexError(
                f"indices: expected graphs from 0 to {length - 1}, at least one, got {indices}"
            )
        self.indices, self.device = indices.long(), device
        self.on_device = self.copied(self.indices)
        self._parts: dict[_Layout, _Part] = {}

    def __len__(self) -> int:
        return self.indices.numel()

    def copied(self, numbers: Tensor) -> Tensor:
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self.device, non_blocking=True)

    def part(self, layout: _Layout) -> "_Part":
        if layout not in self._parts:
            self._parts[layout] = _Part(layout, self)
        return self._parts[layout]


class _Part:
    """The rows of the chosen graphs in attributes of a layout."""

    def __init__(self, layout: _Layout, chosen: _Chosen) -> None:
        self.layout, self.chosen = layout, chosen
        self.slices = cumsum(layout.size[chosen.indices])
        self.total = int(self.slices[-1])

    @cached_property
    def sizes(self) -> Tensor:
        return self.layout.size_on_device[self.chosen.on_device]

    @cached_property
    def ptr(self) -> Tensor:
        """Where each graph begins in the batch, then the end."""
        return cumsum(self.sizes)

    @cached_property
    def graph(self) -> Tensor:
        """The graph of each row, by its place in the batch."""
        return torch.repeat_interleave(self.sizes, output_size=self.total)

    @cached_property
    def rows(self) -> Tensor:
        """Each row's place in the dataset."""
        shift = self.layout.begin_on_device[self.chosen.on_device] - self.ptr[:-1]
        shifts = torch.repeat_interleave(shift, self.sizes, output_size=self.total)
        return shifts.add_(torch.arange(self.total, device=shifts.device))


class _Objects:
    """An attribute of which PyG makes a list."""

    def __init__(self, values: list[Any], layout: _Layout) -> None:
        self.values, self.layout = values, layout

    def of(self, chosen: _Chosen) -> tuple[list[Any], Tensor, None]:
        values = [self.values[i] for i in chosen.indices.tolist()]
        return values, torch.arange(len(values) + 1), None


class _Tensors:
    """An attribute of which PyG makes a tensor, all graphs' one after the other along ``dim``.

    ``step``, of a shape that broadcasts to each graph's part, is what the graph adds to the parts
    of those behind it.
    """

    def __init__(self, name: str, value: Tensor, dim: int, layout: _Layout, step: Tensor) -> None:
        self.value, self.dim = value, dim % value.dim()
        self.layout, self.step = layout, step
        if self._of_rows(step[:1]).size(self.dim + 1) != 1:
            raise TypeError(
                f"{name}: expected __inc__ to give what is the same for all rows of a graph, got "
                f"shape {list(step.shape[1:])}; leave it out with exclude_keys"
            )

    def of(self, chosen: _Chosen) -> tuple[Tensor, Tensor, Tensor]:
        """The value, where each graph's part of it begins, and what that was incremented by."""
        part = chosen.part(self.layout)
        if self.value.numel() == 0:  # its shape is all that it tells
            shape = [*self.value.shape]
            shape[self.dim] = part.total
            value = self.value.new_empty(shape)
        else:
            value = self.value.index_select(self.dim, part.rows)
        increments = cumsum(self.step[chosen.indices[:-1]])
        if increments.dim() > 1 or int(increments[-1]) != 0:
            by_graph = self._of_rows(increments).select(self.dim + 1, 0)
            if increments.dim() == 1:  # numbers do not change a tensor's dtype
                by_graph = by_graph.to(torch.result_type(value, increments[0]))
            value = value + chosen.copied(by_graph)[part.graph].movedim(0, self.dim)
        return value, part.slices, increments

    def _of_rows(self, increments: Tensor) -> Tensor:
        """``increments`` of graphs with all dimensions of a graph's part."""
        missing = self.value.dim() - (increments.dim() - 1)
        return increments.reshape(-1, *[1] * missing, *increments.shape[1:])
