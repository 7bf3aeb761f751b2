"""What a node runs is the same, whatever starts it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.jobs.backend import Refused, Submission, make_backend, prepare_jobs
from pytest_clustersmoke.jobs.batch_script import nameless_script, sbatch_options, write_call
from tests.support.evidence import make_phase, make_profile

BACKENDS: dict[str, tuple[dict[str, Any], bool]] = {
    "local": ({"backend": "local"}, False),
    "slurm": ({"backend": "slurm"}, False),
    "allocation": ({"backend": "slurm"}, True),
    "ssh": ({"backend": "ssh", "hosts": ["a", "b"]}, False),
}


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_backend_prepares_its_nodes_alike(tmp_path: Path, kind: str) -> None:
    """The setup lines, then the profile's variables, which override what a module sets, and then
    our Python."""
    keys, here = BACKENDS[kind]
    env = {"multi_node": {"set": {"A": "it's"}, "unset": ["B"]}}
    profile = make_profile(tmp_path, setup=["module load cuda"], env=env, **keys)
    backend = make_backend(profile, {}, here)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    script = backend.script(Submission(make_phase(profile, nodes=2), directory))
    lines = script.splitlines()
    order = [lines.index(line) for line in ("module load cuda", "unset B", "export A='it'\"'\"'s'")]
    start = f" -u -m pytest_clustersmoke.node.job_entry {directory.run.root} phases/small TOKEN"
    order.append(next(number for number, line in enumerate(lines) if start in line))
    assert lines[0] == "#!/bin/bash" and order == sorted(order)
    assert ("export SUBMITIT_EXECUTOR=slurm" in lines) == (kind in ("slurm", "allocation"))


def test_nameless_script_has_all_that_jobs_differ_in_but_names_and_arguments(
    tmp_path: Path,
) -> None:
    """Environment and sbatch options: a task of an array has those of its first."""
    phases = {
        "a": None,
        "b": None,
        "env": {"env": {"set": {"X": "1"}}},
        "time": {"slurm": {"time": 6}},
    }
    profile = make_profile(tmp_path, backend="slurm", phases=phases, setup=["true"])
    backend = make_backend(profile, {})
    scripts = {
        name: nameless_script(make_phase(profile, name, args={"x": name}), backend)
        for name in phases
    }
    assert scripts["a"] == scripts["b"] != scripts["env"]
    options = {name: sbatch_options(script) for name, script in scripts.items()}
    assert options["a"] == options["env"] != options["time"]


def test_call_of_a_submission_never_has_the_token_of_another(tmp_path: Path) -> None:
    """A controller that has taken the run over has written a spec of its own meanwhile: that job
    has another name, and would claim the phase for a submission that nobody watches."""
    profile = make_profile(tmp_path, backend="slurm")
    phase, directory = make_phase(profile), PhaseDir(tmp_path / "run1" / "phases" / "small")
    (first,) = prepare_jobs([phase], profile, [directory])
    (second,) = prepare_jobs([phase], profile, [directory])
    with pytest.raises(Refused, match=r"spec\.json is another submission's"):
        write_call(first)
    write_call(second)
    assert not directory.call(first.token).exists()
    call = DelayedSubmission.load(directory.call(second.token))
    assert call.args[0]["token"] == second.token
