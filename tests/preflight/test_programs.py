"""Launchers that need SSH, bf16 on hardware without it, DeepSpeed's configuration files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.errors import Problem
from pytest_clustersmoke.preflight import deepspeed, launchers, planned, precision, shared

from ..evidence import make_phase, make_profile

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"},
    "bf16": {"enabled": True},
}
PLAIN = """\
import argparse
import deepspeed

def main(args):
    engine = deepspeed.initialize(args=args, model=None, model_parameters=[], config=args.deepspeed)
    engine.backward(0)
"""


class Case:
    """A Slurm cluster of 2 nodes x 4 GPUs, a program, and its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "ds.json"
        self.script = folder / "train.py"
        self.script.write_text(PLAIN)

    def problems(
        self, values: Any = None, source: str = "", gpu: str = "NVIDIA A100", **args: Any
    ) -> list[Problem]:
        if values is not None:
            text = values if isinstance(values, str) else json.dumps(values, indent=1)
            self.config.write_text(text)
            args = {"deepspeed": str(self.config), **args}
        if source:
            self.script.write_text(source)
        hardware = {"gpu": gpu, "device": "cuda", "gpus_per_node": 4}
        profile = make_profile(self.folder, backend="slurm", hardware=hardware)
        phase = make_phase(profile, script=self.script, nodes=2, gpus_per_node=4, args=args)
        return planned(profile, [phase])

    def line_of(self, text: str) -> int:
        lines = self.config.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key not in keys}


def test_a_good_configuration_is_silent(case: Case) -> None:
    """ "auto" in `zero_optimization` is DeepSpeed's default, and no problem."""
    assert case.problems(GOOD) == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_without_an_optimizer(case: Case, stage: int) -> None:
    """At the line of the stage, where neither file nor program has one."""
    (found,) = case.problems({**without("optimizer"), "zero_optimization": {"stage": stage}})
    assert f"ZeRO stage {stage} and no `optimizer`" in found.what
    assert found.where.endswith(f"ds.json:{case.line_of('stage')}")


@pytest.mark.parametrize(
    "source",
    [
        PLAIN.replace("model=None", "model=None, optimizer=adam"),
        PLAIN.replace("args=args", "args, None, adam"),
        PLAIN.replace("args=args", "**known"),
        "import deepspeed, json\nvalues = json.load(file)\ndeepspeed.initialize(config=values)",
        "import deepspeed\nfrom json import load\ndeepspeed.initialize(config=load(file))",
        "import deepspeed, yaml\ndeepspeed.initialize(config=yaml.safe_load(file))",
        "from transformers import Trainer\nTrainer().train()",
        "import somewhere\nsomewhere.train()",
        "this is no Python",
    ],
)
def test_an_optimizer_that_may_come_from_elsewhere(case: Case, source: str) -> None:
    """What the program may bring itself is no problem."""
    assert case.problems(without("optimizer"), source) == []


def test_an_optimizer_given_as_none(case: Case) -> None:
    """`optimizer=None` is none."""
    source = PLAIN.replace("model=None", "model=None, optimizer=None")
    assert len(case.problems(without("optimizer"), source)) == 1


def test_zero_three_that_only_runs_forward(case: Case) -> None:
    """Without a backward pass no optimizer is needed."""
    values = {**without("optimizer"), "zero_optimization": {"stage": 3}}
    assert case.problems(values, PLAIN.replace("engine.backward(0)", "engine(0)")) == []


def test_batch_arithmetic(case: Case) -> None:
    """All four numbers, and what it would have to be."""
    (found,) = case.problems({**GOOD, "train_batch_size": 32})
    for words in ("is 32", "micro batch 4", "accumulation 2", "8 ranks (2 nodes x 4 GPUs)", "= 64"):
        assert words in found.what
    assert found.expected == "64" and found.where.endswith("ds.json:2")


@pytest.mark.parametrize(
    ("missing", "train", "wrong"),
    [
        (("gradient_accumulation_steps",), 64, False),
        (("gradient_accumulation_steps",), 40, True),
        (("train_micro_batch_size_per_gpu",), 48, False),
        (("train_micro_batch_size_per_gpu",), 8, True),
        (("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), 24, False),
        (("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), 20, True),
    ],
)
def test_batch_sizes_that_follow_from_others(
    case: Case, missing: tuple[str, ...], train: int, wrong: bool
) -> None:
    """What is absent must come out as a whole number."""
    found = case.problems({**without(*missing), "train_batch_size": train})
    assert bool(found) is wrong, found
    assert not wrong or f"train_batch_size {train}" in found[0].what


def test_batches_that_cannot_be_told(case: Case) -> None:
    """None at all is a problem; with groups of its own a rank is no replica."""
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    (found,) = case.problems(without(*sizes))
    assert "gives no batch size" in found.what
    assert case.problems({**GOOD, "train_batch_size": 1, "sequence_parallel_size": 2}) == []
    source = PLAIN.replace("model=None", "model=None, mpu=groups")
    assert case.problems({**GOOD, "train_batch_size": 1}, source) == []


def test_both_precisions(case: Case) -> None:
    """DeepSpeed refuses both."""
    (found,) = case.problems({**GOOD, "fp16": {"enabled": True}})
    assert "enables fp16 and bf16" in found.what


def test_bf16_on_hardware_without_it(case: Case) -> None:
    """In the file and in an argument, with the hardware's line."""
    (found,) = case.problems(GOOD, gpu="Tesla V100-SXM2-32GB")
    assert "compute capability 7.0, and bf16 needs 8.0" in found.what and ".yaml:" in found.what
    (found,) = case.problems(gpu="Tesla T4", bf16=True)
    assert "bf16=True" in found.what
    (found,) = case.problems(gpu="Tesla T4", precision="bf16-mixed")
    assert case.problems(gpu="Tesla T4", bf16=False, precision="fp16") == []


def test_auto_that_nothing_fills(case: Case) -> None:
    """Each place of it; Trainer fills them all."""
    values = {
        **GOOD,
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    found = case.problems(values)
    named = [one.what.split("`")[1] for one in found]
    assert named == ["train_batch_size", "gradient_clipping", "optimizer.params.lr"]
    assert found[2].where.endswith(f"ds.json:{case.line_of('lr')}")
    source = "from helpers import train\ntrain()\n"
    (case.folder / "helpers.py").write_text("import transformers\n")
    assert case.problems(values, source) == []


def test_a_configuration_that_is_no_json(case: Case) -> None:
    """With its line; another file than DeepSpeed's is nobody's business."""
    trainer = "from transformers import Trainer\nTrainer().train()"
    (found,) = case.problems('{\n "a": 1,\n}', trainer)
    assert "is no JSON" in found.what and found.where.endswith("ds.json:3")
    case.script.write_text(PLAIN)
    case.config.write_text("{")
    assert case.problems(data=str(case.config)) == []
    case.config.write_text('{"rows": []}')
    assert case.problems(data=str(case.config)) == []


def test_a_configuration_that_deepspeed_reads_all_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed takes Hjson: comments and trailing commas are no mistake of the user's, and what
    stands beside them is checked; where Hjson cannot be read here, nothing is said."""
    text = json.dumps(without("optimizer"), indent=1)
    loose = f"// of the group\n{text[:-2]},\n}}"
    pytest.importorskip("hjson", reason="DeepSpeed brings it along")
    (found,) = case.problems(loose)
    assert "ZeRO stage 1 and no `optimizer`" in found.what
    (found,) = case.problems("[")
    assert "is no JSON" in found.what
    monkeypatch.setitem(sys.modules, "hjson", None)
    assert case.problems(loose) == []


def test_a_configuration_in_the_place_of_its_path_is_left_alone(case: Case) -> None:
    """It is no file's name, however long it is."""
    values = json.dumps({**GOOD, "steps_per_print": list(range(2000))})
    assert case.problems(deepspeed=values) == []


def test_tensors_that_a_program_loads_hide_nothing(case: Case) -> None:
    """Only what may be the configuration counts as read by the program."""
    source = f"import torch\n{PLAIN}    torch.load('data.pt')\n"
    assert len(case.problems(without("optimizer"), source)) == 1


def test_a_file_is_known_as_deepspeeds_by_its_keys(case: Case) -> None:
    """Whatever the argument is named; a relative path counts from the script's folder, too."""
    case.config.write_text(json.dumps({**GOOD, "train_batch_size": 32}))
    assert len(case.problems(config_file="ds.json")) == 1


def test_launchers_that_need_ssh(tmp_path: Path) -> None:
    """In `python`, in `setup`, in arguments and in the script, each with its place."""
    script = tmp_path / "train.py"
    script.write_text("import subprocess\n\nsubprocess.run(['/usr/bin/deepspeed', 'x.py'])\n")
    profile = make_profile(
        tmp_path,
        backend="slurm",
        python="mpirun -np 2 python",
        setup=["module load x", "A=1 deepspeed --hostfile h train.py  # start"],
    )
    args = {"hostfile": "/h", "launcher": "pdsh"}
    found = list(launchers.launchers(profile, [make_phase(profile, script=script, args=args)]))
    assert len(found) == 5
    assert "`python` is the launcher `mpirun`" in found[0].what
    assert found[1].where == profile.where("setup", 1)
    assert "hostfile=/h" in found[2].what and "launcher=pdsh" in found[3].what
    assert found[4].where == f"{script}:3" and "srun" in found[4].expected


@pytest.mark.parametrize(
    "source",
    [
        "import deepspeed\ndeepspeed.initialize()\n",
        "'''By hand: mpirun or pdsh'''\nprint('deepspeed x')\n",
        "import subprocess\nsubprocess.run(['nvidia-smi'])  # no mpirun\n",
        "deepspeed(",
    ],
)
def test_what_is_no_launcher(tmp_path: Path, source: str) -> None:
    """The library of that name, and words, start nothing."""
    script = tmp_path / "train.py"
    script.write_text(source)
    profile = make_profile(tmp_path, setup=["echo deepspeed", "export X=$(which mpirun)"])
    assert list(launchers.launchers(profile, [make_phase(profile, script=script)])) == []


@pytest.mark.parametrize(
    "gpu",
    [
        *("Tesla V100-PCIE-16GB", "Tesla P100-PCIE-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"),
        *("Quadro RTX 6000", "NVIDIA TITAN RTX", "Tesla K80", "NVIDIA GeForce GTX 1080 Ti"),
    ],
)
def test_gpus_without_bf16(gpu: str) -> None:
    """Named with their compute capability."""
    assert "compute capability" in precision.lacks_bf16(gpu)


@pytest.mark.parametrize(
    "gpu",
    [
        *("NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA A10", "NVIDIA L4"),
        *("NVIDIA L40S", "NVIDIA GeForce RTX 3090", "NVIDIA RTX 6000 Ada Generation"),
        *("NVIDIA RTX A4000", "NVIDIA GeForce RTX 4070", "NVIDIA B200", "NVIDIA GH200 480GB"),
        *("AMD Instinct MI250X", "NVIDIA RTX 5000 Ada Generation", "any", "none", "fake"),
    ],
)
def test_gpus_that_have_bf16_or_are_not_known(gpu: str) -> None:
    """Nothing is said of them."""
    assert precision.lacks_bf16(gpu) == ""


def test_what_lies_under_a_path_of_each_nodes_own(tmp_path: Path) -> None:
    """Interpreter, and outputs of phases of several nodes."""
    profile = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="/scratch-local/bin/python"
    )
    args = {"output_dir": "/scratch-local/x", "cache_dir": "/scratch-local/hf"}
    two, one = (make_phase(profile, args=args, nodes=nodes) for nodes in (2, 1))
    first, second = shared.node_local(profile, [two, one])
    assert "the interpreter of the nodes" in first.what and first.where == profile.where("python")
    assert "output_dir=/scratch-local/x" in second.what
    plain = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="python3 -X dev"
    )
    assert list(shared.node_local(plain, [one])) == []


def test_configuration_under_a_path_of_each_nodes_own(case: Case) -> None:
    """The other nodes would not find it."""
    case.config.write_text(json.dumps(GOOD))
    profile = make_profile(
        case.folder, backend="slurm", node_local=[str(case.folder)], shared_dir="/elsewhere"
    )
    args = {"deepspeed_config": str(case.config)}
    phase = make_phase(profile, script=case.script, nodes=2, gpus_per_node=4, args=args)
    (found,) = deepspeed.configurations(profile, [phase])
    assert "a file that all nodes share" in found.expected


def test_the_suite_that_ships_is_silent() -> None:
    """Every phase of every profile that ships: nothing to say, on whatever machine."""
    from pytest_clustersmoke.cluster import load

    file = load(REPOSITORY / "cluster.yaml", {"HOME": "/home/u", "USER": "u"})
    for name in file.names:
        profile = file.profile(name)
        phases = [
            make_phase(profile, phase, script=script)
            for phase in profile.phases
            for script in (REPOSITORY / "smoke_tests").glob("train_*.py")
        ]
        assert planned(profile, phases) == [], name
