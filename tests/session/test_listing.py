"""--cluster-list: the clusters of the file and their phases; nothing is collected."""

from __future__ import annotations

from tests.support.harness import Suite


def test_clusters_are_listed(suite: Suite) -> None:
    """Each cluster has its backend, GPUs and phases; exit status 0."""
    result = suite.run("--cluster-list", cluster="")
    assert result.ret == 0
    text = result.stdout.str()
    assert "one" in text and "local" in text and "2 x any per node" in text
    assert "phases: small" in text
    assert "collected" not in text


def test_list_needs_a_cluster_file(suite: Suite) -> None:
    """Without cluster.yaml the list is a usage error."""
    suite.path.joinpath("cluster.yaml").unlink()
    (line,) = suite.refused("--cluster-list", cluster="")
    assert line.startswith(f"no cluster.yaml in {suite.path}")


def test_unset_variable_of_one_cluster_does_not_hide_the_others(suite: Suite) -> None:
    """Some variables are set by the users of one cluster only."""
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
