"""sbatch's options: which exist, which the tool reserves, and the form of their values."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from .field_types import Misfits, has_variables, misfit, profile_value, raise_misfits

# Long options of sbatch 22.05 to 25.05, and those of the pyxis plugin. Other options are accepted,
# since plugins add their own; only what looks like a misspelling of one of these is refused.
KNOWN = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment
    consolidate-segments constraint container container-entrypoint container-env container-id
    container-image container-mount-home container-mounts container-name container-readonly
    container-remap-root container-save container-workdir container-writable contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid
    gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint
    hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem
    mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist
    nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step
    open-mode output overcommit oversubscribe parsable partition power prefer priority profile
    propagate qos quiet reboot requeue reservation resv-ports segment signal sockets-per-node
    spread-job spread-segments stepmgr switches test-only thread-spec threads-per-core time
    time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose version wait
    wait-all-nodes wckey wrap
    """.replace("-", "_").split()
)

_NODES = "set `nodes` of the phase"
_GPUS = "set `gpus_per_node` of the phase or of `hardware`"
_ONE_TASK = "remove it: each node runs one task, which starts a rank per GPU"
_OWN_FILES = "remove it: output goes to files in the run's directory under `shared_dir`"
_OWN_NAME = "remove it: names and comments are how the tool finds its jobs"
_ONE_JOB = "remove it: each phase is one job, submitted once"
_ENVIRONMENT = "set variables under `env`"
_PRINTS = "remove it: it keeps sbatch from submitting"

# Options that the tool sets itself or that would break it, and what to do instead.
OWNED: dict[str, str] = {
    "nodes": _NODES,
    "nodefile": _NODES,
    "gpus_per_node": _GPUS,
    "gpus": _GPUS,
    "gpus_per_task": _GPUS,
    "gpus_per_socket": _GPUS,
    "tres_per_task": _GPUS,
    "ntasks": _ONE_TASK,
    "ntasks_per_node": _ONE_TASK,
    "ntasks_per_gpu": _ONE_TASK,
    "ntasks_per_core": _ONE_TASK,
    "ntasks_per_socket": _ONE_TASK,
    "overcommit": _ONE_TASK,
    "output": _OWN_FILES,
    "error": _OWN_FILES,
    "input": _OWN_FILES,
    "open_mode": _OWN_FILES,
    "chdir": "write a `cd` line under `setup`",
    "job_name": _OWN_NAME,
    "comment": _OWN_NAME,
    "array": _ONE_JOB,
    "jobid": "remove it, and use --cluster-here: it runs phases in an allocation",
    "requeue": _ONE_JOB,
    "no_requeue": _ONE_JOB,
    "wait": "remove it: the tool waits for its jobs itself",
    "signal": "remove it: the tool watches its ranks and ends them itself",
    "no_kill": "remove it: a lost node must end the job",
    "export": _ENVIRONMENT,
    "export_file": _ENVIRONMENT,
    "get_user_env": _ENVIRONMENT,
    "wrap": "write shell lines under `setup`",
    "parsable": "remove it: the tool reads sbatch's answer itself",
    "clusters": "remove it, and run on a login node of that cluster",
    "help": _PRINTS,
    "usage": _PRINTS,
    "version": _PRINTS,
    "test_only": _PRINTS,
}
OFFERED = tuple(sorted(KNOWN - OWNED.keys()))

# Stricter than "did you mean", which only suggests: a plugin's option may look similar to sbatch's.
_MISSPELLING_RATIO = 0.85

_TIME = re.compile(r"\d+|\d+:\d\d?|\d+:\d\d?:\d\d?|\d+-\d+(?::\d\d?){0,2}|UNLIMITED|INFINITE", re.I)
_MEMORY = re.compile(r"\d+(?:[KMGT]B?)?", re.I)
_COUNT = re.compile(r"[1-9]\d*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+/:\-]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]+")

TIME_FORM = "minutes, or [days-]hours:minutes:seconds such as 01:00:00"
_MEMORY_FORM = "megabytes, or a size such as 100G (0 is all of a node)"
_COUNT_FORM = "a whole number above 0"
_NAME_FORM = "a name"
_FORMS: dict[str, tuple[re.Pattern[str], str]] = {
    "time": (_TIME, TIME_FORM),
    "time_min": (_TIME, TIME_FORM),
    "mem": (_MEMORY, _MEMORY_FORM),
    "mem_per_cpu": (_MEMORY, _MEMORY_FORM),
    "mem_per_gpu": (_MEMORY, _MEMORY_FORM),
    "tmp": (_MEMORY, _MEMORY_FORM),
    "cpus_per_task": (_COUNT, _COUNT_FORM),
    "cpus_per_gpu": (_COUNT, _COUNT_FORM),
    "mincpus": (_COUNT, _COUNT_FORM),
    "threads_per_core": (_COUNT, _COUNT_FORM),
    "account": (_NAME, _NAME_FORM),
    "partition": (_NAME, _NAME_FORM),
    "qos": (_NAME, _NAME_FORM),
    "reservation": (_NAME, _NAME_FORM),
}


def normalize_option(key: str) -> str:
    """One form for `cpus-per-task` and `cpus_per_task`."""
    return key.replace("-", "_")


def _options(values: Any, info: ValidationInfo) -> dict[str, str | int | bool]:
    """The options of a `slurm` section; an empty one becomes `false`, which drops it."""
    if not isinstance(values, dict):
        raise PydanticKnownError("dict_type")
    backend = profile_value(info, "backend")
    if values and backend in ("local", "ssh"):
        raise misfit(
            "no options, since nothing is submitted to Slurm",
            "remove them, or set `backend: slurm`",
            f"{{key}} has sbatch options, but the profile's backend is `{backend}`",
        )
    misfits: Misfits = [
        ((key,), error, value)
        for key, value in values.items()
        if (error := _check_key(key) or _check_value(key, value, info)) is not None
    ]
    raise_misfits(misfits)
    return {key: False if value is None else value for key, value in values.items()}


def _check_key(key: str) -> PydanticCustomError | None:
    if todo := OWNED.get(key):
        return misfit("", todo, f"`{key}` in {{at}} is reserved for the tool")
    if not _OPTION_NAME.fullmatch(key):
        return misfit(
            "its long name, without leading dashes",
            "",
            f"`{key}` in {{at}} is not an option of sbatch",
        )
    if option := _find_misspelling(key):
        todo, what = f"did you mean `{option}`?", f"unknown key `{key}` in {{at}}"
        return misfit("an option of sbatch by its long name", todo, what)
    return None


def _check_value(key: str, value: Any, info: ValidationInfo) -> PydanticCustomError | None:
    if isinstance(value, str) and ("\n" in value or not value.strip()):
        return misfit("one line of text that is not blank")
    if value is not None and not isinstance(value, str | int):
        return misfit("text, a whole number, or true or false (false drops the option)")
    if value is None or value is False or (isinstance(value, str) and has_variables(value, info)):
        return None
    if key == "gres" and _asks_for_gpus(str(value)):
        return misfit("", OWNED["gpus"], f"`gres: {value}` in {{at}} asks for GPUs")
    pattern, form = _FORMS.get(key, (None, ""))
    # `true` writes an option without a value, but these options all need one.
    wrong = pattern and (value is True or not pattern.fullmatch(str(value)))
    return misfit(form) if wrong else None


def _find_misspelling(key: str) -> str:
    """The known option that an unknown one misspells; otherwise empty."""
    if key in KNOWN:
        return ""
    close = difflib.get_close_matches(key, KNOWN, n=1, cutoff=_MISSPELLING_RATIO)
    return close[0] if close else ""


def _asks_for_gpus(gres: str) -> bool:
    """Whether a `gres` option counts GPUs, as `--gres=gpu:2` does."""
    return any(part.split("/")[-1].split(":")[0] == "gpu" for part in gres.split(","))


_OPTION_SCHEMA = {"type": ["string", "integer", "boolean", "null"]}
Options = Annotated[
    dict[str, str | int | bool],
    PlainValidator(_options),
    WithJsonSchema({"type": "object", "additionalProperties": _OPTION_SCHEMA}),
]


def parse_time_limit(limit: str | int) -> float:
    """The seconds of a time limit in any of sbatch's forms: "minutes", "minutes:seconds",
    "hours:minutes:seconds", "days-hours", "days-hours:minutes", "days-hours:minutes:seconds" (man
    sbatch, --time)."""
    text = str(limit)
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # from the hours down
        hours, minutes, secs = (*parts, 0, 0)[:3]
        return float(((int(days) * 24 + hours) * 60 + minutes) * 60 + secs)
    if len(parts) == 1:
        return 60.0 * parts[0]
    hours, minutes, secs = (0, *parts)[-3:]
    return float((hours * 60 + minutes) * 60 + secs)
