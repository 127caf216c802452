"""One conversion per ``edge_index`` object, however many layers and epochs use it.

The cache holds what was built from an object for as long as that object lives, and keeps no tensor
of it alive; of what was built for many numbers of nodes, the latest. An entry is valid for one
version of the object: a change in place, counted by torch in ``Tensor._version``, ends it. (What
torch does not see, a change through ``.data``, its storage, memory that NumPy or DLPack share, or
a collective of ``torch.distributed``, is not seen here either.) An entry is whole before any other
thread can see it; two threads that come first at the same time build the same twice.
"""

from collections.abc import Callable, Hashable
from typing import Any, Optional, TypeVar, Union

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

Built = TypeVar("Built")

_entries = WeakIdKeyDictionary()

# Of what was built from one object; the oldest goes first.
MOST = 16


def is_eager(edge_index: Union[Tensor, SparseTensor]) -> bool:
    """Whether code may look at values of ``edge_index`` now: eager mode outside of a CUDA graph's
    capture (whose replays must convert again: the tensor may have been refilled)."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    tensor = _tensors(edge_index)[0]
    return (
        type(tensor) is Tensor
        and not tensor.is_meta
        and _get_current_dispatch_mode() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def lookup(edge_index: Any, arguments: tuple[Hashable, ...], build: Callable[..., Built]) -> Built:
    """``build(edge_index, *arguments)``, or what it returned before for the same."""
    version = _version(edge_index)
    known_version, built = _entries.get(edge_index, (None, {}))
    if known_version == version and arguments in built:
        return built[arguments]
    # Not as inference tensors, which later training could not use, and without autograd.
    with torch.inference_mode(False), torch.no_grad():
        result = build(edge_index, *arguments)
    if version is not None:
        kept = list(built.items())[1 - MOST :] if known_version == version else []
        _entries[edge_index] = (version, dict([*kept, (arguments, result)]))
    return result


def known(edge_index: Any, arguments: tuple[Hashable, ...]) -> Any:
    """What :func:`lookup` would return without building; None where it would build."""
    version, built = _entries.get(edge_index, (None, {}))
    return built.get(arguments) if version == _version(edge_index) else None


def _tensors(edge_index: Union[Tensor, SparseTensor]) -> tuple[Tensor, ...]:
    """The tensors that hold the edges."""
    if isinstance(edge_index, SparseTensor):
        return edge_index.storage.rowptr(), edge_index.storage.col()
    if isinstance(edge_index, EdgeIndex):
        return (edge_index.as_tensor(),)
    if edge_index.layout == torch.sparse_csr:
        return edge_index.crow_indices(), edge_index.col_indices()
    return (edge_index._indices() if edge_index.is_sparse else edge_index,)


def _version(edge_index: Any) -> Optional[tuple[Hashable, ...]]:
    """What differs after any change; None where torch counts no versions (inference tensors)."""
    tensors = _tensors(edge_index)
    # What is done to an EdgeIndex counts there, and what is done to its tensor counts here.
    counting = (edge_index, *tensors) if isinstance(edge_index, EdgeIndex) else tensors
    if any(t.is_inference() for t in counting):
        return None
    return (
        *(t._version for t in counting),
        *((t.data_ptr(), t.shape, t.stride()) for t in tensors),
    )
