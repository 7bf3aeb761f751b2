"""--cluster-dry-run: the plan, complete and exact; nothing is submitted and no Slurm is needed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.harness import TRAIN, Suite, lines_with

REPOSITORY = Path(__file__).resolve().parents[2]
SLURM = """\
clusters:
  one:
    backend: slurm
    shared_dir: {shared}
    python: python
    hardware: {{gpu: A100, gpus_per_node: 2}}
    setup: [module load cuda]
    slurm: {{partition: main, cpus_per_task: 8}}
    env:
      multi_node: {{set: {{NCCL_IB_DISABLE: 0}}, unset: [NCCL_SOCKET_IFNAME]}}
    phases:
      wide: {{slurm: {{qos: high}}}}
      small:
"""


def test_plan_says_that_phases_may_run_again(suite: Suite) -> None:
    """Reruns are not planned: whether a phase needs them is known only after it has run."""
    suite.cluster(history_check="confirm")
    suite.phase()
    plan = suite.run("--cluster-dry-run").outlines
    line = "history_check: confirm: up to 3 reruns of a phase with a lasting loss"
    assert plan[plan.index("cluster one: nothing is submitted") + 1] == line


def test_plan_of_a_local_phase(suite: Suite) -> None:
    """Script, environment, torchrun line and sources follow the phase's name."""
    suite.phase(args={"steps": 4})
    result = suite.run("--cluster-dry-run")
    assert result.ret == 0
    for line in (
        "cluster one: nothing is submitted",
        "=== small (test_small.py:3)",
        "--- batch script",
        "--- environment of the node",
        f"{suite.marker}=1    # cluster.yaml:*",
        "CLUSTERSMOKE_NODE_NAME=local$NODE_RANK    # the launcher",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8    # the launcher, unless already set",
        "--- torchrun line, on each node",
        "torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 1 *",
        f"--redirects 3 {TRAIN} --steps 4",
        "--- where each value came from",
        "nodes *1    # test_small.py:3",
        "args.steps *4    # test_small.py:3",
    ):
        result.stdout.fnmatch_lines([f"*{line}*".replace("[", "[[]")])
    assert suite.runs() == [] and suite.published() == []


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (["a.example"], "a.example"),
        (["a", {"host": "b", "port": 22}, {"host": "b", "port": 2222}], "one of a, b:22, b:2222"),
        (list("abcdef"), "one of a, b, c, d and 2 more"),
    ],
)
def test_plan_for_ssh_names_the_hosts(suite: Suite, hosts: list[object], name: str) -> None:
    """A node has the name of its host in the profile; no variable of Slurm's is printed."""
    suite.profile |= {"backend": "ssh", "hosts": hosts}
    suite.phase()
    result = suite.run("--cluster-dry-run")
    assert lines_with(result, "NODE_NAME") == [f"CLUSTERSMOKE_NODE_NAME={name}    # the launcher"]
    assert "SLURMD" not in str(result.stdout)


def test_plan_for_slurm_needs_no_slurm(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sbatch on PATH, the exact batch script and the source of each value are printed."""
    suite.cluster(SLURM.format(shared=suite.shared))
    suite.phase()
    suite.phase("wide", nodes=2, gpus_per_node=2)
    monkeypatch.setenv("PATH", str(suite.path))
    traced = ("--cluster-trace=wide", "--cluster-trace-steps=4-6", "--cluster-trace-ranks=3,0")
    changed = ("--cluster-set", "wide.slurm.time=5")
    result = suite.run("--cluster-dry-run", *changed, *traced, "-m", "multinode")
    text = result.stdout.str()
    assert "=== wide" in text and "=== small" not in text
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --partition=main",
        "#SBATCH --qos=high",
        "#SBATCH --time=5",
        "trace                      steps 4-6, ranks 0, 3    # --cluster-trace",
        "module load cuda",
        "unset NCCL_SOCKET_IFNAME",
        "export NCCL_IB_DISABLE=0",
        "unset NCCL_SOCKET_IFNAME    # cluster.yaml:10",
        "NCCL_IB_DISABLE=0    # cluster.yaml:10",
    ):
        assert line in result.outlines, line
    sources = [line.split() for line in result.outlines]
    assert ["slurm.time", "5", "#", "--cluster-set"] in sources
    assert ["slurm.qos", "high", "#", "cluster.yaml:12"] in sources
    assert ["gpus_per_node", "2", "#", "test_wide.py:3"] in sources
    assert not suite.shared.exists() and not suite.reports.exists()


def test_shipped_plan_of_gilbreth(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytest -m multinode --cluster gilbreth --cluster-dry-run` is what document 000 runs."""
    monkeypatch.setenv("PATH", str(suite.path))
    monkeypatch.setenv("USER", "somebody")
    result = suite.run(
        *("--rootdir", REPOSITORY, "--cluster-config", REPOSITORY / "cluster.yaml"),
        *("--cluster-dry-run", "-m", "multinode", REPOSITORY / "smoke_tests"),
        cluster="gilbreth",
    )
    for line in (
        "#SBATCH --account=euge",
        "#SBATCH --partition=a100-80gb",
        "#SBATCH --qos=normal",
        "#SBATCH --nodes=4",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --mem=200G",
        "#SBATCH --time=01:00:00",
        "#SBATCH --exclusive",
        "module load external",
        "unset NCCL_SOCKET_IFNAME",
    ):
        assert line in result.outlines, line
    lines = lines_with(result, "torchrun --nnodes 4 --node-rank $NODE_RANK")
    (torchrun,) = [line for line in lines if "train_zero.py" in line]
    words = shlex.split(torchrun)
    assert words[words.index("--hidden-size") + 1] == "4096"
    assert words[words.index("--layers") + 1] == "8"
    assert lines_with(
        result,
        "lora_sft_ddp does not run on gilbreth: it needs 8 GPUs per node, and gilbreth has 2",
    )
    assert not [line for line in result.outlines if line.startswith("#SBATCH --signal")]


def test_plan_remarks_on_environment_variables(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remarks follow the variables and name their source; values are sanitised."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth\x1b[31m")
    suite.cluster(env={"common": {"set": {"GLOO_SOCKET_IFNAM": "lo"}}})
    suite.phase()
    result = suite.run("--cluster-dry-run")
    start = result.outlines.index("--- environment of the node")
    section = result.outlines[start : result.outlines.index("--- torchrun line, on each node")]
    (unknown,) = [line for line in section if "did you mean `GLOO_SOCKET_IFNAME`?" in line]
    assert unknown.startswith("warning: cluster.yaml:")
    (leak,) = [line for line in section if "reaches the nodes" in line]
    assert leak.startswith("warning: this shell: GLOO_SOCKET_IFNAME=eth\ufffd[31m reaches ")


def test_plan_is_quoted_for_the_shell(suite: Suite) -> None:
    """A line pasted from the plan gives the program the same arguments."""
    suite.phase(args={"say": "it's $HOME; ok"})
    (line,) = lines_with(suite.run("--cluster-dry-run"), "torchrun --standalone")
    assert shlex.split(line)[-2:] == ["--say", "it's $HOME; ok"]


def test_plan_is_printed_once_under_xdist(suite: Suite) -> None:
    """-n does not multiply the plan, and no worker is started."""
    suite.phase()
    result = suite.run_apart("-n", "2", "--cluster-dry-run")
    assert len(lines_with(result, "=== small")) == 1
    assert suite.runs() == [] and suite.published() == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_plan_is_printed_in_any_encoding(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Characters that the terminal cannot show are escaped."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    suite.phase(args={"say": "and so on\u2026"})
    result = suite.run_apart("--cluster-dry-run")
    assert result.ret == 0 and lines_with(result, "\\u2026")
