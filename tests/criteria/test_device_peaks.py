"""Devices with wrong answers, and devices slower than their peers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.device_peaks import Place, check_peaks, judge_figures
from pytest_clustersmoke.evidence.fingerprint import fingerprint_of
from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.measured_peaks import measured_in
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.node_observation import DeviceFigure
from pytest_clustersmoke.evidence.phase_result import PastRuns, PhaseResult
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.report.rank_records import peaks_record
from tests.evidence.history.made import night
from tests.support import records
from tests.support.evidence import Evidence

GEMM, COPY, LATENCY = "gemm_bf16_tflops", "host_to_device_gb_per_s", "cpu_latency_ns"
H100 = "NVIDIA H100 80GB HBM3"


def figure(device: str, name: str, value: float, higher: bool = True) -> dict[str, Any]:
    unit = {GEMM: "TFLOP/s", COPY: "GB/s", LATENCY: "ns"}[name]
    kind = {"device": device, "name": name, "unit": unit, "higher_is_better": higher}
    return {**kind, "value": value}


def ran(
    folder: Path,
    events: Sequence[Mapping[str, Any] | None],
    *,
    per_node: int = 4,
    cuda: bool = True,
    peaks: str = "once",
    cores_of_job: int = 64,
    gpus_of_node: int | None = None,
    on_bus: int | None = None,
    one_machine: bool = False,
) -> PhaseResult:
    """A phase whose ranks wrote these `peaks` events, on nodes of `per_node` GPUs or CPUs."""
    evidence = Evidence(folder, nodes=len(events) // per_node, ranks_per_node=per_node)
    for rank, event in enumerate(events):
        node, local_rank = divmod(rank, per_node)
        host = "h0" if one_machine else f"h{node}"
        start = {"rank": rank, "local_rank": local_rank, "node": f"n{node}", "host": host}
        device = {"device": f"cuda:{local_rank}", "device_name": H100, "gpu_uuid": f"GPU-{rank}"}
        evidence.rank(rank, ("start", {**start, **(device if cuda else {"device": "cpu"})}))
        if event is not None:
            usual = {"calls": 3000, "wrong": 0, "answer": 17, "precision": "bf16", "seconds": 2.0}
            evidence.rank(rank, ("peaks", {**usual, "cpu": "EPYC", **event}))
    for node in range(len(events) // per_node):
        facts = {"node": f"n{node}", "host": f"h{node}"}
        cores: dict[str, Any] = {"cpus_allowed": cores_of_job, "cpus_online": 64}
        cores |= {"gpus": [{}] * (gpus_of_node or per_node)} if cuda else {}
        cores |= {"gpus_on_bus": on_bus}
        write_json(evidence.dir.node_facts(node), {**facts, **cores})
    spec = {"phase": "small", "nodes": len(events) // per_node, "ranks_per_node": per_node}
    write_json(evidence.dir.spec, {**spec, "peaks": peaks})
    return evidence.result()


def gemms(values: Sequence[float]) -> list[dict[str, Any]]:
    return [{"figures": [figure(f"GPU-{rank}", GEMM, v)]} for rank, v in enumerate(values)]


HEALTHY = (700.0, 702.0, 698.0, 705.0, 695.0, 701.0, 703.0, 697.0)


def failure(result: PhaseResult) -> str:
    with pytest.raises(AssertionError) as raised:
        check_peaks(result)
    assert "peaks" in result.judged
    return str(raised.value)


def test_healthy_devices_pass(tmp_path: Path) -> None:
    """The criterion says which loss it would have seen."""
    result = ran(tmp_path, gemms(HEALTHY))
    check_peaks(result)
    (words,) = result.sensitivity
    assert words.startswith("would have named a device that takes longer by: gemm_bf16_tflops ")
    assert "peaks" in result.judged


def test_slow_gpu_is_named_with_its_figure(tmp_path: Path) -> None:
    """With rank, host and UUID, and what its peers reach."""
    events = gemms([*HEALTHY[:5], 600.0, *HEALTHY[6:]])
    assert failure(ran(tmp_path, events)) == (
        "rank 5 (n1, GPU 1) on h1 (GPU-5): its gemm_bf16_tflops is 600.0 TFLOP/s, that of its "
        "peers 700.0 TFLOP/s"
    )


def test_wrong_answers_are_named_with_host_and_uuid(tmp_path: Path) -> None:
    """One in 3,000 is enough."""
    events = gemms(HEALTHY)
    events[2]["wrong"] = 1
    assert failure(ran(tmp_path, events)) == (
        "rank 2 (n0, GPU 2) on h0 computes wrongly: GPU-2 gave another answer in 1 of 3,000 "
        "equal multiplications (bf16); take it out of service"
    )


def test_wrong_answers_are_named_where_another_rank_is_silent(tmp_path: Path) -> None:
    """What is visibly wrong fails, whatever else is missing."""
    events: list[Mapping[str, Any] | None] = [*gemms(HEALTHY)]
    events[2], events[5] = {**(events[2] or {}), "wrong": 40}, None
    assert failure(ran(tmp_path, events)).startswith("rank 2 (n0, GPU 2) on h0 computes wrongly")


def test_gpu_that_is_always_wrong_is_outvoted(tmp_path: Path) -> None:
    """All of its answers agree, and differ from those of the others."""
    events = gemms(HEALTHY)
    events[7]["answer"] = 18
    words = failure(ran(tmp_path, events))
    assert words.startswith("rank 7 (n1, GPU 3) on h1 computes another product than the 7 others")
    assert "GPU-7" in words and len(words.splitlines()) == 1


@pytest.mark.parametrize("answers", [(17, 18), (17, 17, 18, 18), (17, 18, 19, 20)])
def test_nobody_is_blamed_without_a_majority(answers: Sequence[int], tmp_path: Path) -> None:
    """Two devices, two camps, or all different: the libraries may have chosen other kernels."""
    events = gemms(HEALTHY[: len(answers)])
    for event, answer in zip(events, answers, strict=True):
        event["answer"] = answer
    check_peaks(ran(tmp_path, events, per_node=len(answers)))


def test_cpus_are_not_outvoted(tmp_path: Path) -> None:
    """The name of a CPU does not say which kernels its library chooses."""
    events = gemms(HEALTHY[:4])
    events[3]["answer"] = 18
    check_peaks(ran(tmp_path, events, cuda=False))


def test_gpus_that_are_far_from_the_host_are_not_named(tmp_path: Path) -> None:
    """On each node two GPUs share a switch, and get half of what the others get. Those of other
    nodes with the same number are their peers."""
    usual = (54.0, 55.0, 30.0, 31.0)
    copies = [
        {"figures": [figure(f"GPU-{rank}", COPY, usual[rank % 4] + 0.1 * (rank // 4))]}
        for rank in range(24)
    ]
    check_peaks(ran(tmp_path / "healthy", copies))
    copies[9] = {"figures": [figure("GPU-9", COPY, 16.0)]}
    assert "GPU-9" in failure(ran(tmp_path / "sick", copies))


@pytest.mark.parametrize("nodes", [2, 3, 4, 6])
def test_share_beside_another_socket_is_not_named(nodes: int, tmp_path: Path) -> None:
    """On one node the job's GPU is at the socket that its process does not run on."""
    events = [
        {"figures": [figure(f"GPU-{rank}", COPY, 54.0 + 0.1 * rank)]} for rank in range(nodes)
    ]
    events[1] = {"figures": [figure("GPU-1", COPY, 33.0)]}
    check_peaks(ran(tmp_path, events, per_node=1))


def test_copies_are_judged_by_spread_where_nodes_are_whole() -> None:
    """And where the host's memory lay next to the GPU, on more than four of them."""

    def named(nodes: int, near: bool, whole: bool = True, cpus: tuple[str, ...] = ("EPYC",)) -> int:
        values = [34.0, *(54.0 + 0.05 * at for at in range(1, nodes))]
        figures = [
            DeviceFigure(f"n{at}", f"GPU-{at}", COPY, value, "GB/s", True)
            for at, value in enumerate(values)
        ]
        places = [
            Place(H100, 0, True, cpus[min(at, len(cpus) - 1)], True, near) for at in range(nodes)
        ]
        return len(judge_figures(figures, places, whole_nodes=whole).slow)

    assert named(12, near=True) == 1
    assert named(12, near=False) == named(12, near=True, whole=False) == named(4, near=True) == 0
    assert named(12, near=True, cpus=("Xeon", "EPYC")) == 0


def test_within_one_node_copies_are_judged_by_a_factor(tmp_path: Path) -> None:
    """GPUs of the other socket are slower, and half of the lanes makes it half."""
    for slowest, named in ((36.0, False), (27.0, True)):
        events = [
            {"figures": [figure(f"GPU-{rank}", COPY, slowest if rank == 3 else 54.0)]}
            for rank in range(8)
        ]
        result = ran(tmp_path / str(slowest), events, per_node=8)
        if named:
            assert failure(result).startswith("rank 3 (n0, GPU 3) on h0 (GPU-3): its host_to_dev")
        else:
            check_peaks(result)


def paired(speed: float, link: str = "NVLink") -> list[dict[str, Any]]:
    """Four nodes of two GPUs; one way of the third node's pair has this speed."""
    events = gemms(HEALTHY)
    for rank, event in enumerate(events):
        reached = speed if rank == 5 else 370.0
        event["pairs"] = [{"from": rank % 2, "to": 1 - rank % 2, "link": link, "gb_per_s": reached}]
    return events


def test_slow_pair_of_gpus_is_named(tmp_path: Path) -> None:
    """With both GPUs, what connects them, and what they reach on other nodes."""
    check_peaks(ran(tmp_path / "healthy", paired(300.0), per_node=2))
    check_peaks(ran(tmp_path / "unknown", paired(40.0, link=""), per_node=2))
    assert failure(ran(tmp_path / "slow", paired(40.0), per_node=2)) == (
        "rank 5 (n2, GPU 1) on h2: its copies to GPU 0 (NVLink) reach 40.00 GB/s, those of the "
        "same two GPUs of other nodes 370.0 GB/s"
    )


def test_pairs_are_judged_only_where_the_job_has_all_gpus(tmp_path: Path) -> None:
    """Elsewhere the numbers 0 and 1 may be two GPUs with fewer NVLinks between them; and virtual
    nodes of one machine are no other nodes. nvidia-smi does not list what a cgroup hides."""
    check_peaks(ran(tmp_path / "part", paired(40.0), per_node=2, gpus_of_node=8))
    check_peaks(ran(tmp_path / "hidden", paired(40.0), per_node=2, on_bus=8))
    assert failure(ran(tmp_path / "whole", paired(40.0), per_node=2, on_bus=2))
    check_peaks(ran(tmp_path / "virtual", paired(40.0), per_node=2, one_machine=True))


def test_pair_of_devices_that_were_measured_before_is_judged(tmp_path: Path) -> None:
    """A phase of one GPU a node measured the devices, and could not measure pairs."""
    for speed in (300.0, 40.0):
        events = [{**event, "figures": [], "measured_in": "first"} for event in paired(speed)]
        result = ran(tmp_path / str(speed), events, per_node=2)
        if speed == 40.0:
            assert "its copies to GPU 0 (NVLink) reach 40.00 GB/s" in failure(result)
        else:
            with pytest.raises(pytest.skip.Exception, match="in an earlier phase"):
                check_peaks(result)


def carded(speed: float) -> list[dict[str, Any]]:
    """Four nodes of two GPUs; the first card of the third one carries this much."""
    events = gemms(HEALTHY)
    for node, event in enumerate(events[::2]):
        reached = speed if node == 2 else 24.0
        card = {"guid": f"b8cef60300a1{node:04x}", "rate": "400 Gb/sec (4X NDR)", "gb_per_s": 24.0}
        event["cards"] = [
            {**card, "name": "mlx5_0:1", "gb_per_s": reached},
            {**card, "name": "mlx5_1:1", "guid": f"b8cef60300a2{node:04x}"},
        ]
    return events


def test_slow_network_card_is_named(tmp_path: Path) -> None:
    """Where the job has the whole node: elsewhere other jobs may use the card."""
    check_peaks(ran(tmp_path / "healthy", carded(20.0), per_node=2))
    check_peaks(ran(tmp_path / "cores", carded(6.0), per_node=2, cores_of_job=32))
    check_peaks(ran(tmp_path / "gpus", carded(6.0), per_node=2, gpus_of_node=8))
    check_peaks(ran(tmp_path / "hidden", carded(6.0), per_node=2, on_bus=8))
    check_peaks(ran(tmp_path / "virtual", carded(6.0), per_node=2, one_machine=True))
    assert failure(ran(tmp_path / "slow", carded(6.0), per_node=2)).startswith(
        "h2: its network card mlx5_0:1 (400 Gb/sec (4X NDR), GUID b8cef60300a10002) carries 6.000 "
        "GB/s of an all-reduce, that of other nodes 24.00 GB/s"
    )


def test_network_card_that_was_not_measured_keeps_the_others_judged(tmp_path: Path) -> None:
    """It has its reason in the report, and figures of the others are in the history."""
    events = carded(24.0)
    events[0]["cards"][1] = {"name": "mlx5_1:1", "why": "NCCL used NET/Socket in its place"}
    check_peaks(result := ran(tmp_path, events, per_node=2))
    record = peaks_record(result)
    assert record is not None
    assert record.not_measured == [
        "rank 0 (n0, GPU 0) network card mlx5_1:1: NCCL used NET/Socket in its place"
    ]
    cards = [each for each in record.figures if each.name == "nic_busbw_gb_per_s"]
    assert [(each.node, each.device) for each in cards[:2]] == [
        ("n0", "NIC-b8cef60300a10000:1"),
        ("n1", "NIC-b8cef60300a10001:1"),
    ]


def test_network_card_slower_than_it_was_is_named(tmp_path: Path) -> None:
    """By its GUID, with the factor of copies; on one node nothing else shows it. Under
    `history_check: warn` it is not named."""
    for value, nights, fails in ((6.0, 8, True), (20.0, 8, True), (6.0, 7, True), (6.0, 8, False)):
        events = gemms([700.0] * 2)
        card = {"name": "mlx5_0:1", "guid": "b8cef60300a12c3e", "rate": "400 Gb/sec"}
        events[0]["cards"] = [{**card, "gb_per_s": value}]
        folder = tmp_path / f"{value}-{nights}-{fails}"
        result = ran(folder / "run", events, per_node=2)
        device = "NIC-b8cef60300a12c3e:1"
        for number in range(nights):
            made = DeviceFigure("n0", device, "nic_busbw_gb_per_s", 24.0, "GB/s", True, result.name)
            record = night(number, name=result.name, **vars(fingerprint_of(result)))
            history_store.store_run(records.parsed(record), folder, figures=[made])
        result = replace(result, past=PastRuns("gilbreth", folder, fails, 1e12))
        if (value, nights, fails) == (6.0, 8, True):
            assert failure(result) == (
                f"h0 ({device}): its nic_busbw_gb_per_s is 6.000 GB/s, that of its good runs of "
                "the past 24.00 GB/s"
            )
        else:
            check_peaks(result)


LINK = {"gt_per_s": 32.0, "lanes": 16, "now_gt_per_s": 2.5, "now_lanes": 16}


def test_copies_below_the_floor_of_the_link_are_named(tmp_path: Path) -> None:
    """All are alike, so that no peer shows it; on the first day, also of a GPU alone."""
    events = [
        {"figures": [figure(f"GPU-{rank}", COPY, 3.1)], "pcie_link": LINK} for rank in range(4)
    ]
    lines = failure(ran(tmp_path / "all", events)).splitlines()
    assert lines[3] == (
        "rank 3 (n0, GPU 3) on h0 (GPU-3): its host_to_device_gb_per_s is 3.100 GB/s; its PCIe "
        "link (32 GT/s x16) carries 63.02 GB/s, of which at least 25% was expected; it ran at "
        "2.5 GT/s x16"
    )
    assert len(lines) == 4
    assert "GPU-0" in failure(ran(tmp_path / "alone", events[:1], per_node=1))


def test_floor_holds_only_where_the_job_has_the_whole_node(tmp_path: Path) -> None:
    """Another job may use what leads to the GPU; and without a link there is no floor."""
    copies = [figure(f"GPU-{rank}", COPY, 3.1) for rank in range(4)]
    events: list[Any] = [{"figures": [each], "pcie_link": LINK} for each in copies]
    check_peaks(ran(tmp_path / "cores", events, cores_of_job=32))
    check_peaks(ran(tmp_path / "gpus", events, gpus_of_node=8))
    # Four virtual nodes of one GPU copy at the same time: each has a quarter of its link.
    alike = [{"figures": [figure("GPU", COPY, 13.8)], "pcie_link": LINK} for _ in range(4)]
    check_peaks(ran(tmp_path / "virtual", alike, per_node=1, one_machine=True))
    unknown = {"unknown": "this is a virtual machine"}
    check_peaks(result := ran(tmp_path / "vm", [{**each, "pcie_link": unknown} for each in events]))
    assert not any("copies reach" in words for words in result.sensitivity)
    healthy = [{"figures": [figure("GPU", COPY, 33.0)], "pcie_link": LINK} for _ in range(4)]
    check_peaks(result := ran(tmp_path / "healthy", healthy))
    assert result.sensitivity[-1] == (
        "would have named a GPU whose copies reach less than 15.75 GB/s"
    )


def test_hosts_are_judged_by_a_factor(tmp_path: Path) -> None:
    """Others may use the node as well; a lower latency is better."""
    latencies = (100.0, 150.0, 110.0, 90.0)
    events = [{"figures": [figure("", LATENCY, value, False)]} for value in latencies]
    check_peaks(ran(tmp_path / "healthy", events, per_node=1))
    events[1] = {"figures": [figure("", LATENCY, 230.0, False)]}
    words = failure(ran(tmp_path / "sick", events, per_node=1))
    assert words == (
        "rank 1 (n1, GPU 0) on h1: its cpu_latency_ns is 230.0 ns, that of its peers 100.0 ns"
    )


def test_hosts_of_shared_nodes_are_not_judged(tmp_path: Path) -> None:
    """Nor are those with another CPU: what a core does depends on it, and on its neighbours."""
    latencies = (100.0, 230.0, 110.0, 90.0)
    events: list[dict[str, Any]] = [
        {"figures": [figure("", LATENCY, value, False)]} for value in latencies
    ]
    with pytest.raises(Unmeasured, match=r"rank 0 .* has nothing to be compared with"):
        check_peaks(ran(tmp_path / "shared", events, per_node=1, cores_of_job=32))
    for rank, (event, gemm) in enumerate(zip(events, gemms(HEALTHY[:4]), strict=True)):
        event["figures"] = [*event["figures"], *gemm["figures"]]
        event["cpu"] = "Xeon" if rank == 1 else "EPYC"
    check_peaks(ran(tmp_path / "other", events, per_node=1))


def test_clock_and_power_are_not_judged(tmp_path: Path) -> None:
    """Half of the clock and of the power; what that costs, the multiplications show."""
    events = gemms(HEALTHY)
    for rank, event in enumerate(events):
        share = 0.5 if rank == 3 else 1.0
        for name, unit, usual in (
            ("sm_clock_under_load_mhz", "MHz", 1755.0),
            ("power_under_load_watts", "W", 690.0),
        ):
            kind = {"device": f"GPU-{rank}", "name": name, "unit": unit, "higher_is_better": True}
            event["figures"] = [*event["figures"], {**kind, "value": share * usual}]
    check_peaks(ran(tmp_path, events))


def test_device_alone_is_not_measured(tmp_path: Path) -> None:
    """Without a peer and a past nothing was compared, also if other devices were."""
    events = gemms(HEALTHY[:4])
    events[2]["figures"][0]["name"] = "gemm_fp32_tflops"
    with pytest.raises(Unmeasured, match=r"rank 2 .* has nothing to be compared with") as raised:
        check_peaks(ran(tmp_path, events))
    assert raised.value.kind == "peaks"


def test_past_of_a_gpu_without_uuid_is_not_its_own(tmp_path: Path) -> None:
    """The number in its node may be that of another GPU each time."""
    with pytest.raises(Unmeasured, match="nothing to be compared with"):
        check_peaks(after_nights(tmp_path, 600.0, 8, device="n0/cuda:0"))


def test_whole_nodes_are_judged_by_their_spread() -> None:
    """A screen has them to itself, so 15 % are seen."""
    values = [100.0 + 0.1 * node for node in range(32)]
    values[7] = 115.0
    figures = [DeviceFigure(f"n{at}", "", LATENCY, v, "ns", False) for at, v in enumerate(values)]
    places = [Place(H100, 0, True, "EPYC", True)] * len(figures)
    assert judge_figures(figures, places).slow == ()
    (slow,) = judge_figures(figures, places, whole_nodes=True).slow
    assert slow.figure.node == "n7"


@pytest.mark.parametrize(("nodes", "capped", "share"), [(3, 1, 0.5), (64, 10, 0.9)])
@pytest.mark.parametrize("whole", [False, True])
def test_nodes_all_of_whose_gpus_are_slow_are_named(
    nodes: int, capped: int, share: float, whole: bool
) -> None:
    """They are too many to be left out of the spread of all GPUs; by each node's median they are
    not."""
    draw = random.Random(nodes)
    figures = [
        DeviceFigure(f"n{gpu // 8}", f"GPU-{gpu}", GEMM, value * draw.gauss(1, 0.01), "1", True)
        for gpu in range(nodes * 8)
        for value in (700 * share if gpu // 8 < capped else 700,)
    ]
    places = [Place(H100, gpu % 8, True) for gpu in range(nodes * 8)]
    found = judge_figures(figures, places, whole_nodes=whole).slow
    assert {slow.figure.node for slow in found} == {f"n{node}" for node in range(capped)}


def test_other_models_are_no_peers(tmp_path: Path) -> None:
    """Nor are figures of another name, and a figure alone is not judged."""
    figures = [
        DeviceFigure(f"n{at}", f"GPU-{at}", name, value, "TFLOP/s", True)
        for at, (name, value) in enumerate([(GEMM, 700.0), (GEMM, 100.0), ("gemm_fp32_tflops", 9)])
    ]
    places = [Place("H100", 0, True), Place("T4", 0, True), Place("H100", 0, True)]
    verdict = judge_figures(figures, places)
    assert verdict.slow == () and verdict.visible == {}


def test_phase_of_devices_measured_before_is_skipped(tmp_path: Path) -> None:
    """The first phase of the run has them."""
    events = [{"measured_in": "first", "figures": [], "calls": 0}] * 4
    with pytest.raises(pytest.skip.Exception, match=r"in an earlier phase of the run \(first\)"):
        check_peaks(result := ran(tmp_path, events))
    assert result.judged == {measured_in("first")}


def test_never_is_skipped(tmp_path: Path) -> None:
    """Whatever a job writes that nobody asked."""
    with pytest.raises(pytest.skip.Exception, match="peaks: never"):
        check_peaks(ran(tmp_path, gemms(HEALTHY), peaks="never"))


def test_missing_evidence_is_no_pass(tmp_path: Path) -> None:
    """A rank without its event, a figure that could not be measured, or no known answer."""
    for name, event in {
        "silent": None,
        "failed": {"figures": [], "not_measured": {GEMM: "RuntimeError: out of memory"}},
        "torn": {"figures": [{"device": 3}], "calls": "many", "wrong": None},
    }.items():
        events: list[Any] = [event, *gemms(HEALTHY[:3])]
        if name == "torn":
            events = [event] * 4
        with pytest.raises(Unmeasured) as raised:
            check_peaks(ran(tmp_path / name, events))
        assert raised.value.kind == "peaks"


def test_healthy_spreads_name_nobody() -> None:
    """64 nodes of 8 GPUs that differ by 1, 3 and 8 %: each of all figures, many times."""
    normal = random.Random(4).gauss
    for spread in (0.01, 0.03, 0.08):
        for _ in range(10):
            figures, places = [], []
            for name in (GEMM, "device_copy_gb_per_s", COPY):
                for gpu in range(512):
                    value = 700 / max(0.1, normal(1, spread))
                    figures.append(
                        DeviceFigure(f"n{gpu // 8}", f"GPU-{gpu}", name, value, "1", True)
                    )
                    places.append(Place(H100, gpu % 8, True, "EPYC", True, True))
            assert judge_figures(figures, places, whole_nodes=True).slow == ()


def after_nights(
    folder: Path, tonight: float, nights: int, fails: bool = True, device: str = "GPU-0"
) -> PhaseResult:
    """A single GPU that reaches this tonight, and 700 TFLOP/s within 0.3 % in each night before."""
    result = ran(folder / "run", [{"figures": [figure(device, GEMM, tonight)]}], per_node=1)
    for number in range(nights):
        value = 700 * (1 + 0.003 * (number % 3 - 1))
        figures = [DeviceFigure("n0", device, GEMM, value, "TFLOP/s", True, result.name)]
        record = night(number, name=result.name, **vars(fingerprint_of(result)))
        history_store.store_run(records.parsed(record), folder, figures=figures)
    return replace(result, past=PastRuns("gilbreth", folder, fails, 1e12))


def test_device_slower_than_it_was_is_named(tmp_path: Path) -> None:
    """A lone GPU has no peers; 6 % less than in eight nights is named, 3 % is not."""
    assert failure(after_nights(tmp_path / "slow", 658.0, 8)) == (
        "rank 0 (n0, GPU 0) on h0 (GPU-0): its gemm_bf16_tflops is 658.0 TFLOP/s, that of its good "
        "runs of the past 700.0 TFLOP/s"
    )
    check_peaks(after_nights(tmp_path / "noise", 680.0, 8))
    with pytest.raises(Unmeasured, match="fewer than 8 good runs"):
        check_peaks(after_nights(tmp_path / "new", 658.0, 7))


def test_profile_that_only_warns_fails_for_no_past(tmp_path: Path) -> None:
    """`history_check: warn`, as for metrics."""
    with pytest.raises(Unmeasured, match=r"658.0 TFLOP/s.*\(history_check: warn\)"):
        check_peaks(after_nights(tmp_path, 658.0, 8, fails=False))
