"""--cluster-list: the clusters of the file, each with its phases; nothing is collected."""

from __future__ import annotations

from tests.support.harness import Suite


def test_clusters_are_listed(suite: Suite) -> None:
    """Each cluster stands with its backend, GPUs and phases; exit status 0."""
    result = suite.run("--cluster-list", cluster="")
    assert result.ret == 0
    text = result.stdout.str()
    assert "one" in text and "local" in text and "2 x any per node" in text
    assert "phases: small" in text
    assert "collected" not in text


def test_a_list_needs_a_file(suite: Suite) -> None:
    """Without cluster.yaml the list is a usage error in words."""
    suite.path.joinpath("cluster.yaml").unlink()
    (line,) = suite.refused("--cluster-list", cluster="")
    assert line.startswith(f"no cluster.yaml in {suite.path}")


def test_a_variable_that_is_not_set_keeps_no_other_cluster_from_the_list(suite: Suite) -> None:
    """One cluster whose variables only its own users set does not hide the others."""
    suite.cluster("""\
        clusters:
          here: {backend: local, shared_dir: /a,
            hardware: {gpu: any, gpus_per_node: 1}, phases: {a: }}
          there: {backend: local, shared_dir: $NOBODY_SETS_THIS/a,
            hardware: {gpu: any, gpus_per_node: 1}, phases: {b: }}
        """)
    result = suite.run("--cluster-list", cluster="")
    assert result.ret == 0
    assert "here" in result.stdout.str() and "there" in result.stdout.str()
    assert "NOBODY_SETS_THIS" in result.stdout.str()
