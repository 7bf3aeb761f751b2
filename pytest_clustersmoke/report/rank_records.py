"""Each rank in the record: node, steps, memory, trace; and the mean loss of all ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ..criteria import gpu_past, stragglers
from ..criteria.training_proofs import list_proofs
from ..evidence.device_links import list_card_figures
from ..evidence.gpu_model import dense_tflops
from ..evidence.history.gpu_history import describe_gpu
from ..evidence.job_results import RankResult
from ..evidence.measured_peaks import RankPeaks, first_attempt, read_peaks
from ..evidence.metric import Unmeasured
from ..evidence.node_observation import DeviceFigure
from ..evidence.phase_result import PhaseResult
from ..evidence.progress_record import ProvenStepsRecord, TraceRecord
from ..evidence.run_counts import FigureRecord, PairRecord, PeaksRecord
from ..evidence.run_record import (
    Number,
    RankRecord,
    SpreadRecord,
)
from ..evidence.telemetry import (
    parse_finite,
    parse_int,
    parse_ints,
    parse_numbers,
    parse_rows,
    parse_text,
)
from ..text import sanitize_line

MAX_LOSSES = 500
FEWEST_STEPS = 2
SHARES = ("span_s", "compute_s", "communication_s", "overlapped_s", "copy_s", "idle_s")
NO_TRACE = "it recorded none: its program ended before, or has no loop of `rank.steps`"


def rank_records(result: PhaseResult) -> list[RankRecord]:
    """A record of every rank of the phase, even if it wrote nothing."""
    behind = _behind(result)
    steps = {rank.rank: own_s for rank, own_s in gpu_past.own_steps(result).values()}
    return [_record(rank, rank.rank in behind, steps.get(rank.rank)) for rank in result.ranks]


def _record(rank: RankResult, behind: bool, own_step_s: float | None) -> RankRecord:
    return RankRecord(
        rank=rank.rank,
        node_rank=rank.node_rank,
        node=rank.node,
        host=rank.host,
        local_rank=rank.local_rank,
        device=rank.device,
        done=rank.done,
        steps=rank.steps_done or 0,
        peak_memory_gib=rank.metrics().get("peak_memory_gib"),
        step_s=_spread(rank.step_times_s),
        own_s=_spread(rank.own_times_s),
        gpu=describe_gpu(rank),
        own_step_s=own_step_s,
        behind=behind,
    )


def _behind(result: PhaseResult) -> set[int]:
    """The ranks that keep the others waiting; none if that could not be measured."""
    try:
        return {straggler.rank.rank for straggler in stragglers.find_stragglers(result)}
    except Unmeasured:
        return set()


def _spread(times_s: Sequence[float]) -> SpreadRecord | None:
    if len(times_s) < FEWEST_STEPS:
        return None
    cuts = statistics.quantiles(times_s, n=20, method="inclusive")
    if not all(map(math.isfinite, cuts)):  # steps of 1e308 s overflow
        return None
    return SpreadRecord(p5=cuts[0], p25=cuts[4], p50=cuts[9], p75=cuts[14], p95=cuts[18])


def trace_records(result: PhaseResult) -> list[TraceRecord]:
    """A record for each rank that --cluster-trace named, whether it wrote a trace or not."""
    order = result.spec.get("trace")
    wanted = set(parse_ints(order.get("ranks"))) if isinstance(order, dict) else set()
    return [_trace(rank, result) for rank in result.ranks if rank.rank in wanted]


def _trace(rank: RankResult, result: PhaseResult) -> TraceRecord:
    event = rank.events.last("trace")
    if event is None:
        return TraceRecord(rank=rank.rank, reason=NO_TRACE)
    shares = {name: parse_finite(event.get(name)) for name in SHARES}
    first, last = parse_int(event.get("first")), parse_int(event.get("last"))
    reason = parse_text(event.get("reason")) or ""
    if not reason and None in (first, last, *shares.values()):
        reason = "its event is malformed"
    if reason:
        return TraceRecord(rank=rank.rank, reason=reason)
    return TraceRecord(
        rank=rank.rank,
        reason="",
        file=str(result.directory.rank_trace(rank.rank).relative_to(result.directory.phase)),
        first=first,
        last=last,
        proven=parse_ints(event.get("proven")),
        **shares,
    )


def proven_steps_record(result: PhaseResult) -> ProvenStepsRecord | None:
    """Which steps were proven, and how long that took; None without a plan of any rank."""
    plans = [event for rank in result.ranks if (event := rank.events.last("proof_plan"))]
    if not plans:
        return None
    drawn = parse_ints(plans[0].get("steps"))
    proofs = list_proofs(result)
    whole = [
        step
        for step in drawn
        if len(proofs.get(step, {})) == result.world_size
        and not any(record.get("not_measured") for record in proofs[step].values())
    ]
    took = [
        sum(parse_finite(event.get("seconds")) or 0.0 for event in rank.events.named("proof"))
        for rank in result.ranks
    ]
    train_s = result.stage_seconds().get("train")
    return ProvenStepsRecord(
        seed=parse_text(plans[0].get("seed")) or "",
        drawn=drawn,
        proven=len(whole),
        seconds=max(took),
        share=max(took) / train_s if train_s else None,
    )


def peaks_record(result: PhaseResult) -> PeaksRecord | None:
    """What its ranks measured of their devices; None if they measured none."""
    peaks = read_peaks(first_attempt(result).ranks)
    clocks = {
        str(gpu.get("uuid")): parse_text(gpu.get("clocks.max.sm"))
        for node in result.nodes
        for gpu in parse_rows(node.facts.get("gpus"))
    }
    figures = [
        FigureRecord(
            rank=peak.rank.rank,
            **{name: value for name, value in asdict(figure).items() if name != "phase"},
            dense_share=_dense_share(peak, figure, clocks.get(peak.rank.gpu_uuid or "")),
        )
        for peak in peaks
        for figure in (*peak.figures, *list_card_figures(peak.rank.node, peak.cards))
    ]
    missing = [
        sanitize_line(f"{peak.rank} {name}: {why}")
        for peak in peaks
        for name, why in (*peak.not_measured.items(), *_list_silent_cards(peak))
    ]
    pairs = [
        PairRecord(rank=peak.rank.rank, node=peak.rank.node, **asdict(pair))
        for peak in peaks
        for pair in peak.pairs
    ]
    if not figures and not missing and not pairs:
        return None
    return PeaksRecord(
        seconds=max(peak.seconds or 0.0 for peak in peaks),
        figures=figures,
        calls=sum(peak.calls for peak in peaks),
        wrong=sum(peak.wrong for peak in peaks),
        pairs=pairs,
        not_measured=missing,
    )


def _list_silent_cards(peak: RankPeaks) -> Iterator[tuple[str, str]]:
    """The network cards without a figure, and why."""
    for card in peak.cards:
        if card.gb_per_s is None:
            yield f"network card {card.name}".strip(), card.why


@dataclass(frozen=True)
class PeakShare:
    """FLOP/s of a training as a share of its devices' own GEMM, and of what they could at their
    highest clock (None: not known)."""

    measured: float
    dense: float | None


def measure_peak_shares(results: Mapping[str, PhaseResult]) -> dict[str, PeakShare]:
    """Phase -> what its training reached of its devices' own GEMM, measured in any phase of the
    run, on the rank that reached least; phases of which that is not known for every rank are left
    out. Each parameter costs a token two FLOP in the forward pass and two in the backward pass, and
    each that is trained two more."""
    gemms = {
        figure.device: figure
        for result in results.values()
        if (peaks := peaks_record(result)) is not None
        for figure in peaks.figures
        if figure.name.startswith("gemm_") and figure.value > 0
    }
    found = {
        name: [_peak_share(rank, gemms) for rank in result.ranks]
        for name, result in results.items()
    }
    return {
        name: min((share for share in shares if share is not None), key=lambda one: one.measured)
        for name, shares in found.items()
        if shares and None not in shares
    }


def _peak_share(rank: RankResult, gemms: Mapping[str, FigureRecord]) -> PeakShare | None:
    gemm = gemms.get(rank.gpu_uuid or f"{rank.node}/{rank.device}:{rank.local_rank}")
    tokens = rank.metrics().get("tokens_per_s_per_rank")
    sizes = rank.events.last("own_steps") or {}
    held, trained = parse_int(sizes.get("parameters")), parse_int(sizes.get("trained"))
    if not gemm or held is None or trained is None or tokens is None or not math.isfinite(tokens):
        return None
    measured = tokens * (4 * held + 2 * trained) / (gemm.value * 1e12)
    return PeakShare(measured, gemm.dense_share and measured * gemm.dense_share)


def _dense_share(peak: RankPeaks, figure: DeviceFigure, clock: str | None) -> float | None:
    """What a GPU multiplied, as a share of what it could at its highest clock."""
    if figure.name != f"gemm_{peak.precision}_tflops":
        return None
    rank, start = peak.rank, peak.rank.start
    capability = parse_text(start.get("capability"))
    processors = parse_int(start.get("multiprocessors"))
    most = dense_tflops(rank.device_name, capability, processors, clock, peak.precision)
    return figure.value / most if most else None


def mean_losses(result: PhaseResult) -> list[tuple[int, Number]]:
    """(step, loss) from the lowest rank that recorded losses, thinned to MAX_LOSSES; the last step
    is always included."""
    recorded = (rank.mean_losses for rank in result.ranks)
    values = parse_numbers(next((means for means in recorded if means is not None), None))
    stride = math.ceil(len(values) / MAX_LOSSES) or 1
    chosen = list(range(stride - 1, len(values), stride))
    if values and (not chosen or chosen[-1] != len(values) - 1):
        chosen.append(len(values) - 1)
    return [(at + 1, values[at]) for at in chosen]
