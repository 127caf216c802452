"""What options of the command line may be."""

import argparse
import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

N = TypeVar("N", int, float)


def _number(text: str, kind: Callable[[str], N], what: str, fits: Callable[[N], bool]) -> N:
    with contextlib.suppress(ValueError):
        number = kind(text)
        if fits(number):
            return number
    raise argparse.ArgumentTypeError(f"expected {what}, got {text}")


positive = partial(_number, kind=int, what="1 or more", fits=lambda n: n >= 1)
count = partial(_number, kind=int, what="0 or more", fits=lambda n: n >= 0)
seed = partial(_number, kind=int, what="a number from 0 to 2^63 - 1", fits=lambda n: 0 <= n < 2**63)
duration = partial(_number, kind=float, what="a number > 0", fits=lambda x: 0 < x < float("inf"))
limit = partial(_number, kind=float, what="a number", fits=lambda x: not math.isnan(x))
share = partial(
    _number, kind=float, what="a finite number >= 0", fits=lambda x: 0 <= x < float("inf")
)
probability = partial(_number, kind=float, what="a number from 0 to 1", fits=lambda x: 0 <= x <= 1)
