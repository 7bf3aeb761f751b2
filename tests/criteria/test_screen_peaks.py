"""What the devices of screened nodes reached is judged; what one node alone could not measure fails
it, and what most could not is skipped with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.screen_judge import CheckJudgement
from pytest_clustersmoke.criteria.screen_peaks import judge_peaks
from pytest_clustersmoke.evidence.node_measurement import NodeMeasurement, read_measurement
from pytest_clustersmoke.evidence.screen_files import NodeAnswer, ScreenFiles
from pytest_clustersmoke.evidence.whole_files import write_json

LIMIT_S = 90.0
GEMM, LATENCY = "gemm_bf16_tflops", "cpu_latency_ns"


def figure(device: str, name: str, value: float, unit: str, higher: bool) -> dict[str, Any]:
    return {
        "device": device,
        "name": name,
        "value": value,
        "unit": unit,
        "higher_is_better": higher,
    }


def written(number: int, gemm: float = 700.0, device: str = "cuda", **own: Any) -> dict[str, Any]:
    """What a healthy node with two devices writes, with some noise; `own` changes the first."""
    noise = 1 + 0.002 * (number % 5)
    names = [f"GPU-{number}-{local}" for local in range(2)]
    usual: dict[str, Any] = {
        "device_name": "H100",
        "torch": "2.5",
        "cuda": "12.4",
        "precision": "bf16",
    }
    usual |= {"calls": 3000, "wrong": 0, "answer": 17, "not_measured": {}}
    devices = [
        {**usual, "identity": name, "local_rank": local, "device": f"{device}:{local}"}
        for local, name in enumerate(names)
    ]
    devices[0] |= own
    speeds = (gemm, 700.0 * noise)
    figures = [
        figure(name, GEMM, speed, "TFLOP/s", True)
        for name, speed in zip(names, speeds, strict=True)
    ]
    return {"figures": [*figures, figure("", LATENCY, 90 * noise, "ns", False)], "devices": devices}


def judge(
    folder: Path, nodes: list[dict[str, Any] | None], **answer: Any
) -> dict[str, CheckJudgement]:
    """Judge nodes n0, n1, ... by their files; None wrote nothing. `answer` changes that of n1."""
    files = ScreenFiles(folder)
    files.create({})
    for number, value in enumerate(nodes):
        if value is not None:
            write_json(files.figures(f"n{number}"), value)
    facts = {"packages": {"torch": "2.5"}}
    answers = [NodeAnswer(f"n{number}", facts, work_s=0.001) for number in range(len(nodes))]
    answers[1] = replace(answers[1], **answer)
    measured = {each.node: read_measurement(files, each.node) for each in answers}
    return judge_peaks(answers, measured, LIMIT_S)


def test_healthy_devices_pass(tmp_path: Path) -> None:
    judged = judge(tmp_path, [written(number) for number in range(8)])
    assert {check.result for check in judged.values()} == {"passed"}


def test_slow_device_is_named_with_its_figure_and_no_other_node(tmp_path: Path) -> None:
    judged = judge(tmp_path, [*(written(number) for number in range(7)), written(7, gemm=400.0)])
    failed = {node: check for node, check in judged.items() if check.result == "failed"}
    assert list(failed) == ["n7"] and failed["n7"].id == "device-slow"
    assert failed["n7"].text.startswith(
        f"GPU-7-0: its {GEMM} is 400.0 TFLOP/s, that of its peers 70"
    )


def test_slow_pair_of_gpus_fails_its_node(tmp_path: Path) -> None:
    """Compared with the same two GPUs of the other nodes."""
    nodes = [written(number) for number in range(4)]
    for number, node in enumerate(nodes):
        speed = 40.0 if number == 2 else 370.0
        node["devices"][0]["pairs"] = [{"to": 1, "link": "NVLink", "gb_per_s": speed}]
    judged = judge(tmp_path, [*nodes])
    assert [node for node, check in judged.items() if check.result == "failed"] == ["n2"]
    assert judged["n2"].text.startswith("GPU-2-0: its copies to GPU 1 (NVLink) reach 40.00 GB/s")


def test_pairs_of_nodes_with_hidden_gpus_are_not_compared(tmp_path: Path) -> None:
    """A cgroup may give the job another two GPUs on each node; the bus shows all of them."""
    nodes = [written(number) for number in range(4)]
    for number, node in enumerate(nodes):
        speed = 40.0 if number == 1 else 370.0
        node["devices"][0]["pairs"] = [{"to": 1, "link": "NVLink", "gb_per_s": speed}]
    count = len(nodes[1]["devices"])
    hidden = judge(tmp_path / "hidden", [*nodes], facts={"packages": {}, "gpus_on_bus": count + 6})
    assert {check.result for check in hidden.values()} == {"passed"}
    whole = judge(tmp_path / "whole", [*nodes], facts={"packages": {}, "gpus_on_bus": count})
    assert [node for node, check in whole.items() if check.result == "failed"] == ["n1"]


def test_slow_network_card_fails_its_node(tmp_path: Path) -> None:
    """Compared with the card of the same name in other nodes. So does a card that NCCL cannot use
    there alone; one that was not tried says nothing."""
    nodes = [written(number) for number in range(5)]
    for number, node in enumerate(nodes):
        card = {"name": "mlx5_0:1", "guid": f"b8cef60300a1{number:04x}", "rate": "400 Gb/sec"}
        found: dict[str, Any] = {"gb_per_s": 6.0 if number == 2 else 24.0, "gpus": [0, 1]}
        if not number:
            found = {"why": "CUDA error: unspecified launch failure", "gpus": [0, 1]}
        elif number == 1:
            found = {"why": "this needs two GPUs, and the rank sees 1"}
        node["devices"][0]["cards"] = [{**card, **found}]
    judged = judge(tmp_path, [*nodes])
    failed = {node: check.id for node, check in judged.items() if check.result == "failed"}
    assert failed == {"n0": "peaks-failed", "n2": "device-slow"}
    assert judged["n0"].text == (
        "NCCL cannot use its network card mlx5_0:1 (400 Gb/sec, GUID b8cef60300a10000), as it can "
        "on other nodes: CUDA error: unspecified launch failure"
    )
    assert judged["n2"].text.startswith(
        "its network card mlx5_0:1 (400 Gb/sec, GUID b8cef60300a10002)"
    )


def test_copies_below_the_floor_of_the_link_fail_without_peers(tmp_path: Path) -> None:
    """On the first day, and of two nodes alone. Without a known link there is no floor."""
    nodes = [written(number) for number in range(2)]
    for node, value in zip(nodes, (40.0, 3.0), strict=True):
        device = node["devices"][0]
        device["pcie_link"] = {"gt_per_s": 32.0, "lanes": 16}
        name = device["identity"]
        node["figures"].append(figure(name, "device_to_host_gb_per_s", value, "GB/s", True))
    judged = judge(tmp_path / "known", [*nodes])
    assert [check.result for check in judged.values()] == ["passed", "failed"]
    assert "its PCIe link (32 GT/s x16) carries 63.02 GB/s" in judged["n1"].text
    nodes[1]["devices"][0]["pcie_link"] = {"unknown": "this is a virtual machine"}
    assert judge(tmp_path / "unknown", [*nodes])["n1"].result == "passed"


def test_gpu_of_virtual_nodes_has_no_floor(tmp_path: Path) -> None:
    """They copy at the same time, and each has a part of its link."""
    nodes = [written(number) for number in range(4)]
    for node in nodes:
        node["devices"][0] |= {"identity": "GPU", "pcie_link": {"gt_per_s": 32.0, "lanes": 16}}
        node["figures"][0]["device"] = "GPU"
        node["figures"].append(figure("GPU", "host_to_device_gb_per_s", 13.8, "GB/s", True))
    assert {check.result for check in judge(tmp_path, [*nodes]).values()} == {"passed"}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"wrong": 2}, "it gave another answer in 2 of 3,000 equal multiplications (bf16)"),
        ({"answer": 18}, "computes another product than the 5 others of its kind, each time"),
    ],
)
def test_wrong_answer_fails_also_where_nothing_is_compared(
    tmp_path: Path, own: dict[str, Any], words: str
) -> None:
    judged = judge(tmp_path, [written(0), written(1, **own), written(2)], work_s=None)
    assert [check.result for check in judged.values()] == ["passed", "failed", "passed"]
    assert judged["n1"].id == "device-wrong-answer" and words in judged["n1"].text


NOT_MEASURED: tuple[tuple[dict[str, Any] | None, dict[str, Any], str], ...] = (
    (None, {"facts": {"packages": {"numpy": "2"}}}, "torch is not installed there"),
    ({"status": 124}, {}, "no figures within 90 s (limits.screen_peaks_s)"),
    ({"status": 3}, {}, "ended with status 3; see the log of its job"),
    (None, {}, "its job ended before it had figures"),
    (written(1, not_measured={GEMM: "CUDA error"}), {}, f"could not measure {GEMM}: CUDA error"),
    ({"figures": [3, {"name": GEMM}], "devices": "many", "status": "x"}, {}, "its job ended"),
)


@pytest.mark.parametrize(("value", "answer", "words"), NOT_MEASURED)
def test_node_that_alone_could_not_measure_fails_with_the_reason(
    tmp_path: Path, value: dict[str, Any] | None, answer: dict[str, Any], words: str
) -> None:
    """It is not as the others, which are judged as before; also where there is one other."""
    for others in ((2, 3, 4), ()):
        nodes = [written(0), value, *(written(number) for number in others)]
        judged = judge(tmp_path / str(len(others)), nodes, **answer)
        assert (judged["n1"].result, judged["n1"].id) == ("failed", "peaks-failed")
        assert words in judged["n1"].text
        failed = [node for node, check in judged.items() if check.result == "failed"]
        assert failed == ["n1"]


@pytest.mark.parametrize(("value", "answer", "words"), NOT_MEASURED)
def test_what_most_nodes_could_not_measure_is_skipped_with_the_reason(
    tmp_path: Path, value: dict[str, Any] | None, answer: dict[str, Any], words: str
) -> None:
    """It is the cluster's setting, or the program's fault."""
    judged = judge(tmp_path, [value, value, written(2)], **answer)
    assert "failed" not in {check.result for check in judged.values()}
    assert judged["n1"].result == "skipped" and words in judged["n1"].text


def test_node_whose_measurement_was_cut_short_for_no_fault_of_it_is_skipped(
    tmp_path: Path,
) -> None:
    files = ScreenFiles(tmp_path)
    judged = judge(tmp_path, [written(0), None, written(2), written(3)])
    assert judged["n1"].result == "failed"
    answers = [NodeAnswer(node, {}, work_s=0.001) for node in judged]
    measured = {node: read_measurement(files, node) for node in judged}
    spared = judge_peaks(answers, measured, LIMIT_S, {"n1": "the screen was interrupted"})
    assert spared["n1"] == CheckJudgement("skipped", "not measured: the screen was interrupted")


def test_failed_measurement_has_the_cause_that_the_log_gives(tmp_path: Path) -> None:
    files = ScreenFiles(tmp_path)
    files.create({})
    nodes = [f"n{number}" for number in range(3)]
    for number in range(2):
        write_json(files.figures(nodes[number]), written(number))
    answers = [NodeAnswer(node, {"packages": {"torch": "2"}}, work_s=0.001) for node in nodes]
    measured = {node: read_measurement(files, node) for node in nodes}
    judged = judge_peaks(answers, measured, LIMIT_S, explain=lambda node: f"{node} has no driver")
    why = (
        "not measured, unlike 2 other nodes: its job ended before it had figures: n2 has no driver"
    )
    assert judged["n2"].text == why


def test_shared_node_is_not_compared(tmp_path: Path) -> None:
    nodes = [written(number) for number in range(5)]
    judged = judge(tmp_path, [*nodes], work_s=None)
    assert judged["n1"].result == "skipped"
    assert "the job does not have all cores of the node" in judged["n1"].text
    assert {check.result for node, check in judged.items() if node != "n1"} == {"passed"}


def test_too_few_peers_judge_nobody(tmp_path: Path) -> None:
    """Two nodes that reach different figures accuse neither."""
    nodes = [written(0), written(1)]
    for value, speed in zip(nodes, (700.0, 200.0), strict=True):
        value["figures"] = [figure("GPU-0-0", GEMM, speed, "TFLOP/s", True)]
    judged = judge(tmp_path, list(nodes))
    assert {check.text for check in judged.values()} == {
        "not compared: fewer than 3 devices of its kind were measured"
    }


def test_figures_have_the_models_of_their_devices(tmp_path: Path) -> None:
    """Those of the node itself that of its CPU."""
    files = ScreenFiles(tmp_path)
    files.create({})
    write_json(files.figures("n0"), written(0, cpu="EPYC"))
    models = {made.name: made.model for made in read_measurement(files, "n0").figures}
    assert models == {GEMM: "H100", LATENCY: "EPYC"}


def test_node_that_wrote_nothing_has_no_measurement(tmp_path: Path) -> None:
    assert read_measurement(ScreenFiles(tmp_path), "n0") == NodeMeasurement()
