"""Names of dtypes in error messages."""

import torch
from torch import Tensor


def dtype_name(x: Tensor) -> str:
    """``"torch.float32"`` and so on. Scriptable: scripted code knows a dtype as a number."""
    if not torch.jit.is_scripting():
        return str(x.dtype)
    for dtype, name in [
        (torch.float32, "torch.float32"),
        (torch.float64, "torch.float64"),
        (torch.float16, "torch.float16"),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.int32, "torch.int32"),
        (torch.int64, "torch.int64"),
        (torch.int16, "torch.int16"),
        (torch.int8, "torch.int8"),
        (torch.uint8, "torch.uint8"),
        (torch.bool, "torch.bool"),
    ]:
        if x.dtype == dtype:
            return name
    return f"dtype {x.dtype}"
