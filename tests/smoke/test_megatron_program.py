"""train_megatron.py on the CPU, with the stand-ins of tests/fakes/cuda_on_cpu, under torchrun."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from tests.rank.conftest import REPOSITORY, SMOKE_TESTS
from tests.smoke.agents import Outcome, break_program, check_fails, run_program
from tests.support.needs import need_packages
from tests.support.outcome import RunFiles

need_packages("torch>=2.6", "megatron-core")
suite: Any = importlib.import_module("test_megatron")

PROGRAM = SMOKE_TESTS / "train_megatron.py"
ARGS = {**suite.SIZES, **suite.SMALL}
CHECKPOINT = f"iter_{ARGS['steps']:07}"
STAND_INS = os.pathsep.join(map(str, (REPOSITORY / "tests" / "fakes" / "cuda_on_cpu", REPOSITORY)))
DATA = "test_ranks_train_on_their_own_data"  # skipped where there is a single replica
OWN_CRITERIA = [
    name for name in vars(suite.TrainedWithMegatron) if name.startswith("test_") and name != DATA
]
PROVEN = (
    "test_gradients_are_in_sync",
    "test_repeated_steps_give_the_same_gradients",
    "test_replicas_stay_equal",
    "test_precision_is_the_one_declared",
    "test_samples_are_those_that_the_model_saw",
    "test_loss_is_finite_on_every_rank",
    "test_loss_over_all_ranks_falls",
    "test_reloaded_checkpoint_equals_the_saved",
)


def run(directory: Path, path: Path = PROGRAM, *, ranks: int = 2, **changed: Any) -> Outcome:
    args = {**ARGS, **changed}
    return run_program(path, directory, args, per_node=ranks, PYTHONPATH=STAND_INS)


def judge(name: str, phase: PhaseView) -> None:
    getattr(suite.TrainedWithMegatron(), name)(phase)


def output(directory: Path) -> Path:
    """What a run in this directory wrote."""
    return directory / "small" / "output"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("split")


@pytest.fixture(scope="module")
def split(folder: Path) -> Outcome:
    """Two tensor parallel ranks."""
    outcome = run(folder, tp=2)
    assert outcome.statuses == [0], outcome.output
    return outcome


@pytest.mark.slow
def test_tensor_parallel_ranks_meet_every_criterion(split: Outcome) -> None:
    for name in (*OWN_CRITERIA, *PROVEN):
        judge(name, split.phase)


@pytest.mark.slow
def test_ranks_of_one_model_have_no_replica_to_compare_losses_with(split: Outcome) -> None:
    """They share each batch, so their losses are equal."""
    with pytest.raises(pytest.skip.Exception, match="split over all ranks"):
        judge(DATA, split.phase)


# -- The converted checkpoint ----------------------------------------------------------------------

SIZES = {
    "num_layers": ARGS["layers"],
    "hidden_size": ARGS["hidden_size"],
    "ffn_hidden_size": ARGS["ffn_hidden_size"],
    "num_attention_heads": ARGS["heads"],
    "num_query_groups": ARGS["query_groups"],
    "vocab_size": ARGS["vocab_size"],
    "max_position_embeddings": ARGS["seq_len"],
}
WITHOUT_MEGATRON = """
import runpy, sys
sys.modules["megatron"] = None
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("split")
def test_checkpoint_is_converted_and_loaded_where_megatron_cannot_be_imported(
    folder: Path, tmp_path: Path
) -> None:
    """What the guide prints of the file is in it."""
    import torch

    code = WITHOUT_MEGATRON.format(path=str(SMOKE_TESTS / "convert_megatron.py"))
    words = [f"--{name.replace('_', '-')}={size}" for name, size in SIZES.items()]
    words += [f"--checkpoint-dir={output(folder) / CHECKPOINT}", f"--output-dir={tmp_path}"]
    words += [f"--compare={output(folder) / 'logits.pt'}"]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["logits_error"] <= suite.LOGIT_TOLERANCE["bf16"]
    checkpoint = torch.load(tmp_path / "model.pt", map_location="cpu", weights_only=True)
    assert checkpoint["model_config"] == SIZES
    weights = checkpoint["model_state_dict"]
    expected = torch.bfloat16, (ARGS["hidden_size"], ARGS["hidden_size"])
    for layer in range(ARGS["layers"]):
        weight = weights[f"decoder.layers.{layer}.self_attention.linear_proj.weight"]
        assert (weight.dtype, tuple(weight.shape)) == expected
    assert "embedding.word_embeddings.weight" in weights


def without_a_norm(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {key: w for key, w in weights.items() if key != "decoder.final_layernorm.bias"}


def with_heads_in_another_order(weights: Mapping[str, Any]) -> dict[str, Any]:
    """As if all queries came first, then all keys, then all values."""
    groups = ARGS["query_groups"]
    changed = dict(weights)
    for key, weight in weights.items():
        if "linear_qkv" in key:
            parts = weight.view(groups, -1, ARGS["hidden_size"] // ARGS["heads"], *weight.shape[1:])
            changed[key] = parts.transpose(0, 1).reshape(weight.shape)
    return changed


@pytest.mark.slow
@pytest.mark.usefixtures("split")
def test_converter_that_orders_heads_otherwise_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors have the same shapes, but the logits are others."""
    import convert_megatron as converter

    name_layers = converter.name_layers
    path = converter.convert(output(folder) / CHECKPOINT, tmp_path / "right", SIZES)
    right = converter.compare(path, output(folder) / "logits.pt")["logits_error"]
    monkeypatch.setattr(
        converter, "name_layers", lambda weights: with_heads_in_another_order(name_layers(weights))
    )
    path = converter.convert(output(folder) / CHECKPOINT, tmp_path / "wrong", SIZES)
    wrong = converter.compare(path, output(folder) / "logits.pt")["logits_error"]
    assert right <= suite.LOGIT_TOLERANCE["bf16"] < 2 * suite.LOGIT_TOLERANCE["bf16"] < wrong


@pytest.mark.slow
@pytest.mark.usefixtures("split")
def test_converter_that_loses_a_parameter_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import convert_megatron as converter

    name_layers = converter.name_layers
    monkeypatch.setattr(
        converter, "name_layers", lambda weights: without_a_norm(name_layers(weights))
    )
    path = converter.convert(output(folder) / CHECKPOINT, tmp_path, SIZES)
    with pytest.raises(RuntimeError, match=re.escape("decoder.final_layernorm.bias")):
        converter.compare(path, output(folder) / "logits.pt")


# -- Sizes that cannot be split --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "changed", "words"),
    [
        (2, {"tp": 3}, "2 ranks by tp x pp x cp = 3; or 2 query groups by tp = 3; or"),
        (4, {"tp": 4}, "2 query groups by tp = 4"),
        (3, {"pp": 3}, "2 layers by pp = 3"),
        (2, {"tp": 2, "seq_len": 31}, "a sequence of 31 by tp x (2 x cp, if cp > 1) = 2"),
        (3, {}, "a global batch of 8 by micro batch x replicas = 6"),
        (2, {"cp": 2}, "cp = 2 needs the attention of Transformer Engine"),
    ],
)
def test_sizes_that_cannot_be_split_are_refused(
    ranks: int, changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is built; the message says all that is wrong."""
    import megatron_model

    monkeypatch.setattr(megatron_model, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape(words)):
        megatron_model.check_sizes(argparse.Namespace(**{**ARGS, **changed}), ranks)


@pytest.mark.parametrize(
    ("ranks", "changed"),
    [(2, {}), (4, {"tp": 2, "pp": 2}), (4, {"cp": 2}), (8, {"tp": 2, "pp": 2, "cp": 2})],
)
def test_sizes_that_can_be_split_are_accepted(
    ranks: int, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import megatron_model

    monkeypatch.setattr(megatron_model, "find_spec", lambda name: name)
    megatron_model.check_sizes(argparse.Namespace(**{**ARGS, **changed}), ranks)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_context_parallel_ranks_have_each_token_once(cp: int) -> None:
    """One piece from the front and one from the back each, so all have as much to attend to."""
    import torch

    from train_megatron import take_part

    tokens = torch.arange(32).repeat(2, 1)
    parts = [take_part(tokens, cp, rank) for rank in range(cp)]
    assert torch.equal(torch.cat(parts, dim=1).sort().values, tokens)
    assert len({int(part.sum()) for part in parts}) == 1


# -- Slow: other splits, and broken programs -------------------------------------------------------


PROFILE = REPOSITORY / "tests" / "smoke" / "megatron.yaml"


def run_phase(folder: Path, *words: str) -> tuple[RunFiles, subprocess.CompletedProcess[str]]:
    """The shipped phase through the launcher, as a user runs it, on the profile of the tests."""
    files = RunFiles(folder)
    command = [sys.executable, "-m", "pytest", "smoke_tests/test_megatron.py", "-p"]
    command += ["no:cacheprovider", "--cluster", "stand_ins", "--cluster-config", str(PROFILE)]
    command += ["--cluster-report-dir", str(files.reports), *words]
    env = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(files.shared)}
    env["CLUSTERSMOKE_STAND_INS"] = STAND_INS
    done = subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False
    )
    return files, done


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_phase_is_fit(tmp_path: Path, tp: int) -> None:
    """Two nodes with the model in each, and two that share one."""
    files, done = run_phase(tmp_path, "--cluster-set", f"megatron_2node.args.tp={tp}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("FIT"), done.stdout
    (phase,) = files.record()["phases"]
    results = {name: each["result"] for name, each in phase["criteria"].items()}
    assert "failed" not in results.values()
    assert {name for name in OWN_CRITERIA if results[name] != "passed"} == set()
    assert results[DATA] == ("skipped" if tp == 2 else "passed")


@pytest.mark.slow
def test_phase_of_two_stages_is_inconclusive(tmp_path: Path) -> None:
    """It trains and nothing fails, but the gradients are not proven."""
    files, done = run_phase(tmp_path, "--cluster-set", "megatron_2node.args.pp=2")
    assert done.returncode == 6, done.stdout + done.stderr
    (phase,) = files.record()["phases"]
    assert phase["outcome"] == "passed"
    assert "failed" not in {each["result"] for each in phase["criteria"].values()}


@pytest.mark.slow
def test_phase_that_cannot_be_split_is_unfit(tmp_path: Path) -> None:
    """The finding on the job says what cannot be divided."""
    files, done = run_phase(tmp_path, "--cluster-set", "megatron_2node.args.tp=3")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 ranks by tp x pp x cp = 3" in done.stdout
    (phase,) = files.record()["phases"]
    assert phase["outcome"] == "failed"


@pytest.mark.slow
def test_four_ranks_meet_every_criterion(tmp_path: Path) -> None:
    """Two replicas of a model that is split over two ranks each."""
    outcome = run(tmp_path, ranks=4, tp=2)
    assert outcome.statuses == [0], outcome.output
    for name in (*OWN_CRITERIA, *PROVEN, DATA):
        judge(name, outcome.phase)
    steps_per_s = outcome.phase.metric("steps_per_s").value
    samples_per_s = outcome.phase.metric("samples_per_s").value
    assert samples_per_s == pytest.approx(steps_per_s * ARGS["global_batch"])


@pytest.mark.slow
def test_two_stages_train_on_gloo(tmp_path: Path) -> None:
    """Nothing is proven of them, and the loss falls as it does in one stage."""
    outcome = run(tmp_path, pp=2)
    assert outcome.statuses == [0], outcome.output
    assert [rank.role.pipeline_stage for rank in outcome.phase.ranks] == [0, 1]
    for name in (
        "test_groups_have_the_sizes_asked_for",
        "test_optimizer_is_distributed",
        "test_each_class_of_tensors_has_its_precision",
        "test_checkpoint_has_two_files_a_rank",
        "test_loss_over_all_ranks_falls",
        "test_reloaded_checkpoint_equals_the_saved",
    ):
        judge(name, outcome.phase)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 5e-3)])
def test_tensor_parallel_losses_follow_those_of_one_rank(
    tmp_path: Path, precision: str, tolerance: float
) -> None:
    """At equal seed and global batch, step by step."""
    losses = []
    for ranks in (1, 2):
        outcome = run(tmp_path / str(ranks), ranks=ranks, tp=ranks, precision=precision)
        assert outcome.statuses == [0], outcome.output
        losses.append(outcome.phase.losses)
        if precision == "fp32":
            judge("test_converted_checkpoint_gives_the_same_logits", outcome.phase)
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


RESHAPE = """
from pathlib import Path
def load_and_save(args, rank, checkpoint):
    engine = program.build(args, rank, 5)
    engine.load(Path({other!r}))
    rank.save_checkpoint(lambda: engine.save(checkpoint))
    return rank.digest(engine.state())
program.train = load_and_save
"""


def read_tensors(directory: Path) -> dict[str, Any]:
    """All tensors of a distributed checkpoint, whole, by plain PyTorch."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(str(directory))
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader)
    return tensors


@pytest.mark.slow
@pytest.mark.usefixtures("split")
def test_checkpoint_of_two_tensor_parallel_ranks_loads_on_one(folder: Path, tmp_path: Path) -> None:
    """Saved again by one rank, every tensor is the same: weights, masters and both moments."""
    import torch

    first = output(folder) / CHECKPOINT
    change = RESHAPE.format(other=str(first))
    outcome = run(tmp_path, break_program(tmp_path, "train_megatron", change), ranks=1, tp=1)
    assert outcome.statuses == [0], outcome.output
    judge("test_reloaded_checkpoint_equals_the_saved", outcome.phase)
    before, after = read_tensors(first), read_tensors(output(tmp_path) / CHECKPOINT)
    assert before.keys() == after.keys() and len(before) > 4 * 10
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


@pytest.mark.slow
def test_groups_and_batches_of_context_and_pipeline_parallel_ranks(tmp_path: Path) -> None:
    """As far as no GPU is needed: which groups there are, and which tokens each rank gets."""
    change = """
import megatron_model
megatron_model.find_spec = lambda name: name
def describe(args, rank, checkpoint):
    state = program.parallel_state
    batches = list(program.draw(args, rank, 0, state.get_data_parallel_rank()))
    names = ("tensor_model", "pipeline_model", "context", "data")
    rank.fact(
        sizes=[getattr(state, f"get_{name}_parallel_world_size")() for name in names],
        positions=batches[0].positions[0].tolist(),
        tokens=[b.tokens.tolist() for b in batches],
        cp_rank=state.get_context_parallel_rank(),
    )
    raise SystemExit(0)
program.train = describe
"""
    broken = break_program(tmp_path, "train_megatron", change)
    outcome = run(tmp_path, broken, ranks=4, pp=2, cp=2)
    phase = outcome.phase
    assert list(phase.facts("sizes").values()) == [[1, 2, 2, 1]] * 4
    length, quarter = ARGS["seq_len"], ARGS["seq_len"] // 4
    parts = {
        0: [*range(quarter), *range(length - quarter, length)],
        1: [*range(quarter, length - quarter)],
    }
    places = phase.facts("cp_rank")
    assert sorted(places.values()) == [0, 0, 1, 1]
    for rank, place in places.items():
        assert phase.facts("positions")[rank] == parts[place]
    tokens = phase.facts("tokens")
    for rank, place in places.items():
        for other, its_place in places.items():
            assert (tokens[rank] == tokens[other]) is (place == its_place)


WITH_SETTING = """
import megatron_model
def change(name, **changed):
    kind = getattr(megatron_model, name)
    setattr(megatron_model, name, lambda *more, **given: kind(*more, **{{**given, **changed}}))
{changes}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "change", "criterion", "words"),
    [
        pytest.param(
            {"tp": 2},
            "draw = program.draw\n"
            "def own(args, rank, index, replica):\n"
            "    args = program.argparse.Namespace(**{**vars(args), 'seed': rank.rank})\n"
            "    return draw(args, rank, index, replica)\n"
            "program.draw = own",
            DATA,
            "ranks 0-1 hold the parts of one model, but saw different batches at step 1",
            id="tensor_parallel_ranks_draw_their_own_batches",
        ),
        pytest.param(
            {"tp": 1},
            "draw = program.draw\n"
            "program.draw = lambda args, rank, index, replica: draw(args, rank, index, 0)",
            DATA,
            "the data is not sharded",
            id="replicas_draw_the_same_batches",
        ),
        pytest.param(
            {"tp": 2},
            "import megatron_model\n"
            "init = megatron_model.Norm.__init__\n"
            "def otherwise(self, *given, **named):\n"
            "    init(self, *given, **named)\n"
            "    self.bias.data.fill_(0.1 * program.dist.get_rank())\n"
            "megatron_model.Norm.__init__ = otherwise",
            "test_replicas_stay_equal",
            "ranks 0-1 differ in the parameters from step 1 on (not known to be equal before); "
            "the first parameter that differs is decoder.layers.0.input_layernorm.bias",
            id="norms_initialised_otherwise",
        ),
        pytest.param(
            {"tp": 1},
            WITH_SETTING.format(
                changes="change('DistributedDataParallelConfig', use_distributed_optimizer=False)\n"
                "change('OptimizerConfig', use_distributed_optimizer=False)"
            ),
            "test_optimizer_is_distributed",
            "in Float16OptimizerWithFloat16Params; expected 1/2 each, in DistributedOptimizer",
            id="optimizer_not_distributed",
        ),
        pytest.param(
            {"tp": 2},
            WITH_SETTING.format(changes="change('TransformerConfig', sequence_parallel=False)"),
            "test_sequence_is_split_with_the_tensors",
            "shares of the sequence by rank: {0: 1.0, 1: 1.0}; expected 1/2 each",
            id="no_sequence_parallelism",
        ),
        pytest.param(
            {"tp": 1},
            "from megatron.core.distributed import param_and_grad_buffer as buffers\n"
            "buffers.dist_reduce_scatter_func = lambda *given, **named: None",
            "test_gradients_are_in_sync",
            "gradients are not in sync on all ranks at step 1",
            id="gradients_of_replicas_not_reduced",
        ),
        pytest.param(
            {"tp": 2},
            "import sys\n"
            "module = sys.modules['megatron.core.distributed.finalize_model_grads']\n"
            "module._allreduce_non_tensor_model_parallel_grads = lambda *given: None",
            "test_gradients_are_in_sync",
            "gradients are not in sync on all ranks at step 1",
            id="gradients_of_norms_not_added_up",
        ),
        pytest.param(
            {"tp": 1},
            WITH_SETTING.format(
                changes="change('DistributedDataParallelConfig', grad_reduce_in_fp32=False)"
            ),
            "test_each_class_of_tensors_has_its_precision",
            "gradient_dtypes",
            id="gradients_reduced_in_bf16",
        ),
        pytest.param(
            {"tp": 1},
            "import pathlib\n"
            "other = pathlib.Path(__file__).parent / 'converter.py'\n"
            "other.write_text('raise SystemExit(\"no such layer\")')\n"
            "program.convert_megatron.__file__ = str(other)",
            "test_converted_checkpoint_gives_the_same_logits",
            "the checkpoint could not be converted: no such layer",
            id="conversion_fails",
        ),
    ],
)
def test_broken_program_fails_its_criterion(
    tmp_path: Path, args: dict[str, int], change: str, criterion: str, words: str
) -> None:
    outcome = run(tmp_path, break_program(tmp_path, "train_megatron", change), **args)
    assert outcome.statuses == [0], outcome.output
    check_fails(getattr(suite.TrainedWithMegatron(), criterion), outcome.phase, words)


@pytest.mark.slow
def test_program_refuses_ranks_that_it_cannot_split(tmp_path: Path) -> None:
    """Every rank says so, before the model."""
    outcome = run(tmp_path, tp=3)
    assert outcome.statuses == [1]
    messages = [rank.error.message for rank in outcome.phase.ranks if rank.error]
    assert messages and all("2 ranks by tp x pp x cp = 3" in message for message in messages)
