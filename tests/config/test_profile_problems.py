"""Every mistake in a profile gives one line: where, what is wrong, what was expected, the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.config.cluster_file import ClusterFile, find_config
from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.config.sbatch_options import OWNED
from pytest_clustersmoke.text import UsageProblems

Problems = Callable[..., list[str]]

BASE = """\
clusters:
  one:
    backend: slurm
    shared_dir: /shared
    hardware: {gpu: A100, gpus_per_node: 2}
    phases: {ddp_2gpu: {}}
"""


def added(lines: str) -> str:
    """The base with lines added to the profile; the first of them is line 7."""
    return BASE + "".join(f"    {line}\n" for line in lines.splitlines())


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "slurm: {partion: gpu}",
            "unknown key `partion` in clusters.one.slurm; expected an option of sbatch by its long "
            "name; did you mean `partition`?",
        ),
        (
            "slurm: {time: 1:2:3:4}",
            "clusters.one.slurm.time is `1:2:3:4`; expected minutes, or "
            "[days-]hours:minutes:seconds such as 01:00:00",
        ),
        (
            "slurm: {time: -5}",
            "clusters.one.slurm.time is `-5`; expected minutes, or [days-]hours:minutes:seconds "
            "such as 01:00:00",
        ),
        (
            "slurm: {mem: 5X}",
            "clusters.one.slurm.mem is `5X`; expected megabytes, or a size such as 100G "
            "(0 is all of a node)",
        ),
        (
            "slurm: {cpus-per-task: 0}",
            "clusters.one.slurm.cpus_per_task is `0`; expected a whole number above 0",
        ),
        ("slurm: {partition: true}", "clusters.one.slurm.partition is `true`; expected a name"),
        (
            "slurm: {nice: 1.5}",
            "clusters.one.slurm.nice is `1.5`; expected text, a whole number, or true or false "
            "(false drops the option)",
        ),
        (
            "slurm: {N: 4}",
            "`N` in clusters.one.slurm is not an option of sbatch; expected its long name, "
            "without leading dashes",
        ),
        (
            "slurm: {gres: 'gpu:2'}",
            "`gres: gpu:2` in clusters.one.slurm asks for GPUs; set `gpus_per_node` of the phase "
            "or of `hardware`",
        ),
        ("slurm: 5", "clusters.one.slurm is `5`; expected a mapping of keys"),
        (
            "env: {common: {set: {A-B: 1}}}",
            "`A-B` in clusters.one.env.common.set is not a valid name for a variable; expected "
            "letters, digits and `_`, not starting with a digit",
        ),
        (
            "env: {common: {set: {RANK: 1}}}",
            "`RANK` in clusters.one.env.common.set is reserved: the tool sets it for each "
            "process; remove it",
        ),
        (
            "env: {common: {set: {A: 1}, unset: [A]}}",
            "`A` in clusters.one.env.common.set is under both `set` and `unset`; expected one of "
            "the two",
        ),
        (
            "env: {common: {set: {A: }}}",
            'clusters.one.env.common.set.A is empty; expected text; write "" for an empty value',
        ),
        (
            "env: {singel_node: {}}",
            "unknown key `singel_node` in clusters.one.env; expected one of `common`, "
            "`single_node`, `multi_node`; did you mean `single_node`?",
        ),
        (
            "limits: {max_jobs: two}",
            "clusters.one.limits.max_jobs is `two`; expected a whole number",
        ),
        (
            "limits: {max_jobs: -1}",
            "clusters.one.limits.max_jobs is `-1`; expected a number above 0",
        ),
        (
            "limits: {poll_s: 9}",
            "clusters.one.limits.poll_s is `9`; expected a number of at most 3",
        ),
        (
            "limits: {queue_wait_s: .inf}",
            "clusters.one.limits.queue_wait_s is `inf`; expected a finite number",
        ),
        (
            "limits: {isolate: {test: 9}}",
            "unknown key `test` in clusters.one.limits.isolate; expected one of `tests`, "
            "`minutes`; did you mean `tests`?",
        ),
        (
            "stage_limits_s: {compil: 5}",
            "unknown stage `compil` in clusters.one.stage_limits_s; expected one of `init`, "
            "`peaks`, `data`, `model`, `compile`, `first_step`, `train_step`, `probe`, "
            "`checkpoint`, `reload`; did you mean `compile`?",
        ),
        (
            "require: [transport]",
            "unknown kind of criteria `transport` in clusters.one.require; expected one of "
            "`transports`, `references`, `history`, `peaks`, `health`; did you mean `transports`?",
        ),
        ("require: transports", "clusters.one.require is `transports`; expected a list"),
        ("setup: [' ']", "clusters.one.setup[0] is blank; expected text that is not blank"),
        ("python: 3", "clusters.one.python is `3`; expected text; put it in quotes"),
        ("python: [3]", "clusters.one.python is a list; expected text"),
        ("node_local: [tmp]", "clusters.one.node_local[0] is `tmp`; expected an absolute path"),
        ("lab: yes", "clusters.one.lab is `yes`; expected true or false"),
        (
            "references: {dpp_2gpu: {}}",
            "`dpp_2gpu` in clusters.one.references is not listed under `phases`; expected one of "
            "`ddp_2gpu`; did you mean `ddp_2gpu`?",
        ),
        (
            "expect: {mlp: {}}",
            "`mlp` in clusters.one.expect is not listed under `phases`; expected one of `ddp_2gpu`",
        ),
        (
            "expect: {ddp_2gpu: {inter_node: [net/ib]}}",
            "`net/ib` in clusters.one.expect.ddp_2gpu.inter_node matches no transport; expected a "
            "glob over NCCL's names, such as `P2P/*`, `SHM*`, `NET/IB*`; did you mean `NET`?",
        ),
        (
            "expect: {ddp_2gpu: {gpudirect: requierd}}",
            "clusters.one.expect.ddp_2gpu.gpudirect is `requierd`; expected one of `required`, "
            "`forbidden`, `any`; did you mean `required`?",
        ),
        (
            "expect: {ddp_2gpu: {versions: {touch: 2}}}",
            "unknown name `touch` in clusters.one.expect.ddp_2gpu.versions; expected one of "
            "`python`, `torch`, `cuda`, `cudnn`, `nccl`, `driver`, `deepspeed`, `transformers`, "
            "`peft`, `datasets`, `accelerate`; did you mean `torch`?",
        ),
        (
            "setpu: []",
            "unknown key `setpu` in clusters.one; expected one of `backend`, `description`, "
            "`shared_dir`, `node_local`, `python`, `lab`, `hosts`, `ssh`, `hardware`, `setup`, "
            "`slurm`, `env`, `limits`, `stage_limits_s`, `require`, `peaks`, `sizes`, `phases`, "
            "`references`, `history_check`, `expect`, `known`; did you mean `setup`?",
        ),
        (
            "python: ${PY:-python",
            "`${PY:-python` is an unfinished variable in clusters.one.python; expected "
            "`$NAME`, `${NAME}` or `${NAME:-default}`; write `$$` for a dollar sign",
        ),
    ],
)
def test_mistake_is_reported_in_one_line(problems: Problems, lines: str, expected: str) -> None:
    """A mistake gives exactly one problem, with its line and this text."""
    assert problems(added(lines)) == [f"cluster.yaml:7: {expected}"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("resume: yes", "resume is `yes`; expected a number of steps, 0, true or false"),
        (
            "after: a b",
            "after is `a b`; expected the name of a phase (letters, digits, `_` and `-`), or "
            '"" for none',
        ),
        ("args: {x: .inf}", "args.x is `inf`; expected a finite number"),
    ],
)
def test_mistake_of_a_phase_is_reported_in_one_line(
    problems: Problems, settings: str, expected: str
) -> None:
    """Also of a key that takes values of several kinds."""
    text = BASE.replace("{ddp_2gpu: {}}", f"{{ddp_2gpu: {{{settings}}}}}")
    assert problems(text) == [f"cluster.yaml:6: clusters.one.phases.ddp_2gpu.{expected}"]


@pytest.mark.parametrize(
    ("metric", "reference", "expected"),
    [
        (
            "step_per_s",
            "{value: 1, unit: steps/s, lower: -10 %, source: x}",
            "unknown metric `step_per_s` in clusters.one.references.ddp_2gpu; expected one of "
            f"{', '.join(f'`{name}`' for name in METRICS)}; did you mean `steps_per_s`?",
        ),
        (
            "peak_memory_gib",
            "{value: 1, unit: GB, upper: +10 %, source: x}",
            "clusters.one.references.ddp_2gpu.peak_memory_gib.unit is `GB`; expected `GiB`, the "
            "unit of peak_memory_gib; convert the value if it was measured in another unit",
        ),
        (
            "steps_per_s",
            "{value: 1, unit: steps/s, lower: -0.1, source: x}",
            "clusters.one.references.ddp_2gpu.steps_per_s.lower is `-0.1`; expected a percentage "
            "such as `-10 %` (is -0.1 a fraction or a percentage?)",
        ),
        (
            "steps_per_s",
            "{value: 1, unit: steps/s, lower: 10 %, source: x}",
            "clusters.one.references.ddp_2gpu.steps_per_s.lower is `10 %`; expected more than "
            "-100 % and at most 0 %: how far a measurement may fall below the value",
        ),
        (
            "steps_per_s",
            "{value: 1, unit: steps/s, upper: -1 %, source: x}",
            "clusters.one.references.ddp_2gpu.steps_per_s.upper is `-1 %`; expected at least 0 %: "
            "how far a measurement may exceed the value",
        ),
        (
            "steps_per_s",
            "{value: 1, unit: steps/s, source: x}",
            "clusters.one.references.ddp_2gpu.steps_per_s has no bound, so it can never fail; "
            "expected `lower` or `upper`, such as `lower: -10 %`",
        ),
        (
            "steps_per_s",
            "{value: -1, unit: steps/s, lower: -10 %, source: x}",
            "clusters.one.references.ddp_2gpu.steps_per_s.value is `-1`; expected a number above 0",
        ),
        (
            "steps_per_s",
            "{value: 1, unit: steps/s, lower: -10 %}",
            "clusters.one.references.ddp_2gpu.steps_per_s has no `source`; expected `source` "
            "(where the value comes from, for the reader of a failure)",
        ),
    ],
)
def test_invalid_reference_is_refused(
    problems: Problems, metric: str, reference: str, expected: str
) -> None:
    """Metrics, units and tolerances are checked before anything is measured against them."""
    text = added(f"references:\n  ddp_2gpu:\n    {metric}: {reference}")
    assert problems(text) == [f"cluster.yaml:9: {expected}"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "backend: slurm",
            "backend: slrum",
            "3: clusters.one.backend is `slrum`; expected one of `local`, `slurm`, `ssh`; did you "
            "mean `slurm`?",
        ),
        (
            "    backend: slurm\n",
            "",
            "2: clusters.one has no `backend`; expected `backend` (how jobs are run: on this "
            "machine, by Slurm, or on hosts without a scheduler)",
        ),
        (
            "/shared",
            "shared",
            "4: clusters.one.shared_dir is `shared`; expected an absolute path",
        ),
        (
            "/shared",
            "/sha%red",
            "4: clusters.one.shared_dir is `/sha%red`; expected a path without `%` or control "
            "characters, which sbatch would misread",
        ),
        (
            "/shared",
            '"/sha\\nred"',
            "4: clusters.one.shared_dir is `/sha red`; expected a path without `%` or control "
            "characters, which sbatch would misread",
        ),
        (
            "/shared",
            "/tmp/runs\n    node_local: [/tmp]",
            "4: `shared_dir` in clusters.one is /tmp/runs, below /tmp, which nodes do not share; "
            "expected a directory that every node sees under the same path",
        ),
        (
            "gpus_per_node: 2",
            "gpus_per_node: -2",
            "5: clusters.one.hardware.gpus_per_node is `-2`; expected a number above 0",
        ),
        (
            "gpu: A100",
            "gpu: none",
            "5: `gpu: none` in clusters.one.hardware without `device: cpu`; expected the "
            "GPU's name, or `device: cpu`",
        ),
        (
            "{ddp_2gpu: {}}",
            "{ddp_2gpu: {gpus_per_node: 8}}",
            "6: clusters.one.phases.ddp_2gpu asks for 8 GPUs per node, but the hardware has 2; "
            "expected at most 2",
        ),
        (
            "{ddp_2gpu: {}}",
            "{ddp_2gpu: {nods: 8}}",
            "6: unknown key `nods` in clusters.one.phases.ddp_2gpu; expected one of `nodes`, "
            "`gpus_per_node`, `timeout_s`, `launcher`, `after`, `proof`, `proof_steps`, "
            "`peaks`, `resume`, `sweep`, `nodes_fixed`, `writes_gib`, `slurm`, `args`, `env`, "
            "`stage_limits_s`; "
            "did you mean `nodes`?",
        ),
        (
            "{ddp_2gpu: {}}",
            "{ddp.2gpu: {}}",
            "6: `ddp.2gpu` in clusters.one.phases is not a valid name for a phase; expected "
            "letters, digits, `_` and `-`",
        ),
        (
            "{ddp_2gpu: {}}",
            "{ddp_2gpu: {args: {hidden size: 1}}}",
            "6: `hidden size` in clusters.one.phases.ddp_2gpu.args is not a valid name for an "
            "argument; expected letters, digits and `_`, starting with a letter",
        ),
        (
            "{ddp_2gpu: {}}",
            "{ddp_2gpu: {args: {sizes: [1]}}}",
            "6: clusters.one.phases.ddp_2gpu.args.sizes is a list; expected text, a number, true, "
            "false or null",
        ),
        (
            "{ddp_2gpu: {}}",
            "{}",
            "6: clusters.one.phases is empty; expected the phases that run here, with this "
            "cluster's settings for each",
        ),
        (
            "clusters:",
            "cluster: 1\nclusters:",
            "1: unknown key `cluster` at the top; expected `clusters`, or a key that starts with "
            "`x-` (for anchors); did you mean `clusters`?",
        ),
    ],
)
def test_mistake_in_a_required_key_is_reported_in_one_line(
    problems: Problems, old: str, new: str, expected: str
) -> None:
    """A mistake in a key that every profile has gives exactly one problem, at its line."""
    assert problems(BASE.replace(old, new)) == [f"cluster.yaml:{expected}"]


def test_slurm_options_under_a_local_backend_are_refused(problems: Problems) -> None:
    """Options that nothing would read are refused, on the profile and on its phases."""
    text = added("slurm: {partition: gpu}\nlab: true").replace("backend: slurm", "backend: local")
    text = text.replace("{ddp_2gpu: {}}", "{ddp_2gpu: {slurm: {qos: x}}}")
    local = "but the profile's backend is `local`"
    tail = (
        f"has sbatch options, {local}; expected no options, since nothing is submitted to Slurm; "
        "remove them, or set `backend: slurm`"
    )
    assert problems(text) == [
        f"cluster.yaml:6: clusters.one.phases.ddp_2gpu.slurm {tail}",
        f"cluster.yaml:7: clusters.one.slurm {tail}",
        f"cluster.yaml:8: `lab: true` in clusters.one, {local}; expected `backend: slurm`, since "
        "the lab runs Slurm",
    ]


@pytest.mark.parametrize("option", sorted(OWNED))
def test_options_reserved_for_the_tool_are_refused(problems: Problems, option: str) -> None:
    """An option that the tool sets itself is refused with what to do instead."""
    assert problems(added(f"slurm: {{{option.replace('_', '-')}: x}}")) == [
        f"cluster.yaml:7: `{option}` in clusters.one.slurm is reserved for the tool; "
        f"{OWNED[option]}"
    ]


def test_rules_between_keys_are_checked_despite_other_mistakes(problems: Problems) -> None:
    """A mistake in one key does not hide a contradiction between two others."""
    text = added(
        "setpu: []\n"
        "node_local: [/shared]\n"
        "slurm: {partion: gpu, time: soon}\n"
        "references: {dpp_2gpu: {}}\n"
        "known: [{phase: mlp, criterion: job, reason: x, until: 2020-01-01}]"
    ).replace("{ddp_2gpu: {}}", "{ddp_2gpu: {nods: 1, nodes: 9}}")
    lines = [
        problem.split(":")[1] for problem in problems(text.replace("node: 2", "node: 2, nodes: 4"))
    ]
    assert lines == ["4", "6", "6", "7", "9", "9", "10", "11"]


def test_all_problems_are_reported_at_once(problems: Problems) -> None:
    """Problems of several profiles come together, in the order of their lines."""
    second = BASE.replace("clusters:\n", "").replace("  one:", "  two:")
    text = (BASE + second).replace("gpu: A100", "gpus: A100").replace("/shared", "shared")
    lines = [problem.split(":")[1] for problem in problems(text)]
    assert lines == ["4", "5", "5", "9", "10", "10"]


def test_unknown_profile_is_refused_with_a_near_match(
    loaded: Callable[..., ClusterFile], tmp_path: Path
) -> None:
    """The problem lists the names that are in the file."""
    with pytest.raises(UsageProblems) as raised:
        loaded(BASE).profile("onee")
    assert str(raised.value).replace(f"{tmp_path}/", "") == (
        "--cluster: no profile `onee` in cluster.yaml; expected one of `one`; did you mean `one`?"
    )


def test_missing_file_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named file has precedence over the one in the root directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageProblems) as raised:
        find_config(tmp_path, None)
    assert str(raised.value) == (
        f"no cluster.yaml in {tmp_path}; expected a file of profiles there; write one "
        "(`clustersmoke init`), or name one with --cluster-config"
    )
    (tmp_path / "cluster.yaml").write_text(BASE)
    assert find_config(tmp_path, None) == tmp_path / "cluster.yaml"
    with pytest.raises(UsageProblems) as raised:
        find_config(tmp_path, f"{tmp_path}/other.yaml")
    assert str(raised.value) == (
        f"--cluster-config: no such file: {tmp_path}/other.yaml; expected a file of profiles"
    )


SSH = """\
clusters:
  one:
    backend: ssh
    shared_dir: /shared
    hardware: {gpu: any, gpus_per_node: 2}
    phases: {small: }
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", "3: `backend: ssh` in clusters.one without `hosts`; expected a list of hosts"),
        (
            "    hosts: [-oUser=x]\n",
            "7: clusters.one.hosts[0].host is `-oUser=x`; expected a host's name or address",
        ),
        (
            "    hosts: [me@a]\n",
            "7: clusters.one.hosts[0].host is `me@a`; expected a host's name or address alone; "
            "write {host: a, user: me}",
        ),
        (
            "    hosts: [a, {host: a, port: 22}]\n",
            "7: `a` is in clusters.one.hosts twice; expected each host once; remove it",
        ),
        (
            "    hosts: [{host: a, port: 0}]\n",
            "7: clusters.one.hosts[0].port is `0`; expected a number of at least 1",
        ),
        (
            "    hosts: [a]\n    ssh: {user: -l}\n",
            "8: clusters.one.ssh.user is `-l`; expected a user's name",
        ),
        (
            "    hosts: [7]\n",
            "7: clusters.one.hosts[0] is `7`; expected a host's name or address, or a mapping with "
            "`host`",
        ),
    ],
)
def test_mistake_in_hosts_is_reported_in_one_line(
    problems: Problems, lines: str, expected: str
) -> None:
    """A name that `ssh` would take for an option is refused as well."""
    assert problems(SSH + lines) == [f"cluster.yaml:{expected}"]


def test_hosts_of_another_backend_are_refused(problems: Problems) -> None:
    text = SSH.replace("backend: ssh", "backend: local") + "    hosts: [a]\n    ssh: {user: me}\n"
    assert [problem.split(";")[0] for problem in problems(text)] == [
        f"cluster.yaml:{line}: `{key}` in clusters.one, but the profile's backend is `local`"
        for line, key in ((7, "hosts"), (8, "ssh"))
    ]
