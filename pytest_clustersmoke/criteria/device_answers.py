"""Devices that compute wrongly: their answers differ among each other, or from those of all others
of their kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

from ..evidence.job_results import RankResult
from ..evidence.measured_peaks import RankPeaks
from ..text import plural


def find_unsteady(peaks: Iterable[RankPeaks]) -> Iterator[str]:
    """Devices that gave different answers to the same question."""
    for peak in peaks:
        if peak.wrong:
            yield (
                f"{peak.rank} on {peak.rank.host} computes wrongly: {_name(peak)} gave another "
                f"answer in {peak.wrong} of {plural(peak.calls, 'equal multiplication')} "
                f"({peak.precision}); take it out of service"
            )


def find_dissenting(peaks: Iterable[RankPeaks]) -> Iterator[str]:
    """GPUs that always give another answer than all others of their kind. Libraries choose their
    kernels by model and version, and other kernels add in another order; what they choose by on a
    CPU, its name does not say."""
    voters = [peak for peak in peaks if peak.answer is not None and is_on_gpu(peak.rank)]
    kinds = [
        (peak.rank.device_name, peak.precision, *map(peak.rank.version, ("torch", "cuda")))
        for peak in voters
    ]
    for number, votes in find_outvoted(kinds, [peak.answer for peak in voters]):
        peak = voters[number]
        if not peak.wrong:
            yield (
                f"{peak.rank} on {peak.rank.host} computes another product than the "
                f"{votes} others of its kind, each time: {_name(peak)} ({peak.precision})"
            )


def find_outvoted(
    kinds: Sequence[Hashable], answers: Sequence[Hashable]
) -> Iterator[tuple[int, int]]:
    """The number of each answer that differs from all others of its kind, with their count. Two
    witnesses are no majority, nor are two camps."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        alike[kind].append(number)
    for numbers in alike.values():
        (usual, votes), *_ = Counter(answers[number] for number in numbers).most_common(1)
        if len(numbers) >= 3 and votes == len(numbers) - 1:
            yield from ((number, votes) for number in numbers if answers[number] != usual)


def _name(peak: RankPeaks) -> str:
    return peak.rank.gpu_uuid or peak.device or "its device"


def is_on_gpu(rank: RankResult) -> bool:
    return rank.device.startswith("cuda")
