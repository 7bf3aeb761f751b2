"""A shard of a distributed checkpoint that cannot be read is named, with what is wrong with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from pytest_clustersmoke.rank.checkpoint import (
    BadShard,
    compare_states,
    digest,
    load_shards,
    name_statistics,
)
from tests.support.waiting import PATIENCE_S

SHARD = "__0_0.distcp"
pytestmark = pytest.mark.usefixtures("single_rank")  # torch 2.2 loads nothing without one


def write(directory: Path, rows: int) -> None:
    save(state(rows), storage_writer=FileSystemWriter(directory))


def state(rows: int) -> dict[str, Any]:
    return {"weight": torch.zeros(rows, 10), "step": 5}


def read(directory: Path, **others: torch.Tensor) -> dict[str, Any]:
    read_into = state(200) | others
    load(read_into, storage_reader=FileSystemReader(directory))
    return read_into


def replace_by_save_of(rows: int) -> Callable[[Path], None]:
    def replace(shard: Path) -> None:
        other = shard.parent.parent / "other"
        write(other, rows)
        shutil.copy(other / SHARD, shard)

    return replace


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        pytest.param(Path.unlink, "is missing; expected", id="missing"),
        pytest.param(lambda shard: os.truncate(shard, 0), "is truncated: it has 0", id="empty"),
        pytest.param(
            lambda shard: os.truncate(shard, shard.stat().st_size // 2), "is truncated", id="half"
        ),
        pytest.param(
            lambda shard: os.truncate(shard, shard.stat().st_size - 1), "is truncated", id="byte"
        ),
        pytest.param(replace_by_save_of(100), "is a whole file of another save", id="smaller"),
        pytest.param(replace_by_save_of(400), "is a whole file of another save", id="larger"),
    ],
)
def test_bad_shard_is_named(tmp_path: Path, damage: Callable[[Path], None], wrong: str) -> None:
    """torch says `EOFError`, or that a zip archive has no central directory."""
    write(tmp_path / "saved", 200)
    damage(tmp_path / "saved" / SHARD)
    with pytest.raises(BadShard, match=rf"^shard saved/{SHARD}, one of 1, {wrong}") as raised:
        load_shards(tmp_path, lambda: read(tmp_path / "saved"))
    assert isinstance(raised.value.__cause__, CheckpointException)


def test_error_with_whole_shards_is_raised_as_it_is(tmp_path: Path) -> None:
    """A value that was never saved is no fault of a shard."""
    write(tmp_path / "saved", 200)
    with pytest.raises(CheckpointException, match="bias"):
        load_shards(tmp_path, lambda: read(tmp_path / "saved", bias=torch.zeros(10)))


def test_other_sizes_than_those_saved_are_no_fault_of_a_shard(tmp_path: Path) -> None:
    pytest.importorskip("torch", "2.3")  # the first that compares the sizes
    write(tmp_path / "saved", 200)
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load_shards(tmp_path, lambda: read(tmp_path / "saved", weight=torch.zeros(300, 10)))


def test_damaged_metadata_leave_the_error_as_it_is(tmp_path: Path) -> None:
    """What the shards should be is not known then."""
    write(tmp_path / "saved", 200)
    (tmp_path / "saved" / ".metadata").write_bytes(b"")
    with pytest.raises(CheckpointException):
        load_shards(tmp_path, lambda: read(tmp_path / "saved"))


def test_whole_shards_are_loaded(tmp_path: Path) -> None:
    write(tmp_path / "saved", 200)
    assert load_shards(tmp_path, lambda: read(tmp_path / "saved"))["step"] == 5


class Normed(torch.nn.Sequential):
    """A frozen layer, a trained one, and a batch norm."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self[0].requires_grad_(False)


def compare(before: Any, after: Any, model: Any = None, optimizer: Any = None) -> dict[str, Any]:
    statistics = name_statistics(model) if model is not None else set()
    return compare_states(before, digest(before), after, statistics, model, optimizer)


def test_tensors_that_were_saved_are_not_loaded_ones() -> None:
    """They lie in the same memory; a new model may share frozen parameters and buffers with the old
    one, and a digest has no memory."""
    model, new = Normed(), Normed()
    state = {"model": model.state_dict(), "moment": torch.ones(3)}
    assert compare(state, state)["shared"] == compare(state, state, Normed())["shared"]
    shared = compare(state, state, model)["shared"]
    assert shared == ["model.1.weight", "model.1.bias", "model.2.weight", "model.2.bias", "moment"]
    new[0], new[2] = model[0], torch.nn.BatchNorm1d(3)
    assert compare(model.state_dict(), new.state_dict(), model)["shared"] == []
    unknown = compare(model.state_dict(), new.state_dict())["shared"]
    assert unknown == ["0.weight", "0.bias"]  # without a proof nobody knows that they are frozen
    loaded = {"model": new.state_dict(), "moment": state["moment"]}
    assert compare(state, loaded, model)["shared"] == ["moment"]
    assert compare_states(digest(state), digest(state), state, set(), model)["shared"] == []


def test_constants_of_the_program_need_not_be_loaded() -> None:
    """Beside loaded parameters; not what has the shape of a parameter or of a moment, such as an
    average of the weights, nor where too little else was loaded."""
    model, new = Normed(), Normed()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    fixed = {"classes": torch.rand(5), "limit": torch.tensor(0.5), "average": torch.ones(3, 3)}
    before = {"model": model.state_dict(), **fixed}
    loaded = {"model": new.state_dict(), **fixed}
    assert compare(before, loaded, model, optimizer)["shared"] == ["average"]
    assert compare(before, loaded, model)["shared"] == list(fixed)  # moments of any shape
    flat = {"flat": torch.nn.utils.parameters_to_vector(model.parameters()), "epoch": torch.ones(2)}
    assert compare(flat, flat, model, optimizer)["shared"] == list(flat)
    again = {**flat, "epoch": torch.ones(2)}
    assert compare(flat, again, model, optimizer)["shared"] == ["flat"]
    moments = {"first": torch.zeros(3, 3), "second": torch.zeros(3, 3)}
    average = {"flat": flat["flat"], **moments}
    loaded = {"flat": flat["flat"], **{name: value.clone() for name, value in moments.items()}}
    assert compare(average, loaded, model, optimizer)["shared"] == ["flat"]


def test_statistics_of_another_rank_are_told_from_other_differences() -> None:
    model, new = Normed(), Normed()
    new.load_state_dict(model.state_dict())
    layer, norm = cast(Any, new[1]), cast(Any, new[2])
    norm.running_mean += 1
    fields = compare({"model": model.state_dict()}, {"model": new.state_dict()}, model)
    assert fields["only_buffers_differ"] and not fields["equal"]
    own = compare({"model": new.state_dict()}, {"model": new.state_dict()}, model)
    assert own["equal"] and own["buffers"] == fields["reloaded_buffers"] != fields["buffers"]
    layer.weight.data += 1
    fields = compare({"model": model.state_dict()}, {"model": new.state_dict()}, model)
    assert not fields["only_buffers_differ"]


def test_other_buffers_of_another_rank_differ() -> None:
    """Such as a codebook, which is to be the same on all ranks."""
    model, new = Normed(), Normed()
    for each in (model, new):
        each.register_buffer("codebook", torch.ones(2))
    new.load_state_dict(model.state_dict())
    cast(Any, new).codebook += 1
    fields = compare({"model": model.state_dict()}, {"model": new.state_dict()}, model)
    assert fields["mismatched"] == ["model.codebook"] and not fields["only_buffers_differ"]


FREED = """
import weakref, torch
from pytest_clustersmoke.rank import Proof, Rank

def train(rank):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = lambda index: model(torch.full((4, 8), float(index))).square().mean()
    for step in rank.steps(6, samples_per_rank=4, proof=Proof(model, loss_of, optimizer=optimizer)):
        loss = loss_of(step.index)
        loss.backward()
        step.backward_done()
        optimizer.step()
        optimizer.zero_grad()
        step.record(loss=loss)
    state = model.state_dict()
    rank.save_checkpoint(lambda: torch.save(state, rank.output_dir / "state.pt"))
    return rank.digest(state), weakref.ref(model), weakref.ref(optimizer)

with Rank.start(init="torch") as rank:
    digest, *proven = train(rank)

    def reload():
        assert [each() for each in proven] == [None, None]
        return torch.load(rank.output_dir / "state.pt")

    assert rank.verify_reload(digest, reload)
"""


def test_reload_of_a_digest_lets_go_of_what_was_proven() -> None:
    """A second model may not fit into the memory of the device beside it."""
    launch = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of this test's own group
    env = {name: value for name, value in os.environ.items() if name not in launch}
    command = [sys.executable, "-c", FREED]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
