"""Remarks before the job: about the shell, shipped profiles, and at the start of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.evidence import variable_names
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.node.launch_environment import launcher_environment, rank_environment
from pytest_clustersmoke.node.rendezvous import Endpoint
from pytest_clustersmoke.preflight import variable_remarks as environment
from pytest_clustersmoke.preflight.variable_remarks import (
    LAUNCHER_SETS,
    LAUNCHER_SETS_LOCALLY,
)
from pytest_clustersmoke.text import NOTE, WARNING, Problem
from tests.preflight.profiles import CHECKED, CPU, gpu_profile, remarks_of
from tests.support.evidence import make_phase
from tests.support.harness import Suite, lines_with
from tests.support.launched import make_job

REPOSITORY = Path(__file__).resolve().parents[2]


def test_variables_of_the_shell_are_reported(tmp_path: Path) -> None:
    """A variable of pytest's shell that the profile neither sets nor unsets is reported with its
    value and how to keep it out; an unknown name is reported as unknown too."""
    profile = gpu_profile(
        tmp_path, env={"common": {"set": {"NCCL_ALGO": "Ring"}, "unset": ["NCCL_PROTO"]}}
    )
    shell = {
        "NCCL_FOO": "1",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "LL",
        "NCCL_TIMEOUT": "600",
        "PATH": "/bin",
    }
    remarks = environment.remark_on_plan(make_phase(profile), profile, shell)
    assert [str(remark) for remark in remarks] == [
        "warning: this shell: NCCL_FOO=1 reaches the nodes unless `setup` unsets it, but the "
        "profile does not set it; `env.common.unset: [NCCL_FOO]` keeps it out",
        f"warning: this shell: NCCL_FOO {CHECKED}; a plugin or another version may read it",
        "note: this shell: NCCL_TIMEOUT is not a variable of NCCL and has no effect; set the "
        "timeout of init_process_group instead",
    ]


def test_variables_of_the_launcher_do_not_leak(tmp_path: Path) -> None:
    """Variables that the launcher sets, or that ranks never inherit, are not reported as leaks."""
    shell = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x", "NCCL_DEBUG_SUBSYS": "COLL"}
    assert remarks_of(tmp_path, shell=shell) == []
    (remark,) = remarks_of(tmp_path, shell={"NCCL_HOSTID": "x"}, backend="slurm")
    assert remark.name == "NCCL_HOSTID" and remarks_of(tmp_path, shell={"NCCL_HOSTID": "x"}) == []


def test_list_of_launcher_variables_is_complete(tmp_path: Path) -> None:
    """The check's list equals the variables that the launcher sets."""
    ours = launcher_environment(PhaseDir(tmp_path), "cuda", 0, "n0", {})
    assert tuple(variable_names.filter_variables(ours)) == LAUNCHER_SETS
    local = rank_environment(make_job(tmp_path, nccl_hostid=True), Endpoint("127.0.0.1", 1, True))
    slurm = rank_environment(make_job(tmp_path / "b"), Endpoint("127.0.0.1", 1, True))
    assert set(local) - set(slurm) == set(LAUNCHER_SETS_LOCALLY)


def test_leak_that_contradicts_is_a_warning(tmp_path: Path) -> None:
    """A setup line may still unset it, so it is not a usage error."""
    expect = {"small": {"intra_node": ["P2P/*"]}}
    remarks = remarks_of(tmp_path, shell={"NCCL_P2P_DISABLE": "1"}, expect=expect)
    leak, contradiction = remarks
    assert leak.severity == contradiction.severity == "warning"
    assert contradiction.text.startswith(
        "NCCL_P2P_DISABLE=1 rules out everything that is expected: P2P/* inside a node ("
    )


def test_leak_and_profile_contradict_together(tmp_path: Path) -> None:
    """Only together do they rule out what is expected: the remark names both variables."""
    remarks = remarks_of(
        tmp_path,
        {"NCCL_SHM_DISABLE": "1"},
        {"NCCL_P2P_DISABLE": "1"},
        expect={"small": {"intra_node": ["P2P/*", "SHM*"]}},
    )
    (remark,) = [remark for remark in remarks if "expected" in remark.text]
    assert (remark.name, remark.where) == ("NCCL_P2P_DISABLE", "this shell")
    assert remark.text.startswith(
        "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 rule out everything that "
    )


def test_nccl_variables_on_cpu_are_notes(tmp_path: Path) -> None:
    """On CPUs, a leaked variable of NCCL has no effect; one of gloo has."""
    shell = {"NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    remarks = remarks_of(tmp_path, shell=shell, hardware=CPU)
    assert {remark.name: remark.severity for remark in remarks} == {
        "NCCL_IB_DISABLE": "note",
        "GLOO_SOCKET_IFNAME": "warning",
    }


def test_hostile_value_is_sanitised_and_cut(tmp_path: Path) -> None:
    """Control characters are replaced, and only the start of a long value is shown."""
    (remark,) = remarks_of(tmp_path, shell={"NCCL_ALGO": "\x1b[31m" + "x" * 500})
    assert remark.text.startswith("NCCL_ALGO=\ufffd[31mxxx") and "..." in remark.text
    assert len(remark.text) < 250 and "\x1b" not in remark.text


@pytest.mark.parametrize(
    ("cluster", "expected"),
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
def test_shipped_profiles_have_only_known_notes(
    cluster: str, expected: set[tuple[str, str]]
) -> None:
    """Variables that the documents set but nothing reads give notes; there is no contradiction."""
    profile = load_cluster_file(REPOSITORY / "cluster.yaml", {"USER": "me"}).profile(cluster)
    notes = set()
    for name, settings in profile.phases.items():
        assert settings.nodes is not None or cluster in ("local", "lab")
        phase = make_phase(profile, name, gpus_per_node=2)
        assert environment.find_contradictory_settings(phase, profile) == []
        for remark in environment.remark_on_plan(phase, profile, {}):
            assert remark.severity == "note"
            notes.add((remark.name, name))
    known = set(profile.phases)
    assert notes == {pair for pair in expected if pair[1] in known}


def test_dry_run_of_gilbreth_shows_a_leak(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytest --cluster gilbreth --cluster-dry-run` reports what the shell would pass on."""
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
    (nothing,) = lines_with(result, "NCCL_TIMEOUT is not a variable of NCCL")
    assert nothing.startswith("note: ") and "cluster.yaml:" in nothing


# At the start of a run


def remark(text: str, severity: str = NOTE) -> Problem:
    return Problem(text, "this shell", name="NCCL_X", severity=severity)


def test_equal_remarks_share_a_line() -> None:
    """The line has the phases, or their number; warnings come first."""
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
    """An environment without variables of the families that are checked."""
    for name in variable_names.filter_variables(os.environ):
        monkeypatch.delenv(name)
    return monkeypatch


def test_run_shows_each_remark_once_and_keeps_its_verdict(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """Notes and warnings come before the first result, each once for all phases; warnings again
    after the table; report.json has them by phase. The verdict does not change."""
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
        remarks = {
            (remark_record["name"], remark_record["severity"], remark_record["source"])
            for remark_record in phase["remarks"]
        }
        assert remarks == {
            ("NCCL_FOO", "note", "this shell"),
            ("GLOO_FOO", "warning", "this shell"),
        }


def test_clean_shell_gives_no_remark(suite: Suite, clean_shell: pytest.MonkeyPatch) -> None:
    """Without these variables there is no remark."""
    suite.phase()
    result = suite.run()
    assert lines_with(result, "environment: ") == []
    assert suite.record()["phases"][0]["remarks"] == []


def test_xdist_controller_shows_each_remark_once(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """The workers show none."""
    clean_shell.setenv("NCCL_FOO", "1")
    suite.phase()
    result = suite.run_apart("-n", "2")
    assert result.ret == 0 and len(lines_with(result, "NCCL_FOO=1 reaches the nodes")) == 1


def test_summary_shows_a_limited_number_of_warnings(
    suite: Suite, clean_shell: pytest.MonkeyPatch
) -> None:
    """After the table come at most ten warnings, and how many more report.json has."""
    for number in range(6):  # each gives two warnings: leaking and unknown
        clean_shell.setenv(f"GLOO_FOO_{number}", "1")
    suite.phase()
    result = suite.run()
    table = next(i for i, line in enumerate(result.outlines) if line.startswith("phase "))
    after = [line for line in result.outlines[table:] if line.startswith("environment: ")]
    assert len(after) == 10 and "... and 2 more in report.json" in result.outlines
