"""Mistakes of a user are all reported at once, with exit status 4, before anything is submitted.

`Suite.refused` checks each: status 4, no traceback, nothing in shared_dir, no report.
"""

from __future__ import annotations

import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Suite, lines_with

SLURM = """\
clusters:
  one:
    backend: slurm
    shared_dir: {shared}
    hardware: {{gpu: A100, gpus_per_node: 2}}
    phases: {{small: }}
"""


def line_of(path: Path, text: str) -> int:
    """The number of the first line that holds `text`."""
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_unknown_cluster_names_a_near_match(suite: Suite) -> None:
    """The error lists the clusters and suggests the near one."""
    suite.cluster(name="gilbreth")
    assert suite.refused(cluster="gilbert") == [
        "--cluster: no profile `gilbert` in cluster.yaml; expected one of `gilbreth`; "
        "did you mean `gilbreth`?"
    ]


def test_missing_cluster_file_is_refused(suite: Suite) -> None:
    """The error says where cluster.yaml was expected and what to do."""
    suite.path.joinpath("cluster.yaml").unlink()
    assert suite.refused() == [
        f"no cluster.yaml in {suite.path}; expected a file of profiles there; write one "
        "(`clustersmoke init`), or name one with --cluster-config"
    ]
    assert suite.refused("--cluster-config", "mine.yaml") == [
        "--cluster-config: no such file: mine.yaml; expected a file of profiles"
    ]


def test_empty_cluster_name_is_refused(suite: Suite) -> None:
    """`--cluster "$UNSET"` must not skip every phase and end with status 0."""
    assert suite.refused("--cluster", "", cluster="") == [
        "--cluster: the name is empty; expected a profile of cluster.yaml (--cluster-list shows "
        "them)"
    ]


@pytest.mark.parametrize("option", ["--cluster-config", "--cluster-report-dir"])
def test_option_whose_path_moves_the_root_directory_is_refused(
    suite: Suite, tmp_path_factory: pytest.TempPathFactory, option: str
) -> None:
    """pytest takes a path after a space for a test path: it would collect the tests of another
    directory. With `=` the option works."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    suite.phase()
    path = shutil.copy(suite.path / "cluster.yaml", elsewhere)
    if option == "--cluster-report-dir":
        path = str(elsewhere)
    (elsewhere / "pytest.ini").write_text("[pytest]\n")
    (line,) = suite.refused(option, path)
    assert line == (
        f"{option} {path}: pytest takes this path for a test path and uses {elsewhere} as its "
        f"root directory; expected {option}={path}, or also --rootdir=."
    )
    assert suite.run(f"{option}={path}", "--collect-only").ret == 0
    assert suite.run("--rootdir=.", option, path, "--collect-only").ret == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "cluster.yaml: the file is empty; expected a mapping with the key `clusters`"),
        (
            "clusters:\n  one: [\n  }\n",
            "cluster.yaml:3: malformed YAML: while parsing a flow node, did not find expected "
            "node content; expected valid YAML in UTF-8",
        ),
        (
            "clusters:\n\tone: x\n",
            "cluster.yaml:2: malformed YAML: while scanning for the next token, found character "
            "that cannot start any token; expected valid YAML in UTF-8",
        ),
    ],
)
def test_malformed_yaml_is_refused_with_its_line(suite: Suite, text: str, line: str) -> None:
    """The error has file and line."""
    suite.path.joinpath("cluster.yaml").write_text(text)
    assert suite.refused() == [line]


def test_unreadable_cluster_file_is_refused(suite: Suite) -> None:
    """A directory, and a file that is not text, are refused."""
    suite.path.joinpath("folder").mkdir()
    assert suite.refused("--cluster-config", "folder") == [
        "folder: cannot be read: Is a directory; expected a readable YAML file"
    ]
    suite.path.joinpath("binary").write_bytes(b"clusters:\n\xff")
    assert suite.refused("--cluster-config", "binary") == [
        "binary:2: malformed YAML: invalid leading UTF-8 octet; expected valid YAML in UTF-8"
    ]


def test_unknown_key_names_a_near_match(suite: Suite) -> None:
    """The error has the line, the known keys and the near one."""
    suite.cluster(partitoin="main")
    (line,) = suite.refused()
    where = line_of(suite.path / "cluster.yaml", "partitoin")
    assert line.startswith(f"cluster.yaml:{where}: unknown key `partitoin` in clusters.one; ")
    suite.cluster(SLURM.format(shared=suite.shared) + "    slurm: {partitoin: main}\n")
    assert suite.refused() == [
        "cluster.yaml:7: unknown key `partitoin` in clusters.one.slurm; expected an option of "
        "sbatch by its long name; did you mean `partition`?"
    ]


def test_reference_in_a_wrong_unit_is_refused(suite: Suite) -> None:
    """The error names the metric's unit."""
    suite.cluster(
        references={
            "small": {
                "peak_memory_gib": {"value": 1, "upper": "+10 %", "unit": "GB", "source": "a test"}
            }
        }
    )
    (line,) = suite.refused()
    assert "peak_memory_gib.unit is `GB`; expected `GiB`, the unit of peak_memory_gib" in line


def test_marker_without_script_is_refused(suite: Suite) -> None:
    """The error has the marker's line and the expected form."""
    path = suite.phase(script="")
    assert suite.refused() == [
        f"test_small.py:{line_of(path, 'mark.phase')}: phase 'small' has no script; expected "
        'script="PROGRAM.py", a program that the launcher can start, beside the test file'
    ]


def test_marker_without_name_is_refused(suite: Suite) -> None:
    """The error has an example of a marker."""
    path = suite.path / "test_bad.py"
    path.write_text("import pytest\n@pytest.mark.phase(script='x.py')\nclass TestX:\n    pass\n")
    assert suite.refused() == [
        "test_bad.py:2: the phase marker has no valid name: nothing; expected one name of "
        "letters, digits, `_` and `-` first: "
        '@pytest.mark.phase("ddp_2gpu", script="train_mlp.py")'
    ]


def test_unknown_marker_argument_names_a_near_match(suite: Suite) -> None:
    """The error suggests the near argument."""
    suite.phase(gpus_per_nod=2)
    (line,) = suite.refused()
    assert line.startswith("test_small.py:3: unknown argument `gpus_per_nod` of the phase marker; ")
    assert line.endswith("did you mean `gpus_per_node`?")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("nodes", 0, "a whole number above 0"),
        ("gpus_per_node", "2", "a whole number above 0"),
        ("nodes", True, "a whole number above 0"),
        ("timeout_s", -1, "seconds above 0"),
        ("timeout_s", 0, "seconds above 0"),
    ],
)
def test_impossible_number_in_a_marker_is_refused(
    suite: Suite, key: str, value: Any, expected: str
) -> None:
    """Counts and seconds must be above 0."""
    suite.phase(**{key: value})
    assert suite.refused() == [
        f"test_small.py:3: {key}={value!r} of phase 'small' is not valid; expected {expected}"
    ]


def test_two_phases_of_one_name_are_refused(suite: Suite) -> None:
    """The error shows both places."""
    suite.phase(file="test_a.py")
    suite.phase(file="test_b.py")
    assert suite.refused() == [
        "test_b.py:3: two phases are named `small`; expected a unique name for each phase; "
        "the other is at test_a.py:3"
    ]


def test_missing_script_is_refused(suite: Suite) -> None:
    """The error has the path as resolved beside the test file."""
    suite.phase(script="train_gone.py")
    assert suite.refused() == [
        "test_small.py:3: the script of phase `small` does not exist: train_gone.py; expected "
        "a file"
    ]


def test_script_on_a_node_local_path_is_refused(suite: Suite) -> None:
    """The error names the path that every node has for itself."""
    script = suite.path / "local" / "train.py"
    script.parent.mkdir()
    script.write_text("")
    suite.cluster(node_local=[str(script.parent)])
    suite.phase(script="local/train.py")
    assert suite.refused() == [
        "test_small.py:3: the script of phase `small`, local/train.py, lies under "
        f"{suite.path / 'local'}, which nodes do not share; expected a script on a file "
        "system that all nodes share; move the suite there".replace(f"{suite.path}/", "")
    ]


def test_shared_dir_on_a_node_local_path_is_refused(suite: Suite) -> None:
    """It is refused when the file is read."""
    suite.cluster(node_local=[str(suite.shared)])
    suite.phase()
    (line,) = suite.refused()
    assert "which nodes do not share; expected a directory that every node sees" in line


def test_more_gpus_than_a_node_has_are_refused(suite: Suite) -> None:
    """The error shows the marker and the hardware of the cluster."""
    path = suite.phase(gpus_per_node=8)
    (line,) = suite.refused()
    limit = line_of(suite.path / "cluster.yaml", "gpus_per_node")
    assert line == (
        f"test_small.py:{line_of(path, 'mark.phase')}: phase `small` asks for 8 GPUs per node; "
        f"expected at most 2 (`hardware.gpus_per_node` of one, cluster.yaml:{limit}); "
        "change the phase's `gpus_per_node`, or remove the phase from `phases`"
    )


def test_only_selected_phases_are_checked(suite: Suite) -> None:
    """A problem with a phase that `-k` leaves out does not stop the others."""
    suite.cluster(phases={"small": None, "other": None})
    suite.phase(gpus_per_node=8)
    suite.phase("other")
    result = suite.run("-k", "other", "--cluster-dry-run")
    assert result.ret == 0
    assert lines_with(result, "=== other") and not lines_with(result, "small")


SOON = (date.today() + timedelta(days=9)).isoformat()
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "marker": ({"gpus_per_nod": 2}, {}, ()),
    "script": ({"script": "gone.py"}, {}, ()),
    "known": (
        {},
        {"known": [{"phase": "small", "criterion": "test_x", "reason": "r", "until": SOON}]},
        (),
    ),
    "setting": ({}, {}, ("--cluster-set", "small.nodes=many")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_unselected_phases_are_not_refused(suite: Suite, mistake: str) -> None:
    """In the marker, in `known` or in --cluster-set; with the phase they are refused."""
    marker, keys, settings = MISTAKES[mistake]
    suite.cluster(phases={"small": None, "other": None}, **keys)
    suite.phase(**marker)
    suite.phase("other", gpus_per_node=2)
    without: list[tuple[str, ...]] = [("-k", "other"), ("test_other.py",), ("-m", "multigpu")]
    chosen: list[tuple[str, ...]] = [(), ("-k", "small"), ("test_small.py",), ("-m", "singlegpu")]
    for selection in without:
        assert suite.run(*selection, *settings, "--cluster-dry-run").ret == 0
    for selection in chosen:
        suite.refused(*selection, *settings, "--cluster-dry-run")
    assert suite.run("-k", "other", *settings).ret == 0


def test_mistake_in_the_marker_of_an_unselected_phase_is_a_remark(suite: Suite) -> None:
    """So that a phase that `-m` misses for a mistake in its marker does not go unnoticed."""
    suite.phase(nodes="2")
    suite.phase("other", nodes=2)
    result = suite.run("-m", "multinode", "--cluster-dry-run")
    assert result.ret == 0
    (line,) = lines_with(result, "nodes='2' of phase 'small' is not valid")
    assert line.endswith("(not selected, so not refused)")


def test_two_phases_of_one_name_are_refused_if_one_is_selected(suite: Suite) -> None:
    """Either could be meant by the settings, the references and the results of that name."""
    suite.phase(file="test_a.py")
    suite.phase(file="test_b.py")
    suite.phase("other")
    for selection in ("test_a", "test_b"):
        assert len(suite.refused("-k", selection)) == 1
    assert suite.run("-k", "other", "--cluster-dry-run").ret == 0


@pytest.mark.parametrize("selection", [("-k", "other"), ("test_other.py",)])
def test_setting_of_an_unselected_phase_is_accepted(
    suite: Suite, selection: tuple[str, ...]
) -> None:
    """Of one that does not exist anywhere it is refused."""
    suite.phase()
    suite.phase("other")
    words = (*selection, "--cluster-dry-run", "--cluster-set")
    assert suite.run(*words, "small.timeout_s=9").ret == 0
    (line,) = suite.refused(*words, "smal.timeout_s=9")
    assert "no collected phase `smal` runs on one" in line


def test_scripts_on_one_node_local_path_are_one_problem(suite: Suite) -> None:
    """One line names both phases."""
    folder = suite.path / "local"
    folder.mkdir()
    (folder / "train.py").touch()
    suite.cluster(node_local=[str(folder)], phases={"small": None, "other": None})
    suite.phase(script="local/train.py")
    suite.phase("other", script="local/train.py")
    (line,) = suite.refused()
    assert "the scripts of phases `other`, `small`, in local, lie under local" in line


def test_more_nodes_than_the_cluster_has_are_refused(suite: Suite) -> None:
    """The error has both numbers."""
    suite.cluster(hardware={"gpu": "any", "device": "cpu", "gpus_per_node": 2, "nodes": 2})
    suite.phase(nodes=3)
    assert suite.refused() == [
        "test_small.py:3: phase `small` asks for 3 nodes; expected at most 2 (`hardware.nodes` of "
        "one)"
    ]


def test_slurm_profile_without_sbatch_is_refused(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where to run."""
    suite.cluster(SLURM.format(shared=suite.shared))
    suite.phase()
    monkeypatch.setenv("PATH", str(suite.path))
    assert suite.refused() == [
        "cluster.yaml:3: no `sbatch` on PATH, but one is a Slurm cluster; expected Slurm's "
        "commands; run this on a login node of the cluster"
    ]


def test_run_directory_that_cannot_be_created_is_refused(suite: Suite) -> None:
    """A shared_dir below a regular file: the error has the system's reason."""
    suite.path.joinpath("file").write_text("")
    suite.cluster(shared_dir=str(suite.path / "file" / "runs"))
    suite.phase()
    (line,) = suite.refused()
    assert line.startswith("cluster.yaml:5: the run directory would go to file/runs, but file is ")
    assert line.endswith("not a directory; expected a directory that this user can write")


@pytest.mark.parametrize(("char", "words"), [("%", "a `%`"), ("\n", "a newline")])
def test_path_that_sbatch_would_misread_is_refused(suite: Suite, char: str, words: str) -> None:
    """`%` and a newline are refused, in a script's path and in the shared directory."""
    folder = suite.path / f"a{char}b"
    folder.mkdir()
    folder.joinpath("train.py").write_text("")
    suite.phase(script=str(folder / "train.py"))
    (script,) = suite.refused()
    assert (
        script.startswith("phase `small`: the path") and f"contains {words}, which sbatch" in script
    )
    assert script.endswith("would misread; expected a path without it; move the suite")
    suite.cluster(shared_dir=str(folder))
    (shared,) = suite.refused()
    where = line_of(suite.path / "cluster.yaml", "shared_dir")
    assert shared.startswith(f"cluster.yaml:{where}: clusters.one.shared_dir is ")
    assert "expected a path without `%` or control characters, which sbatch would" in shared


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "steps=3",
            "cannot read 'steps=3'; expected PHASE.KEY=VALUE with KEY one of nodes, "
            "gpus_per_node, timeout_s, launcher, after, resume, proof, proof_steps, peaks, "
            "args.X, slurm.X, env.X, stage_limits_s.X",
        ),
        ("small.steps=3", "unknown key `steps` in 'small.steps=3'; "),
        ("small.steps=3", "write an option of its program as small.args.steps=3"),
        ("small.node=3", "did you mean `nodes`?"),
        ("small.nodes=many", "small.nodes is `many`; expected a whole number"),
        ("small.nodes=0", "small.nodes is `0`; expected a number above 0"),
        ("small.proof=twice", "small.proof is `twice`; expected one of `sampled`, `twin`"),
        ("small.nodes.x=3", "cannot read 'small.nodes.x=3'; expected PHASE.KEY=VALUE"),
        ("small.args=3", "cannot read 'small.args=3'; expected PHASE.KEY=VALUE"),
        ("small.timeout_s=soon", "small.timeout_s is `soon`; expected a number"),
        ("small.timeout_s=.inf", "small.timeout_s is `inf`; expected a finite number"),
        ("small.args.x={a: 1}", "small.args.x is a mapping; expected text, a number, true, false"),
        ("small.args.x=[1, [2]]", "small.args.x is a list; expected text, a number, true, false"),
        ("small.args.x=!!bool 1", "the value of 'small.args.x=!!bool 1' is not valid YAML"),
        ("small.args.x=[1", "the value of 'small.args.x=[1' is not valid YAML"),
        (
            "smal.nodes=2",
            "no collected phase `smal` runs on one; expected one of small; did you mean `small`?",
        ),
    ],
)
def test_bad_setting_names_the_accepted_form(suite: Suite, setting: str, words: str) -> None:
    """The error of --cluster-set has the accepted form, and the near phase or key."""
    suite.phase()
    (line,) = suite.refused("--cluster-set", setting)
    assert line.startswith("--cluster-set: ") and words in line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "slurm.partitoin=a",
            "unknown key `partitoin` in small.slurm; expected an option of sbatch",
        ),
        ("slurm.partitoin=a", "did you mean `partition`?"),
        ("slurm.time=soon", "small.slurm.time is `soon`; expected minutes, or [days-]hours"),
        ("slurm.signal=TERM", "`signal` in small.slurm is reserved for the tool; remove it"),
        ("stage_limits_s.trian=3", "unknown stage `trian` in small.stage_limits_s"),
        (
            "stage_limits_s.train_step=0",
            "small.stage_limits_s.train_step is `0`; expected a number",
        ),
        ("env.RANK=3", "`RANK` in small.env.set is reserved: the tool sets it"),
        ("env.A B=3", "`A B` in small.env.set is not a valid name for a variable"),
    ],
)
def test_setting_is_checked_like_cluster_yaml(suite: Suite, setting: str, words: str) -> None:
    """--cluster-set refuses what cluster.yaml refuses."""
    suite.cluster(SLURM.format(shared=suite.shared))
    suite.phase()
    (line,) = suite.refused("--cluster-set", f"small.{setting}")
    assert line.startswith("--cluster-set: ") and words in line


@pytest.mark.parametrize(
    "words",
    [
        ("--cluster-dry-run",),
        ("--cluster-set", "small.nodes=2"),
        ("--cluster-max-jobs", "2"),
        ("--cluster-wait", "0"),
        ("--cluster-trace", "small"),
        ("--cluster-here",),
        ("--cluster-avoid",),
    ],
)
def test_options_that_need_a_cluster_are_refused_without_one(
    suite: Suite, words: tuple[str, ...]
) -> None:
    """The error names the option."""
    suite.phase()
    assert suite.refused(*words, cluster="") == [f"{words[0]} needs --cluster NAME"]


@pytest.mark.parametrize("value", ["-1", "soon", "1e3", "inf", ""])
def test_wait_in_the_queue_must_be_a_number_of_seconds(suite: Suite, value: str) -> None:
    """The error says what --cluster-wait accepts."""
    result = suite.run(f"--cluster-wait={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"expected a number of seconds, 0 or more, got '{value}'" in result.stderr.str()


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_max_jobs_must_be_a_positive_number(suite: Suite, value: str) -> None:
    """The error says what --cluster-max-jobs accepts."""
    result = suite.run(f"--cluster-max-jobs={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"expected a whole number of at least 1, got '{value}'" in result.stderr.str()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--cluster-trace=smal",),
            "--cluster-trace: no collected phase `smal` runs on one; expected one of small; "
            "did you mean `small`?",
        ),
        (
            ("--cluster-trace=small", "--cluster-trace-ranks=0,3"),
            "--cluster-trace-ranks: phase `small` has 1 rank, and rank 3 was to be traced; "
            "expected ranks from 0 to 0",
        ),
        (("--cluster-trace-ranks=0",), "--cluster-trace-ranks needs --cluster-trace PHASE"),
        (("--cluster-trace-steps=4",), "--cluster-trace-steps needs --cluster-trace PHASE"),
        (
            ("--cluster-trace=small", "--cluster-prove"),
            "--cluster-trace does not run with --cluster-prove, whose phases have staged faults; "
            "omit one of them",
        ),
    ],
)
def test_trace_that_nobody_could_write_is_refused(
    suite: Suite, words: tuple[str, ...], problem: str
) -> None:
    """An unknown phase, a rank that it does not have, half of an order."""
    suite.phase()
    assert suite.refused(*words) == [problem]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "steps=0",
            "expected a step or FIRST-LAST, at most 50 steps counted from 1, such as 10-12; "
            "got '0'",
        ),
        ("steps=12-10", "such as 10-12; got '12-10'"),
        ("steps=1-51", "such as 10-12; got '1-51'"),
        ("steps=all", "such as 10-12; got 'all'"),
        ("ranks=", "expected ranks, counted from 0, such as 0,3 or 0-3; got ''"),
        ("ranks=3-0", "such as 0,3 or 0-3; got '3-0'"),
        ("ranks=-1", "such as 0,3 or 0-3; got '-1'"),
    ],
)
def test_malformed_trace_option_says_what_it_accepts(
    suite: Suite, option: str, expected: str
) -> None:
    """Steps count from 1, ranks from 0."""
    result = suite.run("--cluster-trace=small", f"--cluster-trace-{option}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert expected in result.stderr.str()


def test_trace_of_a_phase_that_is_not_selected_is_a_remark(suite: Suite) -> None:
    """As for a value that --cluster-set changes, the run is no mistake."""
    suite.phase()
    suite.phase("other")
    result = suite.run("--cluster-trace=small", "-k", "other")
    assert result.ret == 0, result.output
    assert "small is not traced, since it is not selected" in result.output


def test_all_problems_are_reported_at_once(suite: Suite) -> None:
    """Markers, names, scripts, hardware and settings: one error lists them all."""
    suite.cluster(phases=dict.fromkeys(["small", "wide"]))
    suite.phase(file="test_a.py")
    suite.phase(file="test_b.py", script="gone.py")
    suite.phase("wide", gpus_per_node=8)
    suite.phase("bad", nodes=0)
    error = "\n".join(suite.refused("--cluster-set", "small.nodse=2"))
    for problem in (
        "two phases are named `small`",
        "the script of phase `small` does not exist",
        "phase `wide` asks for 8 GPUs per node",
        "nodes=0 of phase 'bad'",
        "unknown key `nodse`",
    ):
        assert problem in error


def test_all_preflight_problems_are_reported_at_once(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scheduler and an unusable path: the error lists both."""
    suite.cluster(SLURM.format(shared=suite.shared))
    suite.path.joinpath("a%b.py").write_text("")
    suite.phase(script="a%b.py")
    monkeypatch.setenv("PATH", str(suite.path))
    first, second = suite.refused()
    assert "no `sbatch` on PATH" in first and "contains a `%`" in second


def test_marker_mistakes_are_reported_without_a_cluster(suite: Suite) -> None:
    """A wrong marker is a usage error even if phases would only be skipped."""
    suite.phase(script="gone.py")
    (line,) = suite.refused(cluster="")
    assert "does not exist" in line


def test_usage_error_as_a_user_sees_it(suite: Suite) -> None:
    """`ERROR:` lines on stderr, status 4, no traceback."""
    suite.phase(script="gone.py")
    result = suite.run_apart()
    assert result.ret == 4
    first = next(line for line in result.errlines if line)
    assert first.startswith("ERROR: test_small.py:3: the")
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_problems_of_file_and_markers_are_reported_together(suite: Suite) -> None:
    """A problem in cluster.yaml does not hide a problem in a marker."""
    suite.cluster(shard_dir="x")
    suite.phase(gpus_per_nod=2)
    first, second = suite.refused()
    assert "unknown key `shard_dir`" in first and "unknown argument `gpus_per_nod`" in second
