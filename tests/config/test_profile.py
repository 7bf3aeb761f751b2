"""Loaded profiles: variables, values as written, bounds, and the lines of keys."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.config.cluster_file import ClusterFile
from pytest_clustersmoke.config.expansion import MalformedVariableError, expand
from pytest_clustersmoke.config.expectations import Reference
from pytest_clustersmoke.config.profile import STAGE_LIMITS_S, Profile

Profiles = Callable[..., Profile]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$A/$B", "a/b"),
        ("${A}b", "ab"),
        ("${NONE:-x}", "x"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${A:-$NONE}", "a"),
        ("${NONE:-$A/${ALSO:-${B}c}}/d", "a/bc/d"),
        ("$$A and $ and 5$", "$A and $ and 5$"),
        ("{$A}", "{a}"),
    ],
)
def test_variables_are_filled_in(text: str, expected: str) -> None:
    """Names, defaults, defaults inside defaults, and dollar signs are expanded as in a shell."""
    unset: list[str] = []
    assert expand(text, {"A": "a", "B": "b", "EMPTY": ""}.get, unset) == expected
    assert unset == []


@pytest.mark.parametrize("text", ["${", "${A", "${A:-b", "${A:-${B}", "${A?}", "${}", "${1}"])
def test_unfinished_variable_is_refused(text: str) -> None:
    """Text that starts a variable but does not finish it is an error."""
    with pytest.raises(MalformedVariableError):
        expand(text, lambda name: "x", [])


def test_unset_variable_matters_only_in_the_chosen_profile(
    loaded: Callable[..., ClusterFile], problems: Callable[..., list[str]], one_slurm: str
) -> None:
    """Variables of other profiles are ignored; those of the chosen one are all reported."""
    text = one_slurm.replace("/shared", "/x/$CS_A/${CS_B}")
    other = one_slurm.replace("clusters:\n", "").replace("  one:", "  two:")
    assert loaded(text + other).profile("two").name == "two"
    assert problems(text + other) == [
        f"cluster.yaml:4: the variable {name} in clusters.one.shared_dir is not set; expected a "
        f"value, or a default, as in `${{{name}:-default}}`; export {name}, or add a default"
        for name in ("CS_A", "CS_B")
    ]


def test_value_is_checked_after_expansion(
    problems: Callable[..., list[str]], profile: Profiles, one_slurm: str
) -> None:
    """A variable cannot bring in a value that would be refused in the file itself."""
    text = one_slurm.replace("/shared", "$CS_DIR") + "    slurm: {time: $CS_TIME}\n"
    assert profile(text, CS_DIR="/a", CS_TIME="30").slurm == {"time": "30"}
    assert problems(text, CS_DIR="a", CS_TIME="soon") == [
        "cluster.yaml:4: clusters.one.shared_dir is `a`; expected an absolute path",
        "cluster.yaml:7: clusters.one.slurm.time is `soon`; expected minutes, or "
        "[days-]hours:minutes:seconds such as 01:00:00",
    ]


def test_user_and_home_come_from_the_password_file(profile: Profiles, one_slurm: str) -> None:
    """Paths with USER and HOME work under cron, which sets neither."""
    entry = pwd.getpwuid(os.getuid())
    text = one_slurm.replace("/shared", "$HOME/$USER")
    assert profile(text).shared_dir == Path(entry.pw_dir, entry.pw_name)
    assert profile(text, HOME="/h", USER="u").shared_dir == Path("/h/u")
    assert profile(one_slurm.replace("/shared", "~/x"), HOME="/h").shared_dir == Path("/h/x")


def test_setup_lines_are_left_to_the_node(profile: Profiles, one_slurm: str) -> None:
    """The node's shell expands `setup`; nothing in it is checked here."""
    text = one_slurm + "    setup: ['cd $SLURM_TMPDIR', 'echo ${x%%.*} $$']\n"
    assert profile(text).setup == ("cd $SLURM_TMPDIR", "echo ${x%%.*} $$")


def test_text_values_stay_as_written(profile: Profiles, one_slurm: str) -> None:
    """Variables and versions keep the form that the file gives them."""
    chosen = profile(
        one_slurm + "    env: {common: {set: {A: 1, B: 1.50, C: true, D: 007, E: 1e3, F: ''}}}\n"
        "    expect: {ddp_2gpu: {versions: {torch: 2.10}}}\n"
    )
    assert chosen.env.common.set == {
        "A": "1", "B": "1.50", "C": "true", "D": "007", "E": "1e3", "F": "",
    }  # fmt: skip
    assert chosen.expect["ddp_2gpu"].versions == {"torch": "2.10"}


def test_options_keep_their_type_and_empty_ones_are_dropped(
    profile: Profiles, one_slurm: str
) -> None:
    """Numbers, flags and texts of sbatch options are kept; an empty value is `false`."""
    chosen = profile(
        one_slurm
        + "    slurm: {time: 01:00:00, cpus-per-task: 8, exclusive: true, qos: , mem: 0, x-y: 1}\n"
    )
    assert chosen.slurm == {
        "time": "01:00:00", "cpus_per_task": 8, "exclusive": True, "qos": False, "mem": 0, "x_y": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "time", ["30", "30:00", "1:30:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED", "'90'"]
)
def test_every_form_of_slurm_time_is_accepted(profile: Profiles, one_slurm: str, time: str) -> None:
    """All forms that sbatch documents are accepted, minutes as a number too."""
    assert str(profile(f"{one_slurm}    slurm: {{time: {time}}}\n").slurm["time"]) == time.strip(
        "'"
    )


def test_plugin_options_are_accepted(profile: Profiles, one_slurm: str) -> None:
    """An option that resembles none of sbatch's may belong to a plugin."""
    options = {"container_image": "a.sqsh", "singularity": "x", "bee_gfs": "y"}
    listed = ", ".join(f"{name}: {value}" for name, value in options.items())
    assert profile(f"{one_slurm}    slurm: {{{listed}}}\n").slurm == options


def test_missing_stage_limits_keep_their_defaults(profile: Profiles, one_slurm: str) -> None:
    """A profile that sets one limit keeps the others; one that sets none has them all."""
    assert profile(one_slurm).stage_limits_s == STAGE_LIMITS_S
    chosen = profile(one_slurm + "    stage_limits_s: {init: 7}\n")
    assert chosen.stage_limits_s == {**STAGE_LIMITS_S, "init": 7}
    assert chosen.phases["ddp_2gpu"].stage_limits_s == {}


def test_where_gives_the_line_of_a_value(profile: Profiles, one_slurm: str) -> None:
    """The line of a key, even behind an anchor; for a missing key, its parent's line."""
    chosen = profile(
        "x-args: &args\n  hidden-size: 5\n"
        + one_slurm.replace("{ddp_2gpu: }", "\n      ddp_2gpu:\n        args: *args")
    )
    places = {
        ("phases", "ddp_2gpu", "args", "hidden_size"): 2,
        ("phases", "ddp_2gpu", "args", "hidden-size"): 2,
        ("phases", "ddp_2gpu", "args", "steps"): 10,
        ("phases", "ddp_2gpu", "nodes"): 9,
        ("slurm",): 4,
    }
    lines = {route: int(chosen.where(*route).rpartition(":")[2]) for route in places}
    assert lines == places


def test_paths_are_shown_relative_to_the_working_directory(
    loaded: Callable[..., ClusterFile],
    one_slurm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file below the working directory is shown as a user would type it."""
    monkeypatch.chdir(tmp_path)
    assert loaded(one_slurm).profile("one").where("shared_dir") == "cluster.yaml:4"


def test_bounds_follow_from_value_and_tolerance() -> None:
    """A side without a tolerance has no bound."""
    below = Reference.model_validate(
        {"value": 200, "lower": "-10 %", "unit": "steps/s", "source": "x"}
    )
    assert below.low == pytest.approx(180)
    assert below.high is None
    above = Reference.model_validate({"value": 2, "upper": "+5%", "unit": "GiB", "source": "x"})
    assert above.low is None
    assert above.high == pytest.approx(2.1)
