"""train_lora_sft.py under real torchrun: its measurements in healthy and in faulty runs."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.phase_criteria import view_phase
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.smoke.agents import break_program, check_fails
from tests.support.needs import need_packages
from tests.support.ssh_servers import hold_port
from tests.support.waiting import wait_for_end

need_packages("peft", "transformers")
criteria: Any = importlib.import_module("test_lora_sft")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "smoke_tests" / "train_lora_sft.py"
TINY = ["--model", "tiny", "--dataset", "shipped", "--subset-size", "256"]
QUICK = ["--seq-len", "48", "--max-steps", "10", "--micro-batch", "1", "--learning-rate", "5e-3"]
LIMIT_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """A finished run: the agents' exit statuses and output, and the ranks' events."""

    statuses: list[int]
    output: str
    phase: PhaseDir
    ranks: list[list[dict[str, Any]]]

    def facts(self, rank: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for record in self.ranks[rank]:
            if record["event"] == "fact":
                values |= record["values"]
        return values

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name, in the order of ranks."""
        return [record for rank in self.ranks for record in rank if record["event"] == name]


def run(
    directory: Path,
    arguments: Sequence[str],
    *,
    nodes: int = 1,
    ranks_per_node: int = 2,
    program: Path = PROGRAM,
    environment: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> Outcome:
    """Run the program with one torchrun per node, as the launcher does; no process is left."""
    phase = PhaseDir(directory / "phase")
    home = directory / "home"
    for folder in (phase.root, home):
        folder.mkdir(parents=True)
    write_json(phase.spec, spec or {})
    hold = hold_port()
    port = int(hold.getsockname()[1])
    agents, logs = [], []
    for node in range(nodes):
        logs.append(directory / f"agent.{node}.log")
        with logs[-1].open("wb") as log:
            agents.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "torch.distributed.run"),
                        *(f"--nnodes={nodes}", f"--nproc_per_node={ranks_per_node}"),
                        *(f"--node_rank={node}", "--master_addr=127.0.0.1"),
                        *(f"--master_port={port}", str(program), *arguments),
                    ],
                    env={
                        "PATH": os.environ["PATH"],
                        "HOME": str(home),
                        "PYTHONPATH": str(ROOT),
                        "OMP_NUM_THREADS": "1",
                        "CLUSTERSMOKE_PHASE_DIR": str(phase.root),
                        "CLUSTERSMOKE_NODE_RANK": str(node),
                        "CLUSTERSMOKE_DEVICE": "cpu",
                        "CLUSTERSMOKE_PG_TIMEOUT_S": "60",
                        **(environment or {}),
                    },
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    start_new_session=True,
                )
            )
    try:
        for agent in agents:
            wait_for_end(agent, LIMIT_S)
    finally:
        hold.close()
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
    events = [phase.rank_events(rank) for rank in range(nodes * ranks_per_node)]
    return Outcome(
        statuses=[agent.returncode for agent in agents],
        output="\n".join(log.read_text(errors="replace") for log in logs),
        phase=phase,
        ranks=[read_events(path).records for path in events],
    )


def check_data(outcome: Outcome, examples: int) -> None:
    """Only rank 0 tokenised; all ranks have the same data, and trained on different rows."""
    facts = [outcome.facts(rank) for rank in range(len(outcome.ranks))]
    assert {fact["tokenised_by"] for fact in facts} == {0}
    assert {fact["examples"] for fact in facts} == {examples}
    assert len({fact["dataset_digest"] for fact in facts}) == 1
    assert len({fact["tokenizer_digest"] for fact in facts}) == 1
    rows = [row for fact in facts for row in fact["rows_trained_on"]]
    assert len(rows) == len(set(rows)) == 10 * len(facts)


def check_training(outcome: Outcome) -> None:
    """The fixed loss fell; only adapters changed, and equally on all ranks, which were in sync."""
    facts = [outcome.facts(rank) for rank in range(len(outcome.ranks))]
    for fact in facts:
        assert fact["fixed_loss_after"] < fact["fixed_loss_before"] - 0.1
        assert fact["base_unchanged"] and fact["adapters_changed"]
        assert fact["wrapper"] == "DistributedDataParallel"
    for same in ("fixed_loss_before", "fixed_loss_after", "base_digest", "adapter_digest"):
        assert len({fact[same] for fact in facts}) == 1, same
    proofs = outcome.events("proof")
    assert len(proofs) >= 3 * len(facts)
    assert all(proof["differing_count"] == 0 and proof["samples"] == 1 for proof in proofs)
    gradients = [proof["gradients"] for proof in proofs]
    assert all(event["synced"] for event in gradients)
    assert any(event["sensitive"] for event in gradients)  # two rows may give equal gradients
    assert all(event["compared"] == 28 for event in gradients)
    assert [event["equal"] for event in outcome.events("replicas")] == [True] * len(facts)
    watched = [record["parameters"] for record in outcome.events("gradient_watch")]
    assert watched == [28] * len(facts)  # every adapter, on every rank
    assert all(len(event["mean"]) == 10 for event in outcome.events("losses"))
    assert len(outcome.events("losses")) == len(outcome.events("done")) == len(facts)


@pytest.mark.slow
def test_twin_trains_adapters_to_the_same_bits(tmp_path: Path) -> None:
    """Three ranks, since the order of an addition shows with three; each pass makes an optimizer, a
    scheduler and a DDP, and the facts are those of one pass."""
    outcome = run(tmp_path, [*TINY, *QUICK], ranks_per_node=3, spec={"proof": "twin"})
    assert outcome.statuses == [0], outcome.output
    twins = outcome.events("twin")
    assert [(twin["differing"], twin["rate_differs_at"]) for twin in twins] == [({}, None)] * 3
    assert [twin["compared"]["gradient"] for twin in twins] == [10] * 3
    check_data(outcome, examples=256)
    check_training(outcome)


@pytest.mark.slow
def test_two_ranks_train_adapters_without_a_hub(tmp_path: Path) -> None:
    """Two ranks tokenise once, train in sync, save, reload and write their results."""
    import torch

    outcome = run(tmp_path, [*TINY, *QUICK])
    assert outcome.statuses == [0], outcome.output
    check_data(outcome, examples=256)
    check_training(outcome)
    assert [event["equal"] for event in outcome.events("reload")] == [True, True]
    facts = outcome.facts(0)
    assert facts["trainable_parameters"] == 16_384
    assert facts["trainable_share"] == pytest.approx(16_384 / facts["parameters"])
    metrics = [event["values"] for event in outcome.events("metrics")]
    assert all(values["tokens_per_s_per_rank"] > 0 for values in metrics)

    [checkpoint] = outcome.events("checkpoint")
    saved = {file["name"]: file["bytes"] for file in checkpoint["files"]}
    assert saved["adapter/adapter_model.safetensors"] > 4 * 16_384
    written_by = [outcome.facts(rank).get("metrics_written_by") for rank in range(2)]
    assert written_by == [0, None]
    written = json.loads((outcome.phase.output / "metrics.json").read_text())
    wall_s, tokens_per_s = written.pop("wall_time_s"), written.pop("approx_tokens_per_s_per_rank")
    assert tokens_per_s == pytest.approx(10 * 1 * 48 / wall_s)
    assert written == {
        "approx_tokens_per_rank": 480,
        "world_size": 2,
        "gpu0": None,
        "use_lora": True,
        "model": "tiny",
        "dataset": "shipped",
        "torch": torch.__version__,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    arguments = json.loads((outcome.phase.output / "run_args.json").read_text())
    assert (arguments["max_steps"], arguments["seq_len"]) == (10, 48)
    assert tokens_per_s == pytest.approx(metrics[0]["tokens_per_s_per_rank"], rel=0.1)

    # transformers 4 writes the version of its cache when it is imported.
    kept = {file.name for file in (tmp_path / "home").rglob("*") if file.is_file()}
    assert kept <= {"version.txt"}
    entries = {entry.name for entry in tmp_path.iterdir()}
    assert entries == {"phase", "home", "agent.0.log"}


def byte_pairs(texts: list[str]) -> Any:
    """A small byte-pair tokenizer like Mistral's, without a padding token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    bpe = Tokenizer(models.BPE(unk_token=special[0]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer: Any = trainers.BpeTrainer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def save_model(directory: Path, steps: int = 0) -> None:
    """Save a small model, trained for so many steps, and its tokenizer."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    import sft_data

    texts = [json.loads(line)["output"] for line in sft_data.SHIPPED.open()]
    tokenizer = byte_pairs(texts)
    tokenizer.save_pretrained(str(directory))
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(1)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        batch = sft_data.tokenise(texts[8 * step : 8 * step + 8], tokenizer, 48)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    any_model: Any = model
    any_model.save_pretrained(str(directory))


def hub_cache(directory: Path, name: str) -> None:
    """Write a small model and its tokenizer into the hub's cache, as if downloaded by name."""
    snapshot = directory / f"models--{name.replace('/', '--')}" / "snapshots" / "0123abcd"
    save_model(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)


@pytest.mark.slow
def test_two_nodes_train_a_model_by_name_in_bf16(tmp_path: Path) -> None:
    """A model by name and a data set by path train on 2 nodes, as on a cluster."""
    import sft_data

    hub_cache(tmp_path / "hub", "someone/small")
    data = tmp_path / "data"
    data.mkdir()
    (data / "instructions.jsonl").write_bytes(sft_data.SHIPPED.read_bytes())
    outcome = run(
        tmp_path,
        [
            *("--model", "someone/small", "--dataset", str(data)),
            *("--subset-size", "100", "--precision", "bf16"),
            *QUICK,
        ],
        nodes=2,
        ranks_per_node=1,
        environment={"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
    )
    assert outcome.statuses == [0, 0], outcome.output
    check_data(outcome, examples=100)
    check_training(outcome)
    assert [event["equal"] for event in outcome.events("reload")] == [True, True]
    proofs = outcome.events("proof")
    assert {proof["gradients"]["precision"] for proof in proofs} == {"bf16"}
    assert all(list(proof["dtypes"]) == ["bfloat16"] for proof in proofs)
    assert all(proof["adapter_dtypes"] == ["bfloat16"] for proof in proofs)


@pytest.mark.slow
def test_missing_gradient_reduction_is_detected(tmp_path: Path) -> None:
    """Without DDP's reduction the proofs fail, adapters differ, and rank 1's reload differs.

    The loss still falls, only adapters change, and rank 0's checkpoint is whole: these still pass.
    """
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import accelerate, train_lora_sft\n"
        "accelerate.Accelerator.prepare_model = lambda self, model, *_, **__: model\n"
        "train_lora_sft.main()\n"
    )
    outcome = run(tmp_path, [*TINY, *QUICK], program=broken)
    assert outcome.statuses == [0], outcome.output
    assert not any(proof["gradients"]["synced"] for proof in outcome.events("proof"))
    assert [event["differ_at"] for event in outcome.events("replicas")] == [1, 1]
    assert [event["equal"] for event in outcome.events("reload")] == [True, False]
    facts = [outcome.facts(rank) for rank in range(2)]
    assert facts[0]["adapter_digest"] != facts[1]["adapter_digest"]
    check_data(outcome, examples=256)
    for fact in facts:
        assert fact["base_unchanged"] and fact["adapters_changed"]
        assert fact["fixed_loss_after"] < fact["fixed_loss_before"]


@pytest.mark.slow
def test_frozen_projection_is_detected(tmp_path: Path) -> None:
    """The criterion reads which adapters are trained. The slow rows of tests/faults/table stage it
    in a whole phase, as well as a trainable base weight and another precision."""
    broken = break_program(
        tmp_path,
        "train_lora_sft",
        "whole = program.add_adapters\n"
        "def add_adapters(base):\n"
        "    model = whole(base)\n"
        "    for name, parameter in model.named_parameters():\n"
        "        parameter.requires_grad_(parameter.requires_grad and '.o_proj.' not in name)\n"
        "    return model\n"
        "program.add_adapters = add_adapters",
    )
    outcome = run(tmp_path, [*TINY, *QUICK], program=broken)
    assert outcome.statuses == [0], outcome.output
    assert [event["equal"] for event in outcome.events("reload")] == [True, True]
    spec = {"phase": "lora", "nodes": 1, "ranks_per_node": 2, "args": {"model": "tiny"}}
    write_json(outcome.phase.spec, spec)
    phase = view_phase(collect_phase(outcome.phase))
    words = "trainable adapter tensors by projection: {'o_proj': 0}; expected 4 of each"
    check_fails(criteria.FineTuned().test_only_adapters_are_trained, phase, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "words"),
    [(0, "the base weights are not trained: the first loss is "), (20, "")],
)
def test_base_of_random_weights_is_detected(tmp_path: Path, steps: int, words: str) -> None:
    """A base of this path whose weights were not loaded guesses; one that was trained does not."""
    base = tmp_path / "base"
    save_model(base, steps)
    arguments = ["--model", str(base), *TINY[2:], *QUICK, "--max-steps", "2"]
    outcome = run(tmp_path, arguments, ranks_per_node=1)
    assert outcome.statuses == [0], outcome.output
    spec = {"phase": "lora", "nodes": 1, "ranks_per_node": 1, "args": {"model": str(base)}}
    write_json(outcome.phase.spec, spec)
    view = view_phase(collect_phase(outcome.phase))
    with pytest.raises(AssertionError, match=words) if words else contextlib.nullcontext():
        criteria.FineTuned().test_base_weights_are_trained(view)


@pytest.mark.slow
def test_failing_data_preparation_ends_the_run(tmp_path: Path) -> None:
    """Rank 0 records the error, and torchrun ends the ranks that wait for its data."""
    outcome = run(tmp_path, [*TINY, *QUICK, "--subset-size", "9999"])
    assert outcome.statuses == [1]
    error = next(record for record in outcome.ranks[0] if record["event"] == "error")
    assert "out of range for dataset of size 2400" in error["message"]
    assert not outcome.events("done")


def test_mistral_7b_has_the_documented_number_of_trainable_parameters() -> None:
    """LoRA of rank 8 on seven projections trains 20,971,520 parameters; none is allocated."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    import sft_model

    with torch.device("meta"):
        model = sft_model.add_adapters(MistralForCausalLM(MistralConfig()))
    trainable, parameters = model.get_nb_trainable_parameters()
    assert (trainable, parameters - trainable) == (20_971_520, 7_241_732_096)
    assert all(parameter.is_meta for parameter in model.parameters())
