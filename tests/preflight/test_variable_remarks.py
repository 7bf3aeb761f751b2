"""What is said before the job: of the shell, of the profiles that ship, at a run's start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.config.cluster_file import load
from pytest_clustersmoke.evidence import variable_names
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.node.rendezvous import Endpoint
from pytest_clustersmoke.node.torchrun import launcher_environment, rank_environment
from pytest_clustersmoke.preflight import variable_remarks as environment
from pytest_clustersmoke.preflight.variable_remarks import (
    LAUNCHER_SETS,
    LAUNCHER_SETS_LOCALLY,
    NOTE,
    WARNING,
    Remark,
)
from tests.preflight.profiles import CHECKED, CPU, a_profile, said
from tests.support.evidence import make_phase
from tests.support.harness import Suite, lines_with
from tests.support.launched import make_job

REPOSITORY = Path(__file__).resolve().parents[2]


def test_what_the_shell_would_leak(tmp_path: Path) -> None:
    """A variable of pytest's own shell which the profile neither sets nor unsets is told, with
    its value, and how to keep it out; of an unknown one that, too."""
    profile = a_profile(
        tmp_path, env={"common": {"set": {"NCCL_ALGO": "Ring"}, "unset": ["NCCL_PROTO"]}}
    )
    shell = {
        "NCCL_FOO": "1",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "LL",
        "NCCL_TIMEOUT": "600",
        "PATH": "/bin",
    }
    found = environment.remark_on_plan(make_phase(profile), profile, shell)
    assert [str(one) for one in found] == [
        "warning: this shell: NCCL_FOO=1 reaches the nodes unless `setup` unsets it, but the "
        "profile does not set it; `env.common.unset: [NCCL_FOO]` keeps it out",
        f"warning: this shell: NCCL_FOO {CHECKED}; a plugin or another version may read it",
        "note: this shell: NCCL_TIMEOUT is no variable of NCCL and does nothing; the timeout that "
        "counts is that of init_process_group",
    ]


def test_what_the_launcher_decides_does_not_leak(tmp_path: Path) -> None:
    """What the ranks get from the launcher, or never inherit, is not told as leaking: the rank's
    environment is the same whatever the shell has."""
    shell = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x", "NCCL_DEBUG_SUBSYS": "COLL"}
    assert said(tmp_path, shell=shell) == []
    (one,) = said(tmp_path, shell={"NCCL_HOSTID": "x"}, backend="slurm")
    assert one.name == "NCCL_HOSTID" and said(tmp_path, shell={"NCCL_HOSTID": "x"}) == []


def test_the_launchers_names_are_those_it_sets(tmp_path: Path) -> None:
    """What the check takes for the launcher's is what the launcher sets."""
    ours = launcher_environment(PhaseDir(tmp_path), "cuda", 0, "n0", {})
    assert tuple(variable_names.of_families(ours)) == LAUNCHER_SETS
    local = rank_environment(make_job(tmp_path, nccl_hostid=True), Endpoint("127.0.0.1", 1, True))
    slurm = rank_environment(make_job(tmp_path / "b"), Endpoint("127.0.0.1", 1, True))
    assert set(local) - set(slurm) == set(LAUNCHER_SETS_LOCALLY)


def test_a_leak_that_contradicts_is_a_warning(tmp_path: Path) -> None:
    """A set-up line may still unset it, so the shell's variable is no usage error."""
    expect = {"small": {"intra_node": ["P2P/*"]}}
    found = said(tmp_path, shell={"NCCL_P2P_DISABLE": "1"}, expect=expect)
    leak, contradiction = found
    assert leak.severity == contradiction.severity == "warning"
    assert contradiction.text.startswith(
        "NCCL_P2P_DISABLE=1 rules out everything that is expected: P2P/* inside a node ("
    )


def test_a_leak_and_the_profile_together(tmp_path: Path) -> None:
    """What each alone leaves possible, both rule out: the shell's is told, with the profile's."""
    found = said(
        tmp_path,
        {"NCCL_SHM_DISABLE": "1"},
        {"NCCL_P2P_DISABLE": "1"},
        expect={"small": {"intra_node": ["P2P/*", "SHM*"]}},
    )
    (one,) = [one for one in found if "expected" in one.text]
    assert (one.name, one.source) == ("NCCL_P2P_DISABLE", "this shell")
    assert one.text.startswith(
        "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 rule out everything that "
    )


def test_where_no_nccl_runs_its_variables_are_notes(tmp_path: Path) -> None:
    """On a CPU a leaked variable of NCCL changes nothing; one of gloo does."""
    shell = {"NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    found = said(tmp_path, shell=shell, hardware=CPU)
    assert {one.name: one.severity for one in found} == {
        "NCCL_IB_DISABLE": "note",
        "GLOO_SOCKET_IFNAME": "warning",
    }


def test_a_hostile_value_is_shown_short_and_plain(tmp_path: Path) -> None:
    """No control character of a value is printed, and no more than its beginning."""
    (one,) = said(tmp_path, shell={"NCCL_ALGO": "\x1b[31m" + "x" * 500})
    assert one.text.startswith("NCCL_ALGO=\ufffd[31mxxx") and "..." in one.text
    assert len(one.text) < 250 and "\x1b" not in one.text


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        (
            "gilbreth",
            {
                ("NCCL_NET_DISABLE", "mlp_1gpu"),
                ("NCCL_NET_DISABLE", "ddp_2gpu"),
                ("NCCL_NET_DISABLE", "zero1_2gpu"),
                ("NCCL_NET_DISABLE", "allreduce_1node"),
                ("NCCL_TIMEOUT", "zero1_4node"),
                ("NCCL_TIMEOUT", "allreduce_multinode"),
            },
        ),
        (
            "nebius",
            {("GLOO_USE_IPV6", "lora_sft_2node"), ("GLOO_USE_IPV6", "allreduce_multinode")},
        ),
        ("local", set()),
        ("lab", set()),
    ],
)
def test_the_shipped_profiles(cluster: str, told: set[tuple[str, str]]) -> None:
    """What documents set and nothing reads is told, as notes; nothing contradicts."""
    profile = load(REPOSITORY / "cluster.yaml", {"USER": "me"}).profile(cluster)
    found = set()
    for name, settings in profile.phases.items():
        assert settings.nodes is not None or cluster in ("local", "lab")
        phase = make_phase(profile, name, gpus_per_node=2)
        assert environment.find_contradictory_settings(phase, profile) == []
        for one in environment.remark_on_plan(phase, profile, {}):
            assert one.severity == "note"
            found.add((one.name, name))
    known = set(profile.phases)
    assert found == {pair for pair in told if pair[1] in known}


def test_the_dry_run_of_gilbreth_shows_a_leak(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pytest --cluster gilbreth --cluster-dry-run` says what the shell would pass on."""
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("NCCL_FOO", "1")
    result = suite.run(
        *("--rootdir", REPOSITORY, "--cluster-config", REPOSITORY / "cluster.yaml"),
        *("--cluster-dry-run", "-k", "zero1_4node", REPOSITORY / "smoke_tests"),
        cluster="gilbreth",
    )
    assert result.ret == 0
    (leak,) = lines_with(result, "NCCL_FOO=1 reaches the nodes")
    assert leak.startswith("warning: this shell: ")
    (nothing,) = lines_with(result, "NCCL_TIMEOUT is no variable of NCCL")
    assert nothing.startswith("note: ") and "cluster.yaml:" in nothing


# At the start of a run


def remark(text: str, severity: str = NOTE) -> Remark:
    return Remark("NCCL_X", severity, "this shell", text)


def test_equal_remarks_are_told_once() -> None:
    """A remark stands once with the phases it is of, or their number; warnings come first."""
    common = {name: [remark("a"), remark("a")] for name in ("one", "two", "three", "four")}
    groups = environment.group_remarks({**common, "four": [remark("a"), remark("b", WARNING)]})
    assert environment.format_remarks(groups) == [
        "environment: warning: this shell: b (four)",
        "environment: note: this shell: a (4 phases)",
    ]
    assert environment.format_remarks(
        environment.group_remarks({"one": [remark("a")], "two": [remark("a")]})
    ) == ["environment: note: this shell: a (one, two)"]


@pytest.fixture
def clean_shell(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a variable of these families."""
    for name in variable_names.of_families(os.environ):
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_run_tells_each_remark_once_and_changes_no_verdict(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """Before the first result notes and warnings, each once for all phases; after the table the
    warnings; in report.json those of each phase. The verdict is what it would have been."""
    clean_shell.setenv("GLOO_FOO", "1")
    clean_shell.setenv("NCCL_FOO", "1")
    suite.cluster(phases=dict.fromkeys(["one", "two"]))
    suite.phase("one")
    suite.phase("two")
    result = suite.run()
    assert result.ret == 0 and suite.record()["verdict"] == "FIT"
    leak = "environment: {}: this shell: {}_FOO=1 {} (one, two)"
    keep_out = "but the profile does not set it; `env.common.unset: [{}_FOO]` keeps it out"
    before = f"reaches the nodes unless `setup` unsets it, {keep_out}"
    (note,) = lines_with(result, "NCCL_FOO=1")
    assert note == leak.format("note", "NCCL", before.format("NCCL"))
    first, last = lines_with(result, "GLOO_FOO=1")
    assert first == leak.format("warning", "GLOO", before.format("GLOO"))
    assert last == leak.format("warning", "GLOO", f"reached local0, {keep_out.format('GLOO')}")
    (submitted,) = lines_with(result, "one: submitted as job")
    assert result.outlines.index(first) < result.outlines.index(submitted)
    for phase in suite.record()["phases"]:
        told = {(one["name"], one["severity"], one["source"]) for one in phase["remarks"]}
        assert told == {("NCCL_FOO", "note", "this shell"), ("GLOO_FOO", "warning", "this shell")}


def test_a_quiet_shell_is_not_spoken_of(suite: Suite, clean_shell: pytest.MonkeyPatch) -> None:
    """Without such a variable nothing is told."""
    suite.phase()
    result = suite.run()
    assert lines_with(result, "environment: ") == []
    assert suite.record()["phases"][0]["remarks"] == []


def test_under_xdist_each_remark_is_told_once(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """The controller tells them, no worker does."""
    clean_shell.setenv("NCCL_FOO", "1")
    suite.phase()
    result = suite.run_apart("-n", "2")
    assert result.ret == 0 and len(lines_with(result, "NCCL_FOO=1 reaches the nodes")) == 1


def test_of_many_warnings_the_summary_tells_some(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """After the table stand ten warnings at most, and how many more report.json has."""
    for number in range(6):  # each is told as leaking, and as unknown
        clean_shell.setenv(f"GLOO_FOO_{number}", "1")
    suite.phase()
    result = suite.run()
    table = next(i for i, line in enumerate(result.outlines) if line.startswith("phase "))
    after = [line for line in result.outlines[table:] if line.startswith("environment: ")]
    assert len(after) == 10 and "... and 2 more in report.json" in result.outlines
