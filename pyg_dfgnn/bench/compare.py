"""What got slower or faster between two files of results, by more than the noise."""

from typing import NamedTuple

from .results import Record, Results, times


class Change(NamedTuple):
    """A time whose quartiles do not overlap those of before; ``ratio`` is after over before."""

    ratio: float
    what: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.ratio:6.2f}x  {self.before:10.4g} -> {self.after:<10.4g} ms  {self.what}"


def compare(before: Results, after: Results, threshold: float) -> tuple[str, bool]:
    """The changes in words, and whether something got slower or works no more.

    Args:
        threshold: The least change that counts, as a share of the time before.

    Raises:
        ValueError: there is no case that both have.
    """
    common = [key for key in before.records if key in after.records]
    if not common:
        raise ValueError("expected results of the same cases, got none that is in both files")
    changes = [
        change
        for key in common
        for change in changed(before.records[key], after.records[key], threshold)
    ]
    broken = [
        f"{after.records[key].row['note']}: {key}"
        for key in common
        if is_broken(before.records[key], after.records[key])
    ]
    slower = sorted((c for c in changes if c.ratio > 1), reverse=True)
    faster = sorted(c for c in changes if c.ratio < 1)
    lines = [f"{len(common)} cases in both files"]
    if devices(before) != devices(after):
        lines.append(f"Not the same device: {devices(before)} and {devices(after)}")
    for title, found in (("Slower", slower), ("Faster", faster), ("Works no more", broken)):
        lines += [f"{title}: {len(found)}", *(f"  {one}" for one in found)]
    return "\n".join(lines), bool(slower or broken)


def changed(before: Record, after: Record, threshold: float) -> list[Change]:
    found = []
    for name, (median, low, high) in times(before.result).items():
        if name not in after.result:
            continue
        new_median, new_low, new_high = after.result[name]
        ratio = new_median / median
        is_slower = ratio > 1 + threshold and new_low > high
        is_faster = ratio < 1 / (1 + threshold) and new_high < low
        if is_slower or is_faster:
            found.append(Change(ratio, f"{name} {before.key}", median, new_median))
    return found


def is_broken(before: Record, after: Record) -> bool:
    """Whether the second has a note, be it an error, where the first had none, or has failed."""
    has_new_note = "note" in after.result and "note" not in before.result
    return has_new_note or (after.is_failed and not before.is_failed)


def devices(results: Results) -> list[str]:
    return sorted({run["machine"]["device"] for run in results.runs})
