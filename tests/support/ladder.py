"""The whole suite as a user runs it, and what must hold for every phase."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import yaml

from pytest_clustersmoke import lab
from tests.support.harness import ROOT
from tests.support.labs import running_lab
from tests.support.leftovers import none_left
from tests.support.outcome import RunFiles
from tests.support.ssh_servers import isolated_hosts

PHASES = {
    "mlp_1gpu",
    "ddp_2gpu",
    "ddp_2node",
    "ddp_epochs",
    "zero1_2gpu",
    "zero1_4node",
    "zero2_4node",
    "zero3_offload_2node",
    "lora_sft_ddp",
    "lora_sft_2node",
    "fsdp_1node",
    "fsdp_lora_2node",
    "allreduce_1node",
    "allreduce_multinode",
}
# What `make test` runs on this machine, and what on a real Slurm, there with each launcher at least
# once; `make test-all` runs all phases on both.
ON_THIS_MACHINE = {
    "zero1_4node",
    "zero2_4node",
    "zero3_offload_2node",
    "lora_sft_ddp",
    "fsdp_1node",
    "fsdp_lora_2node",
    "allreduce_multinode",
}
ON_SLURM = PHASES - ON_THIS_MACHINE
# `make test` runs it on this machine with one rank on each node: each rank takes 5 s of CPU, and
# zero1_4node runs there with two on each node. `make test-all` runs both so on the lab.
ONE_RANK_A_NODE = ("zero2_4node",)
NODES = {
    "ddp_2node": 2,
    "zero1_4node": 4,
    "zero2_4node": 4,
    "zero3_offload_2node": 2,
    "lora_sft_2node": 2,
    "fsdp_lora_2node": 2,
    "allreduce_multinode": 4,
}
# The launchers under which the lab runs these phases; all others run under torchrun, as on `local`.
LAB_LAUNCHERS = {
    "mlp_1gpu": "none",
    "ddp_2gpu": "accelerate",
    "ddp_epochs": "deepspeed",
    "ddp_2node": "torchrun-c10d",
    "lora_sft_2node": "srun",
}
# Judged where the program gives `peer_loss`, with three ranks or more: two give no majority.
OTHER_RANKS = "test_other_ranks_compute_the_same_gradients"
WITH_MAJORITY = {"zero1_4node", "zero2_4node", "lora_sft_2node", "fsdp_lora_2node"}
# Judged wherever ranks have a step of their own: a single rank has no other to compare with, and
# batch norms that average over the ranks wait for each other in the forward pass.
FALLS_BEHIND = "test_no_rank_falls_behind"
WITHOUT_OWN_STEP = {"mlp_1gpu", "ddp_epochs"}
# Judged in fp16, which these phases ship with; bf16 needs no loss scale.
LOSS_SCALE, IN_FP16 = "test_loss_scale_is_found", {"zero2_4node"}
# The only criteria that may be skipped without a GPU and without references.
SKIPPABLE = {
    "test_throughput_meets_the_reference",
    "test_memory_meets_the_reference",
    "test_transports_inside_nodes_are_those_expected",
    "test_transports_between_nodes_are_those_expected",
    "test_fused_adam_is_compiled_on_cuda",
    "test_bandwidth_meets_the_reference",
    "test_latency_meets_the_reference",
    "test_slowest_pair_meets_the_reference",
    # gloo's times are those of cores that ranks share, not of a network.
    "test_all_ranks_are_equally_fast",
    "test_bandwidth_does_not_fall_as_sizes_grow",
    "test_no_pair_of_nodes_is_slow",
    "test_other_references_are_met",
    # The profiles `local` and `lab` have `peaks: never`.
    "test_devices_reach_their_peaks",
    "test_hardware_stays_healthy",
    # The first run in a report directory has no past.
    "test_metrics_are_as_in_the_past",
    "test_each_gpu_is_as_fast_as_it_was",
    # Only under `proof: twin`.
    "test_twin_run_gives_the_same_bits",
    FALLS_BEHIND,
    # A single rank has no other to compare with.
    "test_replicas_stay_equal",
    "test_ranks_train_on_their_own_data",
    OTHER_RANKS,
    # The tiny base is random by design.
    "test_base_weights_are_trained",
    LOSS_SCALE,
}


def run_ladder(folder: Path, cluster: str, *words: str, **variables: str) -> RunFiles:
    """Run the whole suite as a user runs it, in the repository; return its files in `folder`."""
    files = RunFiles(folder)
    command = [sys.executable, "-m", "pytest", "smoke_tests", "--cluster", cluster, *words]
    command += ["--cluster-report-dir", str(files.reports), "-p", "no:cacheprovider"]
    env = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(files.shared), **variables}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("FIT"), done.stdout
    return files


def check_phases(ladder: RunFiles, chosen: Set[str] = frozenset(PHASES)) -> None:
    """These phases ran on their nodes and passed; only criteria that may be skipped are skipped."""
    record = ladder.record()
    assert record["verdict"] == "FIT"
    phases = {phase["phase"]: phase for phase in record["phases"]}
    assert set(phases) == chosen
    for name, phase in phases.items():
        assert phase["outcome"] == "passed" and phase["findings"] == []
        assert len(phase["nodes"]) == NODES.get(name, 1)
        results = {key: criterion["result"] for key, criterion in phase["criteria"].items()}
        skipped = {key for key, result in results.items() if result == "skipped"}
        assert skipped <= SKIPPABLE
        assert OTHER_RANKS not in skipped or name not in WITH_MAJORITY
        assert FALLS_BEHIND not in skipped or name in WITHOUT_OWN_STEP, name
        assert LOSS_SCALE not in skipped or name not in IN_FP16, name
        assert "failed" not in results.values() and len(results) > 12


def run_on_lab(
    folder: Path, *words: str, accounting: bool = False, isolated: bool = False
) -> RunFiles:
    """Run the ladder on a lab of its own, under each launcher."""
    settings = lab.LabSettings(
        name="ladder", accounting=accounting, isolated=isolated, directory=folder / "lab"
    )
    for phase, launcher in LAB_LAUNCHERS.items():
        words += ("--cluster-set", f"{phase}.launcher={launcher}")
    with running_lab(settings) as running:
        return run_ladder(folder, "lab", *words, SLURM_CONF=str(running.slurm_conf))


def run_on_hosts(folder: Path, *words: str) -> RunFiles:
    """Run the ladder on four isolated hosts without a scheduler, with the sizes of `local`."""
    clusters = yaml.safe_load((ROOT / "cluster.yaml").read_text())["clusters"]
    with none_left() as (marker, _), isolated_hosts(folder, marker) as hosts:
        profile = {**clusters["local"], **hosts.servers.profile(), "history_check": "warn"}
        profile["hardware"] = {"gpu": "none", "device": "cpu", "gpus_per_node": 2}
        file = folder / "cluster.yaml"
        file.write_text(json.dumps({"clusters": {"hosts": profile}}))
        return run_ladder(folder, "hosts", f"--cluster-config={file}", *words)
