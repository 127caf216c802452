"""The dtypes of what PyG's layers compute. All of it can be scripted."""

import torch
from torch import Tensor


def is_half(t: Tensor) -> bool:
    return t.dtype == torch.float16 or t.dtype == torch.bfloat16


def is_autocast(t: Tensor) -> bool:
    """Whether autocast is on, on the device of the tensor."""
    if torch.jit.is_scripting():
        return torch.ops.dfgnn.is_autocast(t)
    return torch.is_autocast_enabled(t.device.type)


def dtype_of_sums(t: Tensor) -> torch.dtype:
    """What PyG's sums of ``t`` have: float32 in autocast on CUDA."""
    return torch.float32 if is_half(t) and t.is_cuda and is_autocast(t) else t.dtype


def dtype_of_messages(x: Tensor, att: Tensor) -> torch.dtype:
    """That of PyG's messages, weighed by sums of ``x * att``."""
    return torch.promote_types(dtype_of_sums(x), att.dtype)


def full_precision(t: Tensor) -> Tensor:
    """float32 of half precision, and what is wider as it is."""
    return t.float() if is_half(t) else t


def in_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    """``t.to(dtype)``, of which nothing is in traced code where it changes nothing: that may run in
    another precision later."""
    return t if t.dtype == dtype else t.to(dtype)


def in_dtype_of(t: Tensor, like: Tensor) -> Tensor:
    """``t.to(like.dtype)``, in traced code as well."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code is not traced)
        if torch.jit.is_tracing():
            return t.type_as(like)
    return t.to(like.dtype)
