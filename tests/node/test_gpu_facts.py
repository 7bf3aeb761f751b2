"""Facts of a node's GPUs, with drivers that are old, broken or missing.

nvidia-smi is a fake (fakes/nvidia_smi.py): a script on PATH with the output format of the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.node import gpu_facts, node_facts
from tests.fakes import nvidia_smi
from tests.fakes.nvidia_smi import gpu
from tests.support.waiting import wait_for

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
    """The folder of the fake nvidia-smi, first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_facts, "LOOK_AGAIN_S", 0.0)
    return tmp_path


def ask(folder: Path, listed: Any, **answers: Any) -> dict[str, Any]:
    nvidia_smi.write(folder, sys.executable, listed, **answers)
    return gpu_facts.query_gpus(health=True)


def test_each_gpu_has_the_fields_of_all_queries(tool: Path) -> None:
    """The facts are JSON."""
    facts = ask(tool, [gpu(0), gpu(1, **{"remapped_rows.pending": "Yes"})])
    assert [row["uuid"] for row in facts["gpus"]] == ["GPU-0000", "GPU-0001"]
    assert [row["remapped_rows.pending"] for row in facts["gpus"]] == ["No", "Yes"]
    assert facts["gpus"][0]["ecc.errors.uncorrected.volatile.total"] == "0"
    assert facts["gpu_tool_failed"] is None and json.dumps(facts)


def test_field_unknown_to_an_old_driver_affects_only_its_group(tool: Path) -> None:
    """The other groups are answered, and the missing fields are unknown."""
    facts = ask(tool, [gpu(0)], unknown=["remapped_rows.pending", "mig.mode.current"])
    (row,) = facts["gpus"]
    assert row["retired_pages.pending"] == "No" and row["persistence_mode"] == "Enabled"
    assert "remapped_rows.failure" not in row and "mig.mode.current" not in row
    assert facts["gpu_tool_failed"] is None


def test_gpu_health_is_not_queried_for_cpu_ranks(tool: Path) -> None:
    """Only the list of GPUs is queried."""
    log = nvidia_smi.write(tool, sys.executable, [gpu(0)])
    assert len(node_facts.gather_node_facts(0, "n0", "cpu")["gpus"]) == 1
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "status"), [(FAILED, 9), ("Unable to determine the device handle", 255)]
)
def test_error_of_nvidia_smi_is_recorded(tool: Path, words: str, status: int) -> None:
    """It describes the state of the driver; the other facts are recorded as usual."""
    nvidia_smi.write(tool, sys.executable, words=words, status=status)
    facts = node_facts.gather_node_facts(0, "n0")
    assert facts["gpus"] is None and facts["packages"]["submitit"]
    assert facts["gpu_tool_failed"] == f"exit status {status}: {words}"


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        ([("0x10de", "0x030200"), ("0x8086", "0x060000")], 1),
        ([("0x10de", "0x040300"), ("0x1002", "0x030000")], 0),
        ([], None),
    ],
)
def test_gpus_on_the_bus(
    devices: list[tuple[str, str]],
    count: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUs are found by vendor and class: NVIDIA's audio devices and other vendors' GPUs do not
    count. Without a visible bus nothing is known."""
    for index, (vendor, kind) in enumerate(devices):
        device = tmp_path / f"0000:0{index}:00.0"
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(gpu_facts, "PCI", tmp_path)
    assert gpu_facts.count_gpus_on_bus() == count
    monkeypatch.setattr(gpu_facts, "_find_tool", lambda name: None)
    facts = gpu_facts.query_gpus(health=False)
    assert (facts["gpu_on_bus"], facts["gpus_on_bus"]) == (count and count > 0, count)


def test_long_error_is_cut(tool: Path) -> None:
    """Pages of output become one line."""
    facts = ask(tool, [], words="x" * 100_000, status=1)
    assert len(facts["gpu_tool_failed"]) < 500


@pytest.mark.parametrize(
    "words",
    [
        "Failed to initialize NVML: Insufficient Permissions",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
    ],
)
def test_error_of_the_tool_alone_leaves_gpus_unknown(tool: Path, words: str) -> None:
    """It is not a fault of the driver: torch may still see the GPUs."""
    facts = ask(tool, [], words=words, status=4)
    assert facts["gpus"] is None and facts["gpu_tool_failed"] is None


def test_driver_without_devices_has_no_gpus(tool: Path) -> None:
    """`No devices were found` is an answer, not an error."""
    facts = ask(tool, [], words="No devices were found", status=6)
    assert facts["gpus"] == [] and facts["gpu_tool_failed"] is None


def test_tool_is_found_behind_folders_that_cannot_be_searched(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH may have another user's folders. Root may enter all, so this one has too long a name."""
    folder = f"{tool}/{'x' * 300}"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert [row["uuid"] for row in ask(tool, [gpu(0)])["gpus"]] == ["GPU-0000"]
    monkeypatch.setenv("PATH", folder)
    assert gpu_facts.query_gpus(health=False)["gpus"] is None


def test_tool_that_cannot_be_run_is_recorded(tool: Path) -> None:
    """The fact has the system's error."""
    (tool / "nvidia-smi").write_text("#!/no/such/shell\n")
    (tool / "nvidia-smi").chmod(0o755)
    facts = gpu_facts.query_gpus(health=True)
    assert facts["gpu_tool_failed"] == "cannot run it: No such file or directory"


def test_hanging_tool_is_not_waited_for(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that keeps its output open past the timeout, and past KILL, is left behind, and not
    queried again."""
    path, noted, answer_by = tool / "nvidia-smi", tool / "pid", gpu_facts._answer

    def answer_in_time(
        process: subprocess.Popen[str], deadline: float, late: str
    ) -> gpu_facts.Answer:
        wait_for("the tool's own child", noted.exists)
        return answer_by(process, deadline, late)

    monkeypatch.setattr(gpu_facts, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(gpu_facts, "_answer", answer_in_time)
    path.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {noted}.new; mv {noted}.new {noted}; wait\n"
    )
    path.chmod(0o755)
    facts = gpu_facts.query_gpus(health=True)
    sleeper = psutil.Process(int(noted.read_text()))
    assert sleeper.is_running()
    sleeper.kill()
    assert facts["gpus"] is None and facts["gpu_tool_failed"] == "no answer within 0.5 s"
    (answer,) = gpu_facts.run_all([["sleep", "60"]], 0.1)
    assert answer == (None, "no answer within 0.1 s")


def test_processes_on_the_jobs_gpus_are_recorded(tool: Path) -> None:
    """Their names may contain commas. Processes on unlisted GPUs and the multi-process service do
    not count."""
    service = {**OTHER, "pid": 12, "process_name": "/usr/bin/nvidia-cuda-mps-server"}
    elsewhere = {**OTHER, "pid": 13, "gpu_uuid": "GPU-9999"}
    facts = ask(tool, [gpu(0), gpu(1)], processes=[OTHER, service, elsewhere])
    assert facts["gpu_processes"] == [
        {"gpu": "GPU-0001", "pid": "4711", "name": "/usr/bin/python, -u", "memory": "1 MiB"}
    ]
    assert gpu_facts.busy_processes(facts) == facts["gpu_processes"]


def test_process_that_has_just_ended_does_not_count(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no longer listed by the second query."""
    nvidia_smi.write(tool, sys.executable, [gpu(0), gpu(1)], processes=[OTHER])

    def meanwhile(_seconds: float) -> None:
        nvidia_smi.write(tool, sys.executable, [gpu(0), gpu(1)])

    monkeypatch.setattr(time, "sleep", meanwhile)
    assert gpu_facts.query_gpus(health=True)["gpu_processes"] == []


def test_process_counts_where_the_second_query_fails(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a stuck process nvidia-smi may fail; it does not say that the first has ended."""
    nvidia_smi.write(tool, sys.executable, [gpu(0), gpu(1)], processes=[OTHER])

    def meanwhile(seconds: float) -> None:
        if seconds == gpu_facts.LOOK_AGAIN_S:  # subprocess sleeps as well
            nvidia_smi.write(tool, sys.executable, words="stuck", status=9)

    monkeypatch.setattr(time, "sleep", meanwhile)
    (process,) = gpu_facts.query_gpus(health=True)["gpu_processes"]
    assert process["pid"] == str(OTHER["pid"])


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
def test_jobs_gpus_are_those_that_cuda_shows(visible: str | None, ours: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES is parsed as CUDA does: up to the first entry that names no GPU."""
    listed = [{key: str(value) for key, value in gpu(index).items()} for index in range(4)]
    share = gpu_facts.share({"gpus": listed, "cuda_visible_devices": visible})
    assert share is not None and [row["index"] for row in share.gpus] == ours and share.exact


def test_index_is_not_exact_with_two_gpu_models() -> None:
    """CUDA counts from the fastest GPU unless it is set to bus order, so only the number of GPUs
    is known."""
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
def test_unknown_share_has_no_processes(facts: dict[str, Any]) -> None:
    """Nothing is known without a list of GPUs, nor about parts of GPUs."""
    assert gpu_facts.share(facts) is None and gpu_facts.busy_processes(facts) == []


def test_processes_on_a_divided_gpu_do_not_count() -> None:
    """They may run in a part that belongs to another job."""
    listed = [{"name": "A", "uuid": "GPU-0", "mig.mode.current": "Enabled"}]
    assert (
        gpu_facts.busy_processes({"gpus": listed, "gpu_processes": [{"gpu": "GPU-0", "pid": "1"}]})
        == []
    )
