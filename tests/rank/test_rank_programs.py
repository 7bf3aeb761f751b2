"""Real runs of the rank programs of smoke_tests/, in small sizes."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from pytest_clustersmoke.config.metrics import METRICS
from tests.rank.conftest import (
    RUN_WITHIN_S,
    SMOKE_TESTS,
    Run,
    rank_environment,
    started,
    torchrun_line,
)
from tests.support.waiting import wait_for_end

SMALL = ("--hidden-size", "64", "--steps", "30", "--learning-rate", "3e-3")
MLP = (*SMALL, "--batch-size", "16")
ZERO = ("--layers", "2", "--micro-batch", "32", "--stage", "1", "--bucket-size", "10000")


@pytest.mark.parametrize(
    ("name", "sizes", "parameters"),
    [
        ("train_mlp", (1024,), 25_175_040),
        ("train_mlp", (2048,), 100_681_728),
        ("zero_engine", (4096, 6), 805_429_248),
        ("zero_engine", (4096, 8), 1_073_905_664),
    ],
)
def test_full_sizes_have_the_documented_parameters(
    name: str, sizes: tuple[int, ...], parameters: int
) -> None:
    """At full size each model has the documented number of parameters; none is allocated."""
    import torch

    with torch.device("meta"):
        model = importlib.import_module(name).build_model(*sizes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def check_healthy_run(run: Run, ranks: int, twin: bool = False) -> None:
    """Check the events that every rank of a healthy run writes."""
    assert run.status == 0, run.output
    for rank in range(ranks):
        events = run.events(rank)
        assert events.records[-1]["event"] == "done" and not events.unreadable_lines
        start, group = run.only("start", rank), run.only("group", rank)
        assert (start["rank"], start["world_size"], start["device"]) == (rank, ranks, "cpu")
        assert (group["backend"], group["world_size"]) == ("gloo", ranks)
        assert run.only("barrier", rank)["seconds"] >= 0
        steps = [record["step"] for record in events.named("step")]
        assert (steps[0], steps[-1]) == (1, 30) and steps == sorted(set(steps))
        metrics = run.only("metrics", rank)["values"]
        assert set(metrics) <= set(METRICS) and all(value > 0 for value in metrics.values())
        assert len(run.only("step_times", rank)["seconds"]) == 30
        losses = run.only("losses", rank)
        assert losses["local_finite"] and losses["mean"] == run.only("losses")["mean"]
        assert fmean(losses["mean"][-5:]) < 0.5 * fmean(losses["mean"][:5])
        proofs = list(events.named("proof"))
        assert [proof["step"] for proof in proofs] == run.only("proof_plan")["steps"]
        assert (proofs[0]["step"], proofs[-1]["step"], len(proofs)) == (1, 30, 5)
        probe = proofs[0]["gradients"]
        assert all(proof["gradients"]["synced"] for proof in proofs)
        assert probe["compared"] == probe["parameters"] > 0
        assert [proof["differing_count"] for proof in proofs] == [0] * 5
        assert all(proof["replayed"] == probe["parameters"] for proof in proofs)
        assert all(proof["samples"] == proof["samples_per_rank"] for proof in proofs)
        if ranks > 1:
            replicas = run.only("replicas", rank)
            assert replicas["equal"] and replicas["compared"] == (30 if twin else 4)
        own = run.only("own_steps", rank)
        assert set(own["parts"]) == {"forward", "backward", "optimizer"} and own["parameters"] > 0
        assert len(own["seconds"]) == len(own["cpu_seconds"]) == 10 and min(own["seconds"]) > 0
        watch = run.only("gradient_watch", rank)
        assert (watch["parameters"], watch["not_finite_at"]) == (probe["parameters"], None)
        assert run.only("reload", rank)["equal"]
        assert (run.events(rank).last("checkpoint") is not None) == (rank == 0)
        assert not run.phase.rank_stack(rank).exists()


@pytest.mark.slow
def test_train_mlp_trains_and_reloads(torchrun: Callable[..., Run]) -> None:
    """One rank trains, its loss falls, its reloaded checkpoint equals the saved one."""
    run = torchrun("train_mlp.py", *MLP, ranks=1)
    check_healthy_run(run, ranks=1)
    assert [file["name"] for file in run.only("checkpoint")["files"]] == ["mlp.pt"]


@pytest.mark.slow
def test_train_mlp_trains_in_sync_on_two_ranks(torchrun: Callable[..., Run]) -> None:
    """Two ranks train in sync under DDP, rank 0 saves a checkpoint, both reload it."""
    run = torchrun("train_mlp.py", *MLP, ranks=2)
    check_healthy_run(run, ranks=2)
    values = run.only("metrics")["values"]
    assert values["samples_per_s"] == pytest.approx(values["steps_per_s"] * 16 * 2)
    assert all(proof["gradients"]["sensitive"] for proof in run.events().named("proof"))
    assert run.only("fact", 1)["values"]["engine"] == "DistributedDataParallel"
    assert [file["name"] for file in run.only("checkpoint")["files"]] == ["ddp.pt"]


@pytest.mark.parametrize(
    ("script", "args", "ranks"),
    [
        pytest.param("train_mlp.py", MLP, 3, marks=pytest.mark.slow),
        pytest.param("train_zero.py", (*SMALL, *ZERO), 2, marks=pytest.mark.slow),
    ],
)
def test_twin_gives_the_same_bits(
    torchrun: Callable[..., Run], script: str, args: tuple[str, ...], ranks: int
) -> None:
    """With three ranks the order of an addition shows. All else is as without a twin run."""
    run = torchrun(script, *args, ranks=ranks, proof="twin")
    check_healthy_run(run, ranks, twin=True)
    for rank in range(ranks):
        twin = run.only("twin", rank)
        assert (twin["differing"], twin["rate_differs_at"]) == ({}, None)
        compared = twin["compared"]
        assert (compared["loss"], compared["gradient"], compared["batch"]) == (29, 29, 29)
        assert (compared["parameter"], compared["moment"]) == (29, 29)
        assert compared["partition"] == (29 if "zero" in script else 0)


@pytest.mark.slow
def test_train_zero_trains_and_saves_a_shard_for_each_rank(torchrun: Callable[..., Run]) -> None:
    """Two ranks train in bf16 under ZeRO-1; the checkpoint has one optimizer file for each."""
    run = torchrun("train_zero.py", *SMALL, *ZERO, ranks=2)
    check_healthy_run(run, ranks=2)
    assert "deepspeed_shm_comm" not in run.output  # the op was not compiled
    names = {file["name"] for file in run.only("checkpoint")["files"]}
    shards = {f"final/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)}
    assert shards | {"final/mp_rank_00_model_states.pt", "zero_to_fp32.py"} <= names
    config = json.loads((run.phase.output / "ds_config.json").read_text())
    assert config["train_batch_size"] == 64
    facts = next(run.events(1).named("fact"))["values"]
    expected = {"zero_stage": 1, "precision": "bf16", "gradient_clipping": 1.0}
    expected |= {"parameter_dtypes": ["torch.bfloat16"], "reduce_bucket_size": 10000}
    expected |= {"optimizer": "AdamW", "fused_adam": False, "train_batch_size": 64}
    assert expected.items() <= facts.items()


def test_program_runs_by_hand(tmp_path: Path) -> None:
    """With plain python and no launcher it prints the main results and leaves no file behind."""
    done = subprocess.run(
        [sys.executable, str(SMOKE_TESTS / "train_mlp.py"), *MLP],
        env=rank_environment(None) | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for words in ("rank 0 of 1", "step 30/30", "samples_per_s", "in sync", "reload: 24 tensors"):
        assert words in done.stdout
    assert not list(tmp_path.glob("clustersmoke-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "steps", "own"),
    [
        ("train_mlp", 10, ("--hidden-size", "16", "--steps", "10")),
        ("train_zero", 10, ("--steps", "10")),
        ("train_lora_sft", 5, ("--max-steps", "5")),
    ],
)
def test_cost_of_a_proof_is_measured_in_the_programs_own_loop(
    tmp_path: Path, program: str, steps: int, own: tuple[str, ...]
) -> None:
    """benchmarks/proof_cost.py runs the loop in blocks; arguments that it does not know are the
    program's. It ends after the last block, and leaves no file behind."""
    line = torchrun_line(Path("benchmarks.proof_cost"), 1, ["--program", program, "--blocks=4"])
    at = line.index("benchmarks.proof_cost")
    environment = rank_environment(None) | {"TMPDIR": str(tmp_path)}
    with started([*line[:at], "-m", *line[at:], *own], environment, tmp_path) as process:
        output = wait_for_end(process, RUN_WITHIN_S)
    assert process.returncode == 0, output
    lines = [line for line in output.splitlines() if line.startswith("rank 0: ")]
    assert len(lines) == 2 and lines[0].startswith("rank 0: 2 pairs of blocks: "), output
    shares = re.findall(rf"in a run of {steps} steps: ([\d.]+)% \(([\d.]+)% to", lines[1])
    assert len(shares) == 1 and all(0 < float(share) < 100 for share in shares[0]), lines[1]
    assert not list(tmp_path.glob("clustersmoke-*"))


def test_cost_of_a_proof_leaves_out_the_steps_that_are_proven() -> None:
    """A block's seconds of a step are those of the steps after warm-up without a proof, which
    `step_times` numbers from 0."""
    from benchmarks.corruption import Recorder  # they import torch, as ranks do
    from benchmarks.proof_cost import Block

    events = Recorder()
    seconds = [50.0, 1.0, 2.0, 50.0, 3.0, 50.0]
    events.event("step_times", seconds=seconds, proven=[3, 5], warmup=1, proof_seconds=94.0)
    events.event("stage", name="train", state="end", seconds=156.0)
    assert Block.read(events) == Block(step=2.0, train=156.0, proofs=94.0, steps=6)


@pytest.mark.slow
def test_single_rank_under_a_trainer_gets_a_group(torchrun: Callable[..., Run]) -> None:
    """A Trainer opens none for one rank; what rank 0 shares arrives."""
    run = torchrun("lone_trainer.py", ranks=1)
    assert run.status == 0, run.output
    assert run.only("group")["backend"] == "gloo"
    assert run.only("fact")["values"] == {"shared": [1]}


@pytest.mark.slow
def test_rank_without_a_loss_lets_no_other_wait(torchrun: Callable[..., Run]) -> None:
    """Losses are added up over all ranks, so all leave them out if one has none."""
    run = torchrun("lossless.py", ranks=2)
    assert run.status == 0, run.output
    for rank in range(2):
        assert run.events(rank).last("losses") is None
        assert run.only("replicas", rank)["compared"] == 2  # what follows is compared as ever
