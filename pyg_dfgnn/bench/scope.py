"""How much to measure, and on which data sets."""

from dataclasses import dataclass

from .registry import BATCHES, KNOWN, LARGE, RANDOM, SKEWED, WHOLE


@dataclass(frozen=True)
class Scope:
    """How much to measure.

    Attributes:
        device: "cuda" or "cpu".
        quick: Some cases of each section, in less than two minutes.
        names: Data sets; None for those that suit the device.
        dtypes: "fp32", "bf16", "fp16".
        batch: Graphs of a batch.
        seeds: Of training.
        epochs: Of training.
    """

    device: str
    quick: bool = False
    names: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    batch: int = 1024
    seeds: int = 5
    epochs: int = 100

    @classmethod
    def of(
        cls,
        device: str,
        quick: bool,
        names: list[str] | None = None,
        dtypes: list[str] | None = None,
        batch: int | None = None,
        seeds: int | None = None,
        epochs: int | None = None,
    ) -> "Scope":
        """What is None is chosen by the device."""
        small = device == "cpu"
        if dtypes is None:
            dtypes = ["fp32"] if small or quick else ["fp32", "bf16"]
        if batch is None:
            batch = (4 if quick else 32) if small else (128 if quick else 1024)
        seeds, epochs = seeds or (1 if quick else 5), epochs or (3 if quick else 100)
        chosen = None if names is None else tuple(names)
        return cls(device, quick, chosen, tuple(dtypes), batch, seeds, epochs)

    def select(self, *suitable: str) -> tuple[str, ...]:
        """Those of these data sets that are asked for."""
        return tuple(name for name in suitable if self.names is None or name in self.names)

    @property
    def batches(self) -> tuple[str, ...]:
        if self.names is None and self.quick:
            return ("PATTERN", "MNIST")
        return self.select(*BATCHES)

    @property
    def whole(self) -> tuple[str, ...]:
        if self.names is None and (self.quick or self.device == "cpu"):
            return ("Cora",) if self.quick else ("Cora", "CiteSeer", "PubMed")
        return self.select(*WHOLE)

    @property
    def large(self) -> tuple[str, ...]:
        return self._select_at_length(*LARGE)

    @property
    def random(self) -> tuple[str, ...]:
        return self._select_at_length(*RANDOM)

    @property
    def skewed(self) -> tuple[str, ...]:
        return self._select_at_length(*SKEWED)

    def _select_at_length(self, *suitable: str) -> tuple[str, ...]:
        """None of them in quick runs and on CPUs, but those that are asked for."""
        if self.names is None and (self.quick or self.device == "cpu"):
            return ()
        return self.select(*suitable)

    def size(self, name: str) -> int:
        """Graphs to take of a data set."""
        return self.batch if KNOWN[name].is_batch else 1
