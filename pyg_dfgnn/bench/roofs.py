"""What the device can do at best: the bandwidths that bound kernels which read rows of features."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, Row
from .lab import Lab
from .measure import time_ms

TABLE_MIB = (4, 16, 60, 256, 1024)
ROW_BYTES = (256, 512)
BAG = 32


@dataclass(frozen=True)
class Copy(Case):
    """A long copy; ``gb_per_s`` counts what is read and what is written."""

    kind: ClassVar[str] = "copy"

    def measure(self, lab: Lab, row: Row) -> None:
        size = 2**30 if lab.device == "cuda" else 2**27
        x = torch.empty(size // 4, device=lab.device)
        y = torch.empty_like(x)
        times = time_ms(lambda _: y.copy_(x), lab.device, lab.budget_ms)
        row |= {"ms": times.rounded(), "gb_per_s": round(2 * size / times.median / 1e6)}


@dataclass(frozen=True)
class Gather(Case):
    """Random rows of a table, read by the fastest of three ways.

    torch's ``index_select`` also writes them; its ``embedding_bag`` and this package's ``spmm`` add
    32 up and write the sums. ``gb_per_s`` counts what is read.
    """

    kind: ClassVar[str] = "gather"
    table_mib: int
    row_bytes: int

    def measure(self, lab: Lab, row: Row) -> None:
        rows = self.table_mib * 2**20 // self.row_bytes
        count = 2**22 if lab.device == "cuda" else 2**16
        table = torch.randn(rows, self.row_bytes // 4, device=lab.device)
        index = torch.randint(rows, (count // BAG, BAG), device=lab.device)

        def select(_: int) -> Tensor:
            return table.index_select(0, index.flatten())

        def add_up(_: int) -> Tensor:
            return F.embedding_bag(index, table, mode="sum")

        rowptr = torch.arange(0, count + 1, BAG, dtype=torch.int32, device=lab.device)
        col, ones = index.flatten().int(), torch.ones(count, 1, device=lab.device)

        def multiply(_: int) -> Tensor:
            return torch.ops.dfgnn.spmm(rowptr, col, weight=ones, x=table.unsqueeze(1))

        ways = (select, add_up, multiply)
        times = min(time_ms(call, lab.device, lab.budget_ms) for call in ways)
        gb_per_s = count * self.row_bytes / times.median / 1e6
        row |= {"ms": times.rounded(), "gb_per_s": round(gb_per_s)}
