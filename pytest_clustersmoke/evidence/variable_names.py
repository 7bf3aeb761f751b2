"""Judges environment variables by name: read by NCCL, torch, a plugin, a build, or by nothing.

The known names are in data files of the package (`nccl_env_vars.txt`, `torch_env_vars.txt`), with
the versions that they were taken from.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ..text import NOTE, WARNING, Problem, near

FAMILIES = ("TORCH_NCCL_", "TORCH_GLOO_", "NCCL_", "GLOO_")
NCCL_CHECKED, TORCH_CHECKED = "2.30.7", "2.2 to 2.13"
# Variables of other families are never read, printed or stored.
NAME = re.compile(rf"(?:{'|'.join(FAMILIES)})[A-Za-z0-9_]{{1,100}}")
MAX_VARIABLES = 500
# Values are stored and shown up to this many characters.
MAX_KEPT, MAX_SHOWN = 1000, 60
# GLOO_ is also the prefix of a gateway, whose users keep licence keys and client secrets there.
SECRET = re.compile(
    r"(?:^|_)(?:API)?(?:KEYS?|SECRETS?|TOKENS?|CREDENTIALS?|AUTH(?:ORIZATION)?)(?:_|$)"
    r"|(?:SECRET|(?:ACCESS|API|PRIVATE|SSH)KEY|(?:ACCESS|API|AUTH|ID|REFRESH)TOKEN|_PAT)(?:_|$)"
)
PASSWORD = re.compile(
    r"(?:^|_)(?:DB|PG)?PASS(?:_|$)|PASS(?:WORD|WD|PHRASE)(?:_|$)|(?:DB|_)PWD(?:_|$)"
)  # PWD is a folder
# `tokens_per_step: 512` is none.
NUMBER = re.compile(r"[-+]?\d{1,9}(?:\.\d*)?(?:e[-+]?\d+)?|true|false|none", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where a word of camelCase begins
# Values that are secrets whatever their name: tokens of well-known services, of a request's header,
# and what an URL has before its host.
SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|sk-|AKIA|eyJ[\w-]+\.)[\w.-]{8,}|"
    r"\bBearer\s+[^\s'\"]+|://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
)
HIDDEN = "(hidden)"
# NAME=value in shell text. A value is made of quoted parts, substitutions and plain characters; of
# a quote that does not end, the rest of its line.
ASSIGNMENT = re.compile(
    r"""(?<![\w$])(?P<name>[A-Za-z_]\w*)=(?P<value>(?:'[^']*'|"(?:\\.|[^"\\])*"|`[^`]*`|"""
    r"""\$\([^)]*\)|\\.|['"].*|[^\s;&|<>()'"`\\])+)"""
)

# Names that nothing reads, with what to use instead. No NCCL from 2.3.5 to 2.30.7 has the
# first two; no torch from 2.2 to 2.13, nor its gloo, has the third.
NO_EFFECT = {
    "NCCL_TIMEOUT": "set the timeout of init_process_group instead",
    "NCCL_NET_DISABLE": "NCCL_IB_DISABLE turns InfiniBand off, NCCL_NET selects the network",
    "GLOO_USE_IPV6": "gloo uses the address of the interface that GLOO_SOCKET_IFNAME names",
}
# PyTorch's names from before the prefix: torch 2.2 to 2.13 reads both, the prefixed one first.
OLD_TORCH = (
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
)
# Names that older versions of NCCL read and 2.30.7 does not -> the newest version known to read
# it, and its successor. Up to 2.4.8 this is from the documentation, later from the strings of
# libnccl.so.2 in the wheels of 2.13.4, 2.16.5, 2.18.1, 2.19.3, 2.21.5, 2.23.4, 2.25.1, 2.26.5,
# 2.27.7, 2.28.9 and 2.29.7.
DROPPED = {
    "NCCL_AGG_CHANNEL_SIZE": ("2.19.3", ""),
    "NCCL_CHECKS_DISABLE": ("2.4.8", "NCCL_CHECK_POINTERS"),
    "NCCL_CREATE_THREAD_CONTEXT": ("2.29.7", ""),
    "NCCL_CUDA_PATH": ("2.19.3", ""),
    "NCCL_GIN_COUNTER_POOL_SIZE": ("2.29.7", ""),
    "NCCL_GIN_NCONTEXTS": ("2.29.7", ""),
    "NCCL_GIN_SIGNAL_POOL_SIZE": ("2.29.7", ""),
    "NCCL_IB_CUDA_SUPPORT": ("2.4.8", "NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("2.4.8", "NCCL_NET_GDR_LEVEL"),
    "NCCL_LL_THRESHOLD": ("2.4.8", "NCCL_PROTO"),
    "NCCL_RINGS": ("2.4.8", ""),
    "NCCL_SHM_MEMCPY_MODE": ("2.29.7", ""),
    "NCCL_SHM_USE_CUDA_MEMCPY": ("2.29.7", ""),
    "NCCL_SINGLE_RING_THRESHOLD": ("2.4.8", ""),
    "NCCL_TREE_THRESHOLD": ("2.4.8", "NCCL_ALGO"),
    "NCCL_WORK_FIFO_DEPTH": ("2.21.5", "NCCL_WORK_FIFO_BYTES"),
}
# Prefixes that belong to plugins and tools of NCCL.
OWNERS = {
    "NCCL_FASTRAK_": "Google's GPUDirect-TCPXO plugin",
    "NCCL_GPUDIRECTTCPX_": "Google's GPUDirect-TCPX plugin",
    "NCCL_SHIMNET_": "Google's network plugin",
    "NCCL_TUNER_CONFIG_": "a tuner plugin",
    "NCCL_SHARP_": "NVIDIA's SHARP plugin",
    "NCCL_IBEXT_": "NVIDIA's IBext plugin",
    "NCCL_UCX_": "NVIDIA's UCX plugin",
    "NCCL_PROFILE_": "NCCL's example of a profiler plugin",
    "NCCL_INSPECTOR_": "NCCL's inspector plugin",
    "NCCL_TESTS_": "nccl-tests",
}
# Location and version of an installation: set by modules and images, read by builds.
INSTALLATION = re.compile(
    r"NCCL_(?:VERSION|HOME|ROOT|ROOT_DIR|DIR|PREFIX|PATH|LIB|LIBDIR|LIB_DIR|LIB_PATH|LIBRARY"
    r"|LIBRARIES|LIBRARY_PATH|LIBRARY_DIRS?|INC|INCDIR|INCLUDE|INCLUDE_PATH|INCLUDE_DIRS?)"
)


def is_read(name: str) -> bool:
    """Whether anything may read the variable, so that its value matters."""
    return judge_name(name) is None or not (name in NO_EFFECT or INSTALLATION.fullmatch(name))


def judge_name(name: str) -> Problem | None:
    """The remark about a variable by its name alone; None for one that NCCL or torch reads."""
    if name in nccl_names() or name in torch_names():
        return None
    note = partial(Problem, name=name, severity=NOTE)
    if name in NO_EFFECT:
        whose = "gloo" if name.startswith("GLOO_") else "NCCL"
        what = f"{name} is not a variable of {whose} and has no effect"
        return note(what, todo=NO_EFFECT[name])
    if name in OLD_TORCH:
        return note(f"{name} is an old name that torch still reads", todo=f"use TORCH_{name}")
    if name in DROPPED:
        last, successor = DROPPED[name]
        what = f"NCCL {NCCL_CHECKED} no longer reads {name}; NCCL {last} did"
        return note(what, todo=f"use {successor}" if successor else "")
    if INSTALLATION.fullmatch(name):
        return note(f"{name} says where NCCL is installed, or which version; NCCL does not read it")
    for prefix, owner in OWNERS.items():
        if name.startswith(prefix):
            return note(f"{name} is a variable of {owner}, not of NCCL")
    return Problem(_describe_unknown(name), name=name, severity=WARNING)


def _describe_unknown(name: str) -> str:
    if name.startswith("NCCL_OFI_"):
        return (
            f"{name} is not a variable of NCCL {NCCL_CHECKED}, the version checked against; the "
            f"libfabric plugin reads OFI_NCCL_*: did you mean `OFI_NCCL_{name[9:]}`?"
        )
    prefix = next(family for family in FAMILIES if name.startswith(family))
    of_nccl = prefix == "NCCL_"
    names = nccl_names() if of_nccl else torch_names()
    # Names are compared without their prefix, which would make any two of them similar.
    ends = [known[len(prefix) :] for known in sorted(names) if known.startswith(prefix)]
    hint = near(name[len(prefix) :], ends).replace("`", f"`{prefix}", 1)
    whose = f"NCCL {NCCL_CHECKED}" if of_nccl else f"torch {TORCH_CHECKED}"
    checked = "the version checked against" if of_nccl else "the versions checked against"
    other = "a plugin or another version may read it" if of_nccl else "another version may read it"
    return f"{name} is not a variable of {whose}, {checked}; {hint or other}"


@lru_cache
def nccl_names() -> frozenset[str]:
    """The variables that NCCL reads."""
    return _read_list("nccl_env_vars.txt")


@lru_cache
def torch_names() -> frozenset[str]:
    """The variables of FAMILIES that torch and its gloo read."""
    return _read_list("torch_env_vars.txt")


def _read_list(file: str) -> frozenset[str]:
    lines = (Path(__file__).parent / file).read_text().split("\n")
    return frozenset(line for line in lines if line and not line.startswith("#"))


def filter_variables(environ: Mapping[str, object]) -> dict[str, str]:
    """The variables of FAMILIES, by name, safe to store and show: a value that may be a secret is
    hidden, a long one is cut."""
    names = sorted(name for name in environ if isinstance(name, str) and NAME.fullmatch(name))
    variables = {}
    for name in names[:MAX_VARIABLES]:
        value = environ[name]
        if isinstance(value, str):
            variables[name] = HIDDEN if may_be_secret(name, value) else value[:MAX_KEPT]
    return variables


@lru_cache(maxsize=1024)  # the jobs of a run have most of them in common
def may_be_secret(name: str, value: str) -> bool:
    """Whether the name or the value of a variable or an argument looks like that of a secret."""
    if name in nccl_names() or name in torch_names():
        return SECRET_VALUE.search(value) is not None
    words = CAMEL.sub("_", name.replace("-", "_")).upper()
    if PASSWORD.search(words) or SECRET_VALUE.search(value):
        return True
    return SECRET.search(words) is not None and NUMBER.fullmatch(value) is None


def hide_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Variables or arguments; (hidden) in place of each value that may be a secret."""
    return {
        name: HIDDEN if may_be_secret(name, str(value)) else value for name, value in values.items()
    }


def hide_assignments(text: str) -> str:
    """Shell text in which no NAME=value sets a variable that may be a secret to its value, and no
    other word is a secret by itself."""

    def hide(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        return f"{name}={shlex.quote(HIDDEN)}" if may_be_secret(name, value) else found[0]

    return SECRET_VALUE.sub(HIDDEN, ASSIGNMENT.sub(hide, text))


def show_value(value: str) -> str:
    """The beginning of a value, without control characters."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in value[: MAX_SHOWN + 1])
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
