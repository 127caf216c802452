"""What options of the command line may be."""

import argparse
import math


def positive(text: str) -> int:
    """A number of things, of which there is at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {number}")
    return number


def count(text: str) -> int:
    """A number of things, of which there may be none."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {number}")
    return number


def seed(text: str) -> int:
    """Of a generator of torch."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 2^63 - 1, got {text}")
    return number


def duration(text: str) -> float:
    """Of something that takes time."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text}")
    return number


def limit(text: str) -> float:
    """A time after which something ends, if ever."""
    number = float(text)
    if math.isnan(number):
        raise argparse.ArgumentTypeError(f"expected a number, got {text}")
    return number


def share(text: str) -> float:
    """Of something."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number >= 0, got {text}")
    return number


def probability(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text}")
    return number
