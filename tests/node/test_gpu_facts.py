"""What a node says of its GPUs, beside drivers that are old, sick or absent.

nvidia-smi is a fake (fakes/nvidia_smi.py): a script on PATH with the forms of the real one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.node import gpu_facts
from pytest_clustersmoke.node import node_facts as facts
from tests.fakes import nvidia_smi
from tests.fakes.nvidia_smi import gpu

FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running."
)
OTHER = {
    "gpu_uuid": "GPU-0001",
    "pid": 4711,
    "process_name": "/usr/bin/python, -u",
    "used_memory": "1 MiB",
}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the fake nvidia-smi, which comes first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_facts, "LOOK_AGAIN_S", 0.0)
    return tmp_path


def ask(folder: Path, listed: Any, **said: Any) -> dict[str, Any]:
    nvidia_smi.write(folder, sys.executable, listed, **said)
    return gpu_facts.ask(health=True)


def test_gpus_are_told_with_all_that_is_known(tool: Path) -> None:
    """Each GPU has its fields, from however many questions; the facts are JSON."""
    found = ask(tool, [gpu(0), gpu(1, **{"remapped_rows.pending": "Yes"})])
    assert [one["uuid"] for one in found["gpus"]] == ["GPU-0000", "GPU-0001"]
    assert [one["remapped_rows.pending"] for one in found["gpus"]] == ["No", "Yes"]
    assert found["gpus"][0]["ecc.errors.uncorrected.volatile.total"] == "0"
    assert found["gpu_tool_failed"] is None and json.dumps(found)


def test_a_field_that_an_old_driver_lacks_costs_only_its_own_group(tool: Path) -> None:
    """The other groups are answered as ever, and what is lacking is unknown."""
    found = ask(tool, [gpu(0)], unknown=["remapped_rows.pending", "mig.mode.current"])
    (one,) = found["gpus"]
    assert one["retired_pages.pending"] == "No" and one["persistence_mode"] == "Enabled"
    assert "remapped_rows.failure" not in one and "mig.mode.current" not in one
    assert found["gpu_tool_failed"] is None


def test_a_node_that_trains_on_its_cpus_is_asked_for_its_gpus_alone(tool: Path) -> None:
    """Their health costs nothing where no rank uses them."""
    log = nvidia_smi.write(tool, sys.executable, [gpu(0)])
    assert len(facts.gather_node_facts(0, "n0", "cpu")["gpus"]) == 1
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "status"), [(FAILED, 9), ("Unable to determine the device handle", 255)]
)
def test_the_words_of_a_tool_that_fails_are_kept(tool: Path, words: str, status: int) -> None:
    """They are the node's own account of its driver; the other facts are there as ever."""
    nvidia_smi.write(tool, sys.executable, words=words, status=status)
    found = facts.gather_node_facts(0, "n0")
    assert found["gpus"] is None and found["packages"]["submitit"]
    assert found["gpu_tool_failed"] == f"exit status {status}: {words}"


@pytest.mark.parametrize(
    ("devices", "there"),
    [
        ([("0x10de", "0x030200"), ("0x8086", "0x060000")], True),
        ([("0x10de", "0x040300"), ("0x1002", "0x030000")], False),
        ([], None),
    ],
)
def test_gpus_on_the_bus(
    devices: list[tuple[str, str]],
    there: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By vendor and class: sound devices of the same maker and others' GPUs are none of them; where
    the bus is not shown, nothing is known."""
    for index, (vendor, kind) in enumerate(devices):
        device = tmp_path / f"0000:0{index}:00.0"
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(gpu_facts, "PCI", tmp_path)
    assert gpu_facts.on_bus() is there


def test_words_without_end_are_cut(tool: Path) -> None:
    """A tool that talks for pages leaves a line of it."""
    found = ask(tool, [], words="x" * 100_000, status=1)
    assert len(found["gpu_tool_failed"]) < 500


@pytest.mark.parametrize(
    "words",
    [
        "Failed to initialize NVML: Insufficient Permissions",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
    ],
)
def test_a_tool_that_may_not_ask_says_nothing_of_the_driver(tool: Path, words: str) -> None:
    """GPUs are unknown then, and not at fault: torch may see them all the same."""
    found = ask(tool, [], words=words, status=4)
    assert found["gpus"] is None and found["gpu_tool_failed"] is None


def test_a_driver_without_devices_is_known_to_have_none(tool: Path) -> None:
    """`No devices were found` is an answer."""
    found = ask(tool, [], words="No devices were found", status=6)
    assert found["gpus"] == [] and found["gpu_tool_failed"] is None


def test_a_tool_that_cannot_be_run(tool: Path) -> None:
    """It is told with the system's words."""
    (tool / "nvidia-smi").write_text("#!/no/such/shell\n")
    (tool / "nvidia-smi").chmod(0o755)
    found = gpu_facts.ask(health=True)
    assert found["gpu_tool_failed"] == "cannot run it: No such file or directory"


def test_a_tool_that_hangs_is_left_behind(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps its output open past its time, and past its own KILL, is not waited for; no
    other question is put to it."""
    monkeypatch.setattr(gpu_facts, "TIMEOUT_S", 0.5)
    path, noted = tool / "nvidia-smi", tool / "pid"
    path.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {noted}.new; mv {noted}.new {noted}; wait\n"
    )
    path.chmod(0o755)
    found = gpu_facts.ask(health=True)
    sleeper = psutil.Process(int(noted.read_text()))
    assert sleeper.is_running()
    sleeper.kill()
    assert found["gpus"] is None and found["gpu_tool_failed"] == "no answer within 0.5 s"


def test_processes_on_our_gpus_are_told(tool: Path) -> None:
    """With their names, commas included; not those on GPUs that are not listed, nor the
    multi-process service."""
    service = {**OTHER, "pid": 12, "process_name": "/usr/bin/nvidia-cuda-mps-server"}
    elsewhere = {**OTHER, "pid": 13, "gpu_uuid": "GPU-9999"}
    found = ask(tool, [gpu(0), gpu(1)], processes=[OTHER, service, elsewhere])
    assert found["gpu_processes"] == [
        {"gpu": "GPU-0001", "pid": "4711", "name": "/usr/bin/python, -u", "memory": "1 MiB"}
    ]
    assert gpu_facts.busy(found) == found["gpu_processes"]


def test_a_process_that_has_just_ended_is_no_user(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is gone at the second look was on its way out."""
    nvidia_smi.write(tool, sys.executable, [gpu(0), gpu(1)], processes=[OTHER])

    def meanwhile(_seconds: float) -> None:
        nvidia_smi.write(tool, sys.executable, [gpu(0), gpu(1)])

    monkeypatch.setattr(time, "sleep", meanwhile)
    assert gpu_facts.ask(health=True)["gpu_processes"] == []


@pytest.mark.parametrize(
    ("visible", "ours"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,3", ["2", "3"]),
        ("1", ["1"]),
        ("0,9,1", ["0"]),
        ("GPU-0002, GPU-0000", ["2", "0"]),
        ("GPU-0002,GPU-7", ["2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("9" * 5000, []),
    ],
)
def test_the_jobs_own_share_is_what_cuda_shows(visible: str | None, ours: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES is read as CUDA does: up to the first entry that names nothing."""
    listed = [{key: str(value) for key, value in gpu(index).items()} for index in range(4)]
    share = gpu_facts.share({"gpus": listed, "cuda_visible_devices": visible})
    assert share is not None and [one["index"] for one in share.gpus] == ours and share.exact


def test_an_index_does_not_tell_which_of_two_models_it_is() -> None:
    """CUDA counts from the fastest unless told to go by bus: then the share is only a number."""
    listed = [{"name": "A", "uuid": "GPU-0"}, {"name": "B", "uuid": "GPU-1"}]
    facts = {"gpus": listed, "cuda_visible_devices": "1"}
    share = gpu_facts.share(facts)
    assert share is not None and len(share.gpus) == 1 and not share.exact
    by_bus = gpu_facts.share({**facts, "cuda_device_order": "PCI_BUS_ID"})
    assert by_bus is not None and by_bus.exact


@pytest.mark.parametrize(
    "facts",
    [{}, {"gpus": None}, {"gpus": "GPU"}, {"gpus": [gpu(0)], "cuda_visible_devices": "MIG-1"}],
)
def test_a_share_that_cannot_be_known(facts: dict[str, Any]) -> None:
    """Nothing is said of GPUs that were not told, nor of parts of GPUs."""
    assert gpu_facts.share(facts) is None and gpu_facts.busy(facts) == []


def test_processes_on_a_divided_gpu_may_be_in_anothers_part() -> None:
    """They are not counted against us."""
    listed = [{"name": "A", "uuid": "GPU-0", "mig.mode.current": "Enabled"}]
    assert gpu_facts.busy({"gpus": listed, "gpu_processes": [{"gpu": "GPU-0", "pid": "1"}]}) == []
