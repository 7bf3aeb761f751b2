"""Which nodes a constraint lets a job have."""

from __future__ import annotations

import subprocess

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.jobs.node_constraint import NodeConstraint
from tests.support.labs import running_lab

# Node n0 has the features a and b, and so on.
FEATURES = ("ab", "a", "b", "bc", "c", "")
ALLOWED = {
    "a": "ab a",
    "a&b": "ab",
    "a|b": "ab a b bc",
    "a|c&b": "ab bc",  # from left to right
    "a&b|c": "ab bc c",
    "a|(c&b)": "ab a bc",
    "(a|c)&b": "ab bc",
    "[a|c]": "ab a bc c",
    "b&[a|c]": "ab bc",
}
COUNTS = {
    "[a*2&c*1]": "ab a bc c",
    "[(a&b)*1&c*2]": "ab bc c",
    "a*2": "ab a b bc c -",
    "a*2&b": "ab b bc",
}


def find_allowed(text: str) -> str:
    constraint = NodeConstraint.parse(text)
    assert constraint.is_understood
    return " ".join(words or "-" for words in FEATURES if constraint.allows(words))


@pytest.mark.parametrize(("text", "allowed"), [*ALLOWED.items(), *COUNTS.items()])
def test_nodes_are_allowed_as_sbatch_documents_it(text: str, allowed: str) -> None:
    """In brackets, terms with counts are for nodes of their own; outside of them, a count says
    nothing of the other nodes."""
    assert find_allowed(text) == allowed


@pytest.mark.parametrize("text", ["a,b", "a&", "&a", "(a", "a)", "[a", "a*b", "!a", "a||b", "a b"])
def test_form_that_sbatch_does_not_document_allows_every_node(text: str) -> None:
    constraint = NodeConstraint.parse(text)
    assert not constraint.is_understood and not constraint.names
    assert all(constraint.allows(words) for words in FEATURES)


def test_no_constraint_allows_every_node() -> None:
    constraint = NodeConstraint.parse("")
    assert constraint.is_understood and constraint.allows(()) and constraint.is_plain


def test_names_are_those_of_features() -> None:
    constraint = NodeConstraint.parse("h100-sxm&[rack.1*2&rack.2*4]")
    assert constraint.names == {"h100-sxm", "rack.1", "rack.2"} and not constraint.is_plain


@pytest.mark.lab
@pytest.mark.slow
def test_slurm_allows_the_same_nodes() -> None:
    """Asked for each node whether a job with the constraint may run there, if all others are
    excluded. `sbatch --test-only` does not look into brackets, so a job runs."""
    with running_lab(lab.LabSettings(name="constraint", nodes=len(FEATURES))) as running:
        environ = {"SLURM_CONF": str(running.slurm_conf), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

        def slurm(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)

        for node, words in zip(running.nodes, FEATURES, strict=True):
            own = ",".join(words)
            update = ("scontrol", "update", f"NodeName={node}")
            done = slurm(*update, f"AvailableFeatures={own}", f"ActiveFeatures={own}")
            assert done.returncode == 0, done.stderr
        for text, allowed in ALLOWED.items():
            command = ["srun"] if "[" in text else ["sbatch", "--test-only"]
            taken = []
            for node, words in zip(running.nodes, FEATURES, strict=True):
                others = ",".join(other for other in running.nodes if other != node)
                options = ("--nodes=1", f"--constraint={text}", f"--exclude={others}")
                done = slurm(*command, *options, "true" if "[" in text else "--wrap=true")
                refused = "Requested node configuration is not available" in done.stderr
                assert refused == (done.returncode != 0), done.stderr
                taken += [] if refused else [words or "-"]
            assert " ".join(taken) == allowed, text
