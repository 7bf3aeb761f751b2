"""Judges what the ranks trained on: their own data, of the stated size, in the declared precision.

Each proven step recorded what the model got and computed in. What a program states of it, and what
the rates are computed from, is compared with that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

import pytest

from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_finite, parse_int, parse_numbers, parse_texts
from ..text import plural, ranges
from .training_proofs import NO_PROOF, Proofs, list_proofs, require_all_ranks

KIND = "data"
# Ranks on different data differ by far more in at least one of so many steps; fp32 rounds to 6e-8.
FEWEST_LOCAL_LOSSES = 5
SAME_LOSS = 1e-6
FP16_BITS, BF16_BITS = 11, 8  # of the significand
FEWEST_COARSE_LOSSES = 20  # that show whether losses of 16 bits are equal by chance
VARIED = 3.0  # sqrt(20) * 0.67: noise of one unit of rounding
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
MOST_LAYERS = 3  # that a message names
Losses = Mapping[int, Sequence[float]]  # of each rank, at each of its first steps


def check_data(phase: PhaseResult) -> None:
    """Fail if all ranks, or two replicas, had the same loss, before any averaging, at every
    recorded step, or if all got the same batch at every proven step: under dropout losses differ
    nevertheless.

    Ranks that train on the same data need no reduction to stay in sync, so no gradient shows that
    theirs works; and the job trains on one rank's share.
    """
    __tracebackhide__ = True
    if phase.world_size < 2:
        pytest.skip("there is no other rank to compare with")
    records = phase.events("losses")
    losses = {rank: parse_numbers(event.get("local_first")) for rank, event in records.items()}
    steps = min(map(len, losses.values()), default=0)
    complete = len(losses) == phase.world_size
    models = _group_models(records)
    if shared := [ranks for ranks in models if len(ranks) > 1]:
        _check_shared_batches(phase, shared)
    if complete and len(models) < 2:
        phase.judged.add(KIND)  # there is nothing else to judge
        pytest.skip("the model is split over all ranks, which share each batch")
    own = {ranks[0]: losses[ranks[0]] for ranks in models if ranks[0] in losses}
    same = _trained_on_same(list(own), own, list_proofs(phase)) if complete else None
    if same is False:
        _check_own_batches(phase, models)
        if steps >= FEWEST_LOCAL_LOSSES:
            _check_no_two_share(phase, own)
        phase.judged.add(KIND)
        return
    if not complete or steps < FEWEST_LOCAL_LOSSES:
        raise Unmeasured(
            KIND,
            f"not every rank recorded a loss of its own in {FEWEST_LOCAL_LOSSES} steps or more; "
            "step.record(loss=...) needs the rank's own",
        )
    if same is None:
        everyone = f"all {phase.world_size} ranks"
        raise Unmeasured(KIND, _equal_by_chance(everyone, f"each of {steps} steps"))
    fail(
        f"the data is not sharded: the local losses of all {phase.world_size} ranks are "
        f"identical in each of {steps} steps; expected a different share of the data on "
        "each rank (DistributedSampler, or a seed that depends on rank.rank), and in "
        "step.record the rank's own loss, not an average over the ranks"
    )


def has_replicas(phase: PhaseResult) -> bool:
    """Whether several data-parallel replicas trained; ranks that say nothing of it are replicas."""
    records = phase.events("losses")
    return phase.world_size > 1 and (
        len(records) < phase.world_size or len(_group_models(records)) > 1
    )


def _group_models(records: Mapping[int, Mapping[str, Any]]) -> list[list[int]]:
    """The ranks that hold the parts of one model, and share its batches: each rank alone, unless
    the model is split over ranks."""
    models: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for rank, record in records.items():
        replica = parse_int(record.get("replica"))
        models[replica is None, rank if replica is None else replica].append(rank)
    return list(models.values())


def _check_shared_batches(phase: PhaseResult, models: Sequence[Sequence[int]]) -> None:
    """Fail if ranks that hold parts of one model saw different batches. Their losses cannot show
    it, since each is computed by all of them."""
    __tracebackhide__ = True
    proofs = list_proofs(phase)
    if not proofs:
        raise Unmeasured(KIND, NO_PROOF)
    for step, records in proofs.items():
        require_all_ranks(phase, records, f"the proof of step {step}")
        for ranks in models:
            batches = {parse_int(records[rank].get("batch")) for rank in ranks}
            if batches == {None}:
                raise Unmeasured(KIND, "no argument of the model is a tensor to compare")
            if len(batches) > 1:
                fail(
                    f"ranks {ranges(ranks)} hold the parts of one model, but saw different batches "
                    f"at step {step}; expected the same: draw data by the data parallel rank, and "
                    "not by rank.rank"
                )


def _check_own_batches(phase: PhaseResult, models: Sequence[Sequence[int]]) -> None:
    """Fail if the models of all replicas got the same batch at every proven step. Only where all
    that they got could be compared."""
    __tracebackhide__ = True
    proofs = list_proofs(phase)
    for records in proofs.values():
        own = [records.get(ranks[0], {}) for ranks in models]
        batches = {parse_int(record.get("batch")) for record in own}
        whole = all(record.get("batch_is_whole") is True for record in own)
        if len(batches) > 1 or None in batches or not whole:
            return
    if proofs:
        fail(
            f"the data is not sharded: all {len(models)} models got identical batches at each "
            f"proven step ({ranges(proofs)}), although their losses differ (dropout?); expected a "
            "different share of the data on each rank (DistributedSampler, or a seed that depends "
            "on rank.rank)"
        )


def _check_no_two_share(phase: PhaseResult, losses: Losses) -> None:
    """Fail if some replicas had the same loss at every recorded step, or got the same batch at
    every proven step, as they have if the data is divided by the local rank.

    Not measured of ranks that are not known to hold whole models: those of a split model share
    their batches, and a program that gives no `Groups` does not say which these are.
    """
    __tracebackhide__ = True
    proofs = list_proofs(phase)
    batches = {rank: _list_own_batches(rank, proofs) for rank in losses}
    steps = f"each of {min(map(len, losses.values()))} steps"
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    unknown: list[tuple[int, int]] = []
    for pair in combinations(sorted(losses), 2):
        first, other = (batches[rank] for rank in pair)
        if same := _trained_on_same(pair, losses, proofs):
            pairs[f"the local losses of {{}} are identical in {steps}"].append(pair)
        elif same is None:
            unknown.append(pair)
        elif first and first == other:
            where = f"each proven step ({ranges(proofs)}), although their losses differ"
            pairs[f"{{}} got identical batches at {where}"].append(pair)
    for words, shared in pairs.items():
        problem = words.format(_name_ranks(phase, shared[0]))
        problem += f"; that holds for {plural(len(shared), 'pair')} of ranks in all"
        if not _hold_whole_models(phase):
            raise Unmeasured(
                KIND,
                f"{problem}. Either the data is not sharded, or these ranks hold parts of one "
                "model, or of one sequence: then Proof(groups=...) must name them",
            )
        fail(
            f"the data is not sharded: {problem}; expected a different share on each rank, by "
            "rank.rank and rank.world_size, not by the rank within its node; ranks that hold parts "
            "of one model, or of one sequence, are those that Proof(groups=...) names"
        )
    if unknown:
        raise Unmeasured(KIND, _equal_by_chance(_name_ranks(phase, unknown[0]), steps))


def _hold_whole_models(phase: PhaseResult) -> bool:
    replicas = phase.events("replicas").values()
    return bool(replicas) and all(event.get("equal") is True for event in replicas)


def _list_own_batches(rank: int, proofs: Proofs) -> list[int]:
    """The fingerprints of what the model of a rank got at each proven step; empty if they are not
    of all that it got."""
    own = [records.get(rank, {}) for records in proofs.values()]
    batches = [parse_int(r.get("batch")) for r in own if r.get("batch_is_whole") is True]
    found = [batch for batch in batches if batch is not None]
    return found if len(found) == len(own) else []


def _name_ranks(phase: PhaseResult, ranks: Sequence[int]) -> str:
    return " and ".join(str(phase.ranks[rank]) for rank in ranks)


def _equal_by_chance(ranks: str, steps: str) -> str:
    return (
        f"the local losses of {ranks} are identical in {steps}, but have 16 bits and may be equal "
        "by chance, and what the models got is not known as a whole; give rank.steps a `proof`, or "
        "step.record a loss in fp32"
    )


def _trained_on_same(ranks: Collection[int], losses: Losses, proofs: Proofs) -> bool | None:
    """Whether these ranks trained on the same data; None if that is not known.

    Ranks whose losses are equal at every recorded step did. Losses of 16 bits may be equal by
    chance: then the batches that the models got decide, or how much the losses vary.
    """
    series = [losses[rank] for rank in ranks]
    if not all(map(_alike, zip(*series, strict=False))):
        return False
    if not all(map(_are_coarse, series)) or _got_same_batches(ranks, proofs):
        return True
    if _got_own_batches(ranks, proofs):
        return False
    return all(map(_vary_beyond_rounding, series)) or None


def _alike(losses: Sequence[float]) -> bool:
    """Whether the ranks' losses of a step differ by no more than the rounding of their devices."""
    if not all(map(math.isfinite, losses)):
        return False
    return max(losses) - min(losses) <= SAME_LOSS * max(map(abs, losses))


def _are_coarse(losses: Sequence[float], bits: int = FP16_BITS) -> bool:
    """Whether numbers with a significand of so many bits can hold all of them."""
    return all((math.frexp(loss)[0] * 2**bits).is_integer() for loss in losses)


def _vary_beyond_rounding(losses: Sequence[float]) -> bool:
    """Whether these losses of 16 bits vary from step to step by so much that those of another
    batch cannot be equal at each.

    Third differences leave little of a smooth decline. Noise with a standard deviation of s gives
    them a median size of sqrt(20) * 0.67 * s. If s is one unit of rounding, the losses of two
    batches are equal in one step of four: in 20 steps with a probability of 1e-12.
    """
    if len(losses) < FEWEST_COARSE_LOSSES:
        return False
    bits = BF16_BITS if _are_coarse(losses, BF16_BITS) else FP16_BITS
    variation = []
    for at in zip(losses, losses[1:], losses[2:], losses[3:], strict=False):
        rounding = math.ldexp(1.0, math.frexp(max(map(abs, at)))[1] - bits)
        variation.append(abs(at[3] - 3 * at[2] + 3 * at[1] - at[0]) / rounding)
    return median(variation) >= VARIED


def _got_same_batches(ranks: Collection[int], proofs: Proofs) -> bool:
    """Whether the models of these ranks are known to have got the same batch at every proven step,
    all that they got compared."""
    whole = all(
        records.get(rank, {}).get("batch_is_whole") is True
        for records in proofs.values()
        for rank in ranks
    )
    batches = _list_batches(ranks, proofs)
    return whole and bool(batches) and all(len(b) == 1 and None not in b for b in batches)


def _got_own_batches(ranks: Collection[int], proofs: Proofs) -> bool:
    """Whether they are known to have got different batches at a proven step."""
    return any(len(batches - {None}) > 1 for batches in _list_batches(ranks, proofs))


def _list_batches(ranks: Collection[int], proofs: Proofs) -> list[set[int | None]]:
    """The fingerprints of what the models of these ranks got, at each proven step."""
    return [
        {parse_int(records.get(rank, {}).get("batch")) for rank in ranks}
        for records in proofs.values()
    ]


def check_precision(phase: PhaseResult) -> None:
    """Fail unless every linear layer computed in the precision that the proof names, and the
    phase's arguments, if they name one. Adapters may compute in fp32, as peft keeps them."""
    __tracebackhide__ = True
    records = [(rank, r) for ranks in list_proofs(phase).values() for rank, r in ranks.items()]
    if not records:
        raise Unmeasured("precision", NO_PROOF)
    for rank, record in records:
        dtypes = record.get("dtypes")
        if not isinstance(dtypes, dict) or not dtypes:
            raise Unmeasured("precision", "the model has no linear layer")
        where = f"{phase.ranks[rank]} at step {record.get('step')}"
        gradients = record.get("gradients")
        named = gradients.get("precision") if isinstance(gradients, dict) else None
        expected = DTYPES.get(str(named), str(named))
        others = {name: layers for name, layers in dtypes.items() if name != expected}
        if others:
            fail(
                f"linear layers computed in {_describe_layers(others)} on {where}; expected "
                f"{expected}, since the program says precision={named!r}. Train in it, or hand "
                "Proof the precision that the model computes in"
            )
        strange = set(parse_texts(record.get("adapter_dtypes"))) - {expected, DTYPES["fp32"]}
        if strange:
            fail(
                f"the adapters computed in {', '.join(sorted(strange))} on {where}; expected "
                f"{expected} or float32, since the program says precision={named!r}"
            )
        _compare_with_argument(phase.args.get("precision"), named, where)


def _compare_with_argument(asked: Any, named: Any, where: str) -> None:
    """Fail if the phase asked for another precision; words that name none are not compared."""
    __tracebackhide__ = True
    dtypes = {**DTYPES, **{dtype: dtype for dtype in DTYPES.values()}}
    expected = dtypes.get(str(asked))
    if expected is not None and expected != dtypes.get(str(named)):
        fail(
            f"the phase's argument is precision={asked!r}, but the program says precision="
            f"{named!r} on {where}, and its layers computed in that; expected {expected}. The "
            "program must train in the precision that it is given"
        )


def _describe_layers(dtypes: Mapping[str, Any]) -> str:
    """Each type, and some of the layers that computed in it; a rank does not name all of many."""
    described = []
    for dtype, names in dtypes.items():
        layers = parse_texts(names)
        rest = " and others" if len(layers) > MOST_LAYERS else ""
        described.append(f"{dtype} ({', '.join(layers[:MOST_LAYERS]) or 'unknown layers'}{rest})")
    return " and ".join(described)


def check_samples(phase: PhaseResult) -> None:
    """Fail if the model saw another number of samples, or fewer tokens, in a step than the
    throughput counts."""
    __tracebackhide__ = True
    records = [(rank, r) for ranks in list_proofs(phase).values() for rank, r in ranks.items()]
    if not records:
        raise Unmeasured("samples", NO_PROOF)
    is_shown = any(record.get("samples") is not None for _, record in records)
    for rank, record in records:
        if is_shown and record.get("samples") != record.get("samples_per_rank"):
            fail(
                f"the model saw {record.get('samples')} samples on {phase.ranks[rank]} at step "
                f"{record.get('step')}, but rank.steps got samples_per_rank="
                f"{record.get('samples_per_rank')}, from which the throughput is computed"
            )
    _check_tokens(phase)
    if not is_shown:
        raise Unmeasured("samples", "no argument of the model shows the size of a batch")


def _check_tokens(phase: PhaseResult) -> None:
    """Fail if the throughput counts more tokens in a step than the model saw, padding included, in
    any proven step of a rank: the batches of a program that does not pad differ in size."""
    __tracebackhide__ = True
    proofs = list_proofs(phase)
    for rank in phase.ranks:
        records = [r for of_step in proofs.values() for r in filter(None, [of_step.get(rank.rank)])]
        stated = [r["tokens_per_rank"] for r in records if r.get("tokens_per_rank") is not None]
        seen = [count for r in records if (count := parse_finite(r.get("tokens"))) is not None]
        if stated and not seen:
            raise Unmeasured("samples", "no argument of the model is a tensor of integers (tokens)")
        most = max(seen, default=0)
        for tokens in stated:
            number = parse_finite(tokens)
            if number is None or number > most:
                fail(
                    f"the model saw at most {most:g} tokens in a step on {rank}, padding included, "
                    f"but rank.steps got tokens_per_rank={tokens}, from which the throughput is "
                    "computed; expected the number of tokens that one rank trains on in one step"
                )
