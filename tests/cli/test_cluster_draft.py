"""Slurm's answers become a profile that the loader accepts, with guesses marked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import cluster_draft
from pytest_clustersmoke.cli.partition_survey import choose_partition, survey_cluster
from pytest_clustersmoke.cli.suite_files import shipped_phases
from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.profile import Profile
from tests.cli.recorded_slurm import REPOSITORY, Slurm, run
from tests.preflight.slurm_texts import NODE_24, PARTITION_24, node, partition

Made = Callable[..., tuple[Profile, str]]
Init = Callable[..., "subprocess.CompletedProcess[str]"]
SHIPPED = load_cluster_file(REPOSITORY / "cluster.yaml", {"HOME": "/home/me", "USER": "me"})
MARK = re.compile(r"check this: (.*)")


def unwrapped(text: str) -> str:
    """The file with wrapped comments joined."""
    return re.sub(r"\n *# (?!check this)(?=[a-z`(\[GN])", " ", text)


def marks(text: str) -> list[str]:
    return MARK.findall(unwrapped(text))


def test_profile_of_nodes_with_four_a100(profile: Made) -> None:
    """Partition, GPUs, nodes, and each GPU's share of CPUs and memory come from Slurm; phases that
    need eight GPUs per node are left out, with the reason."""
    made, text = profile("--shared-dir", "/scratch/me/runs")
    assert made.name == "pf" and made.backend == "slurm" and not made.lab
    assert made.slurm == {"partition": "gpu"}
    hardware = made.hardware
    assert (hardware.gpu, hardware.device, hardware.gpus_per_node, hardware.nodes) == (
        "any",
        "cuda",
        4,
        4,
    )
    suite = {phase.name for phase in shipped_phases()}
    assert set(made.phases) == suite - {
        "lora_sft_ddp",
        "lora_sft_2node",
        "fsdp_1node",
        "fsdp_lora_2node",
    }
    four, single = made.phases["zero1_4node"], made.phases["mlp_1gpu"]
    assert (four.nodes, four.gpus_per_node) == (4, 2)
    # 8 CPUs and 1 TiB per node: a GPU's share is 2 CPUs and 230.4 GiB.
    assert four.slurm == {"cpus_per_task": 4, "mem": "460G", "time": "01:00:00"}
    assert single.slurm == {"cpus_per_task": 2, "mem": "230G", "time": "00:30:00"}
    assert made.phases["allreduce_1node"].gpus_per_node == 4
    assert made.phases["allreduce_multinode"].nodes == 4
    assert "# lora_sft_2node is left out: needs 8 GPUs per node, nodes have 4" in text
    assert str(made.shared_dir) == "/scratch/me/runs"
    assert any("Slurm calls it a100" in mark for mark in marks(text))


def test_every_guess_is_printed(init: Init, tmp_path: Path) -> None:
    """Each mark of the file is in the output, with its key and reason."""
    output = init().stdout
    guesses = re.findall(
        r"^  ([a-z_.0-9]+): (.*)$", output.partition("\nphases: ")[0], re.MULTILINE
    )
    reasons = [why for _, why in guesses]
    marked = marks((tmp_path / "new" / "cluster.yaml").read_text())
    assert len(marked) == len(reasons) > 4
    assert marked == reasons
    assert "hardware.gpu" in dict(guesses)


def test_transports_are_required_and_unknown_ones_are_marked(profile: Made) -> None:
    """Inside a node any transport except the network is accepted. Transports between nodes must be
    written by a person; until then no run is FIT."""
    made, text = profile()
    assert made.require == ("transports",)
    assert made.expect["ddp_2gpu"].forbid == ("NET/*",)
    between = made.expect["allreduce_multinode"]
    assert between.intra_node == ("P2P/*", "SHM*")
    assert between.inter_node == () and "inter_node: []" in text
    assert any("INCONCLUSIVE" in mark for mark in marks(text))


def test_limits_of_nodes_and_time_are_respected(slurm: Slurm, profile: Made) -> None:
    """A phase of four nodes is left out on three; all-reduce takes three; no job asks for more time
    than the partition allows."""
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="gpu:h100:8") for i in range(3)))
    slurm.partitions(partition("gpu", time="00:20:00"))
    made, text = profile("--cluster", "mine")
    assert made.name == "mine"
    assert "zero1_4node is left out: needs 4 nodes, a job can have 3" in text
    assert made.phases["allreduce_multinode"].nodes == 3
    assert made.phases["lora_sft_2node"].gpus_per_node == 8
    assert "Mistral-7B" in text
    assert {phase.slurm["time"] for phase in made.phases.values()} == {"00:20:00"}


def test_phases_that_need_a_newer_torch_are_left_out(
    slurm: Slurm, profile: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The profile names the Python that runs init, and so its torch. 2.10 is newer than 2.6."""
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="gpu:h100:8") for i in range(4)))
    for version, fits in (("2.10.1+cu130", True), ("2.5.1+cu124", False)):
        shim = tmp_path / version / f"torch-{version}.dist-info"
        shim.mkdir(parents=True)
        (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(shim.parent))
        made, text = profile("--force")
        assert ("fsdp_1node" in made.phases) == fits and "zero1_4node" in made.phases
    assert "fsdp_1node is left out: needs torch 2.6 or newer, this Python has 2.5.1+cu124" in text


def test_max_nodes_of_the_partition_limits_phases(slurm: Slurm, profile: Made) -> None:
    """The partition's MaxNodes decides what fits, not the number of its nodes."""
    slurm.partitions(partition("gpu", nodes="2"))
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="gpu:a100:2") for i in range(6)))
    made, text = profile()
    assert "zero1_4node is left out: needs 4 nodes, a job can have 2" in text
    assert made.phases["allreduce_multinode"].nodes == 2 and made.hardware.nodes == 6


def test_one_node_of_one_gpu(slurm: Slurm, profile: Made) -> None:
    """Only what one GPU can run is listed."""
    slurm.nodes(node("n0", partitions="gpu", gres="gpu:1"))
    made, text = profile()
    assert set(made.phases) == {"mlp_1gpu"} and made.expect == {}
    assert "allreduce_1node is left out: needs 2 GPUs per node, nodes have 1" in text
    assert any("Slurm does not name it" in mark for mark in marks(text))


def test_nodes_of_one_gpu(slurm: Slurm, profile: Made) -> None:
    """All-reduce between nodes is listed, and its transports are left to be written."""
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="gpu:a100:1") for i in range(2)))
    made, text = profile()
    assert set(made.phases) == {
        "mlp_1gpu",
        "ddp_2node",
        "zero3_offload_2node",
        "megatron_2node",
        "allreduce_multinode",
    }
    assert any("pytest-clustersmoke[megatron]" in mark for mark in marks(text))
    between = made.expect["allreduce_multinode"]
    assert (between.intra_node, between.inter_node, between.forbid) == ((), (), ())


def test_gpus_without_bf16(slurm: Slurm, profile: Made) -> None:
    """Phases that train in bf16 are left out on V100, with its compute capability."""
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="gpu:v100:8") for i in range(4)))
    made, text = profile()
    assert set(made.phases) == {
        "mlp_1gpu",
        "ddp_2gpu",
        "ddp_2node",
        "ddp_epochs",
        "zero2_4node",
        "allreduce_1node",
        "allreduce_multinode",
    }
    assert text.count("compute capability 7.0") == 8


def test_most_common_kind_of_node_is_chosen(slurm: Slurm, init: Init, profile: Made) -> None:
    """Nodes with more GPUs of the same type are included, other nodes are named, and GPU slices
    are not counted."""
    slurm.nodes(
        *(node(f"a{i}", partitions="gpu", gres="gpu:a100:2") for i in range(3)),
        node("b0", partitions="gpu", gres="gpu:a100:4"),
        node("h0", partitions="gpu", gres="gpu:h100:8", state="DOWN+DRAIN", reason="dead"),
        node("m0", partitions="gpu", gres="gpu:1g.10gb:7,gpu:a100:2"),
        node("c0", partitions="gpu", gres="(null)"),
    )
    made, text = profile()
    assert made.hardware.gpus_per_node == 2 and made.hardware.nodes == 5
    (differ,) = [mark for mark in marks(text) if "differ" in mark]
    for words in ("4 have 2 x a100", "1 with 4 x a100", "1 with 8 x h100", "1 with no GPU"):
        assert words in differ
    output = init("--force").stdout
    assert "7 GPU slices (MIG)" in output


def test_node_record_of_slurm_24_11(slurm: Slurm, profile: Made) -> None:
    """Whole GPUs without slices, CPUs without those reserved for the system."""
    slurm.nodes(NODE_24.replace("IDLE+CLOUD+DRAIN+DYNAMIC_NORM+NOT_RESPONDING", "IDLE"))
    slurm.partitions(
        PARTITION_24.replace("AllowGroups=hpc,gpu AllowAccounts=euge,lab", "AllowGroups=ALL")
    )
    made, _ = profile()
    assert made.hardware.gpus_per_node == 3
    assert made.phases["mlp_1gpu"].slurm["cpus_per_task"] == 31  # 94 of 96, for one of 3 GPUs
    assert made.phases["mlp_1gpu"].slurm["mem"] == "150G"  # 515002 MiB x 0.9 / 3


def test_choice_of_the_partition(slurm: Slurm, init: Init, profile: Made) -> None:
    """The default one if it has GPUs; otherwise the one with the most GPUs, marked as a guess; or
    the one that --partition names."""
    slurm.nodes(
        node("c0", partitions="cpu", gres="(null)"),
        node("a0", partitions="few,cpu2", gres="gpu:a100:2"),
        *(node(f"b{i}", partitions="many,down,root", gres="gpu:a100:4") for i in range(2)),
    )
    root = partition("root", default="NO").replace("RootOnly=NO", "RootOnly=YES")
    slurm.partitions(
        partition("cpu"),
        partition("few", default="NO"),
        partition("many", default="NO"),
        partition("down", default="NO", state="DOWN"),
        root,
    )
    made, text = profile()
    assert made.slurm["partition"] == "many"
    why = "the default partition cpu has no GPUs; of the others, this one has the most GPUs (8)"
    assert why in marks(text)
    made, text = profile("--partition", "few", "--force")
    assert made.slurm["partition"] == "few" and why not in marks(text)
    refused = init("--partition", "fwe", "--force")
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr == (
        "clustersmoke: --partition: no partition `fwe`; expected one of `cpu`, `few`, `many`, "
        "`down`, `root`; did you mean `few`?\n"
    )


def test_cluster_without_gpus_gets_small_phases(slurm: Slurm, profile: Made) -> None:
    """Small sizes on CPU, without GPUs."""
    slurm.nodes(*(node(f"n{i}", partitions="gpu", gres="(null)") for i in range(4)))
    made, _ = profile()
    assert (made.hardware.gpu, made.hardware.device) == ("none", "cpu")
    assert made.phases == SHIPPED.profile("lab").phases and made.require == ()


@pytest.mark.parametrize(
    ("accounts", "default", "account", "marked"),
    [
        ("pf|lab||normal|normal|||\n", "lab\n", "lab", False),
        ("pf|lab||normal|normal|||\npf|euge||normal||||\n", "lab\n", "lab", True),
        ("pf|lab||normal|normal|||\npf|euge||normal||||\n", "\n", "euge", True),
    ],
)
def test_accounts(
    slurm: Slurm, profile: Made, accounts: str, default: str, account: str, marked: bool
) -> None:
    """The only account, or the default one of several, which are named."""
    slurm.accounts(accounts, default)
    made, text = profile()
    assert made.slurm["account"] == account
    assert any("has the accounts euge, lab" in mark for mark in marks(text)) is marked


def test_phases_are_those_that_pytest_collects() -> None:
    """Every phase of the suite, with the nodes and GPUs that pytest reads."""
    code = (
        "import pytest\n"
        "from pytest_clustersmoke.session.items import read_phases\n"
        "class Plugin:\n"
        "    def pytest_collection_finish(self, session):\n"
        "        read, problems = read_phases(session.items); assert not problems\n"
        "        for phase in read.values():\n"
        "            print('PHASE', phase.name, phase.nodes, phase.gpus_per_node)\n"
        "pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', 'smoke_tests'], [Plugin()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    phases = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("PHASE")]
    assert {name: (int(n), int(g)) for name, n, g in phases} == {
        phase.name: (phase.nodes, phase.gpus_per_node) for phase in shipped_phases()
    }


def test_without_slurm_the_profile_runs_on_this_machine(tmp_path: Path) -> None:
    """The shipped profile `local`, and the output says so; --partition is refused."""
    done = run(None, "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no Slurm found (no `scontrol` on PATH): the profile runs on this machine" in done.stdout
    environ = {"HOME": "/home/me"}
    made = load_cluster_file(tmp_path / "new" / "cluster.yaml", environ).profile("local")
    shipped = SHIPPED.profile("local")
    skipped = {"description"}
    assert made.model_dump(exclude=skipped) == shipped.model_dump(exclude=skipped)
    refused = run(None, "other", "--partition", "gpu", cwd=tmp_path)
    assert refused.returncode == 2 and not (tmp_path / "other").exists()
    assert refused.stderr.startswith(
        "clustersmoke: --partition: Slurm is not available: no `scontrol` on PATH; omit it"
    )


def test_slurm_without_an_answer(slurm: Slurm, init: Init, tmp_path: Path) -> None:
    """The error is quoted; if SLURM_CONF is set, no profile of this machine is written instead."""
    (slurm.bin / "config").unlink()
    refused = init(SLURM_CONF="/etc/slurm/slurm.conf")
    assert refused.returncode == 2 and not (tmp_path / "new").exists()
    assert refused.stderr == (
        "clustersmoke: SLURM_CONF: Slurm is not available: `scontrol show config` ended with "
        "status 1: scontrol: fatal: no such thing; try again when it answers, or unset SLURM_CONF "
        "to get a profile for this machine\n"
    )
    done = init()
    assert done.returncode == 0 and "no such thing): the profile runs on this" in done.stdout


def test_modules_and_scratch_of_the_shell_are_used(
    tmp_path: Path, slurm: Slurm, profile: Made
) -> None:
    """Loaded modules become `setup`, runs go below $SCRATCH; `$` in a path stays text."""
    scratch = tmp_path / "scr$HOME"
    scratch.mkdir()
    made, text = profile(
        SCRATCH=str(scratch), LOADEDMODULES="cuda/12.1:conda/2024.10-py312:bad;rm -rf"
    )
    assert made.setup == (
        "module purge",
        "module load cuda/12.1",
        "module load conda/2024.10-py312",
    )
    assert made.shared_dir == scratch / "clustersmoke" / "runs"
    assert any("taken from $SCRATCH of this shell" in mark for mark in marks(text))


def test_hostile_names_of_slurm_are_text_or_refused(
    tmp_path: Path, slurm: Slurm, init: Init, profile: Made
) -> None:
    """Names that YAML, a terminal or the loader would misread."""
    slurm.answer("config", "ClusterName = \x1b[31m: {x\nSLURM_VERSION = 1\x07\n")
    name = "a:b,[c]#d&$e"
    slurm.nodes(node("n0", partitions=name.split(",")[0], gres="gpu:a100\x1b[2J:2"))
    slurm.partitions(partition(name.split(",")[0]))
    made, text = profile()
    assert made.name == "31m-x" and made.slurm["partition"] == "a:b"
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}
    slurm.nodes(node("n0", partitions="p#$e&", gres="gpu:a100:2"))
    slurm.partitions(partition("p#$e&"))
    refused = init("--force")
    assert refused.returncode == 2 and refused.stderr == (
        "clustersmoke: the values found make no valid profile: clusters.31m-x.slurm.partition is "
        "`p#$e&`; expected a name\n"
    )
    assert "a:b" in (tmp_path / "new" / "cluster.yaml").read_text()


def test_slurm_without_usable_nodes_is_refused(slurm: Slurm, init: Init, tmp_path: Path) -> None:
    """No usable partition, or one without nodes."""
    slurm.nodes("")
    for words, message in (
        ((), "Slurm lists no partition that is up, has nodes and is open to this user"),
        (
            ("--partition", "gpu"),
            "--partition: partition gpu has no nodes; expected a partition with nodes",
        ),
    ):
        refused = init(*words)
        assert refused.returncode == 2 and message in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("runs", "suite", "host", "node_local"),
    [
        ("/home/me/runs", "/home/me", "host1", ["/tmp"]),
        ("/home/me/runs", "/tmp/suite", "host1", []),
        ("/tmp/runs", "/home/me", "host1", []),
        ("/home/me/runs", "/home/me", os.uname().nodename, []),
    ],
)
def test_tmp_is_node_local(
    runs: str,
    suite: str,
    host: str,
    node_local: list[str],
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not if runs or suite are there, or if every node is this machine. If the nodes are
    other machines, a reason says that they must see the runs."""
    monkeypatch.setattr(sys, "executable", "/opt/bin/python")
    slurm.nodes(node("n0", host=host, partitions="gpu"))
    survey = survey_cluster({"PATH": f"{slurm.bin}:/usr/bin:/bin"})
    wishes = cluster_draft.Wishes(Path(suite), shared_dir=Path(runs))
    draft = cluster_draft.draft_slurm(wishes, survey, choose_partition(survey, None), {})
    assert draft.node_local == node_local and ("node_local" in draft.guesses) is bool(node_local)
    assert ("every node must see it" in draft.guesses.get("shared_dir", "")) is (host == "host1")
