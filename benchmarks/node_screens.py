"""Real screens of four nodes of a lab: what each of them measured, and whether any was named.

`pytest --cluster-screen` runs so many times on a lab that this starts and ends, and measures each
node by a rank of its own, as it does on a cluster. A store has a line for each node, from which
`benchmarks.peaks` draws larger screens; with the store of an earlier run, this goes on where that
stopped. Nothing is staged, so every node must pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.node_measurement import read_measurement
from pytest_clustersmoke.evidence.node_observation import DeviceFigure
from pytest_clustersmoke.evidence.screen_files import ScreenFiles

NODES = 4
# The figures of a node, with their units, whether higher is better, and whether they are the
# device's: all others are those of the node.
FIGURES = {
    "gemm_fp32_tflops": ("TFLOP/s", True, True),
    "cpu_copy_gb_per_s": ("GB/s", True, False),
    "cpu_latency_ns": ("ns", False, False),
}
HEAD = ("screen", "node", "result", *FIGURES)
PROFILE = """
clusters:
  four:
    backend: slurm
    lab: true
    shared_dir: {folder}/runs
    hardware: {{gpu: none, device: cpu, gpus_per_node: 1}}
    slurm: {{partition: main, time: 30}}
    env: {{common: {{set: {{OMP_NUM_THREADS: 1}}}}}}
    limits: {{poll_s: 1, screen_s: 120, screen_peaks_s: 600}}
    peaks: once
    phases: {{unused: {{}}}}
"""
Screen = list[DeviceFigure]


def run_screens(screens: int, store: Path) -> None:
    """Run what the store lacks of so many screens."""
    if not store.exists():
        store.write_text("\t".join(HEAD) + "\n")
    done = len({row["screen"] for row in _read_rows(store)})
    if done >= screens:
        return
    running = lab.start_lab(lab.LabSettings(name=f"screens-{os.getpid()}", nodes=NODES))
    try:
        for number in range(done, screens):
            with tempfile.TemporaryDirectory() as folder:
                lines = list(_run_screen(number, Path(folder), running))
            with store.open("a") as stream:
                stream.writelines(lines)
            print("".join(lines), end="", flush=True)
    finally:
        lab.stop_lab(running.name)


def _run_screen(number: int, folder: Path, running: lab.Lab) -> Iterator[str]:
    """The lines of one screen."""
    (folder / "cluster.yaml").write_text(PROFILE.format(folder=folder))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "--cluster", "four", "--cluster-screen", "-q"]
    environment = {**os.environ, "SLURM_CONF": str(running.slurm_conf)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    try:
        record = json.loads((folder / "reports" / "latest-screen" / "report.json").read_text())
    except OSError:
        sys.exit(f"screen {number} ended with status {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    (run,) = (folder / "runs").iterdir()
    files = ScreenFiles(run)
    for node in record["screen"]["nodes"]:
        figures = read_measurement(files, node["node"]).figures
        yield "\t".join(_list_cells(number, node, figures)) + "\n"


def _list_cells(
    number: int, node: dict[str, Any], figures: tuple[DeviceFigure, ...]
) -> Iterator[str]:
    yield from (str(number), node["node"], node["checks"]["peaks"]["result"])
    values = {figure.name: figure.value for figure in figures}
    yield from (f"{values[name]:.5g}" if name in values else "" for name in FIGURES)


def read_screens(store: Path) -> list[Screen]:
    """The figures of each whole screen."""
    screens: dict[str, Screen] = {}
    for row in _read_rows(store):
        figures = screens.setdefault(row["screen"], [])
        for name, (unit, higher, of_device) in FIGURES.items():
            if value := row[name]:
                device = f"{row['node']}/cpu:0" if of_device else ""
                made = DeviceFigure(row["node"], device, name, float(value), unit, higher)
                figures.append(made)
    return [screen for screen in screens.values() if len(screen) == NODES * len(FIGURES)]


def count_failed(store: Path) -> tuple[int, int]:
    """In how many screens a node was named, and of how many."""
    rows = list(_read_rows(store))
    failed = {row["screen"] for row in rows if row["result"] == "failed"}
    return len(failed), len({row["screen"] for row in rows})


def _read_rows(store: Path) -> Iterator[dict[str, str]]:
    for line in store.read_text().splitlines()[1:]:
        yield dict(zip(HEAD, line.split("\t"), strict=True))
