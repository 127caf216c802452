"""What the examples share: the --device option, and errors of one line."""

import argparse
import sys
from typing import NoReturn

import torch

import pyg_dfgnn


class Parser(argparse.ArgumentParser):
    """An argument parser with --device, whose errors are one line on stderr."""

    def __init__(self, description: str | None):
        super().__init__(
            description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        has_gpu = torch.cuda.is_available() and pyg_dfgnn.cuda_version() > 0
        self.add_argument("--device", default="cuda" if has_gpu else "cpu", type=device)

    def error(self, message: str) -> NoReturn:
        fail(message, code=2)


def device(name: str) -> torch.device:
    """The torch device of that name; ArgumentTypeError says what it lacks."""
    try:
        found = torch.device(name)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{name!r} is no torch device") from None
    if found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r}: the operators run on cpu and cuda")
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError(f"{name!r}: torch finds no CUDA GPU on this machine")
        if (found.index or 0) >= torch.cuda.device_count():
            raise argparse.ArgumentTypeError(
                f"{name!r}: this machine has {torch.cuda.device_count()} GPU(s)"
            )
        if pyg_dfgnn.cuda_version() <= 0:
            raise argparse.ArgumentTypeError(f"{name!r}: pyg_dfgnn was built without CUDA")
    return found


def fail(message: str, code: int = 1) -> NoReturn:
    print(f"{sys.argv[0].rsplit('/', 1)[-1]}: error: {message}", file=sys.stderr)
    sys.exit(code)
