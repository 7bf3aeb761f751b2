"""`clustersmoke transports LOG...`: which transports a job used, from its NCCL logs."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .log_streams import ReadProgress, name_refused, open_stream
from .subcommand import add, add_logs, print_lines

if TYPE_CHECKING:
    from .job_transports import JobTransports

DESCRIPTION = """\
Reads NCCL's logs (2.3 to 2.30, under NCCL_DEBUG=INFO), and shows the transport of each pair of
ranks, inside nodes and between nodes, and remarks on what is unusual. All logs must be of one job.
"""
EXAMPLES = """\
examples:
  clustersmoke transports nccl.*.log           all logs of a job together
  clustersmoke transports --matrix slurm.out   rank by rank
  clustersmoke transports --json reports/latest/phases/zero1_4node | jq .edges
  zcat job.log.gz | clustersmoke transports -

exit status: 0 done, 2 some input could not be read (the rest is printed first)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    transports = add(
        subparsers,
        "transports",
        "show which transports a job used, from its NCCL logs",
        DESCRIPTION,
        EXAMPLES,
    )
    add_logs(transports)
    form = transports.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--matrix", action="store_true", help="draw the edges as a matrix of ranks")
    form.add_argument("--all", action="store_true", help="leave nothing out")
    transports.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    # Everything read is kept until the end, so collecting garbage would only cost time.
    gc.disable()
    try:
        job = _read_transports(parsed.logs)
        log = job.log
        if job.files or log.edges or log.communicators or log.warnings:
            print_lines(_lines(job, parsed))
        name_refused(job.unreadable)
        return 2 if job.unreadable else 0
    finally:
        gc.enable()


def _read_transports(words: list[str]) -> JobTransports:
    """Read all inputs; the result also lists what could not be read."""
    from ..evidence.nccl.log_reader import Reader, Unreadable
    from .job_transports import JobTransports
    from .log_inputs import Inputs

    inputs = Inputs.of(words)
    reader, read, refused = Reader(), [], list(inputs.refused)
    with ReadProgress(sys.stderr, inputs.size) as progress:
        for source in inputs.found:
            try:
                with open_stream(source.path, progress) as stream:
                    reader.stream(stream, source.name, source.scope)
                read.append(source.name)
            except Unreadable as error:
                refused.append((source.name, str(error).removeprefix(source.name).strip()))
            except OSError as error:
                refused.append((source.name, f"cannot be read: {error.strerror or error}"))
    return JobTransports(reader.log(), tuple(read), tuple(refused))


def _lines(job: JobTransports, parsed: argparse.Namespace) -> Iterator[str]:
    if parsed.json:
        from .transport_json import json_lines

        yield from json_lines(job)
        return
    from . import matrix, transport_text
    from .subcommand import TextOutput

    out = TextOutput.of(sys.stdout)
    if not parsed.matrix:
        yield from transport_text.format_transports(job, out, parsed.all)
        return
    yield from transport_text.format_head(job, out)
    if job.links:
        yield ""
        yield from matrix.matrices(job, out)
    yield from transport_text.format_tail(job, out)
