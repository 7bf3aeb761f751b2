"""Logs for the tests of signatures, and their findings."""

from __future__ import annotations

import io
from collections.abc import Mapping

from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from pytest_clustersmoke.diagnose.signature_findings import order_findings
from pytest_clustersmoke.diagnose.signature_search import SignatureSearch
from pytest_clustersmoke.evidence.finding import Finding


def diagnosed(*texts: str | bytes, **named: str) -> list[Finding]:
    """The findings of logs, called `0.log`, `1.log`, ... or by their names."""
    logs: Mapping[str, str | bytes] = {
        **{f"{index}.log": text for index, text in enumerate(texts)},
        **{f"{name}.log": text for name, text in named.items()},
    }
    search = SignatureSearch(shipped_signatures())
    for name, text in logs.items():
        raw = text if isinstance(text, bytes) else text.encode()
        search.stream(io.BytesIO(raw), name)
    return order_findings(search)


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def primary(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings if finding.primary]


WATCHDOG = (
    "[rank{0}]:[E1121 20:30:{1}.903881913 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
REMOTE = (
    "[2026-11-21 20:20:{1}] node{0}:71:72 [0] misc/socket.cc:49 NCCL WARN socketProgress: "
    "Connection closed by remote peer node2<42830>\n"
    "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, "
    "remote process exited or there was a network error, NCCL version 2.21.5\n"
)
KILLED = """\
E1121 20:20:27.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed \
(exitcode: -9) local_rank: 1 (pid: 2630) of binary: /opt/conda/bin/python
Traceback (most recent call last):
  File "/opt/conda/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_20:20:27
  host      : node2
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 2630)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 2630
============================================================
"""
TRACEBACK = """\
{0}Traceback (most recent call last):
{0}  File "/work/train.py", line 59, in <module>
{0}    main()
{0}  File "/work/train.py", line 23, in main
{0}    raise ValueError("labels are 7, 9")
{0}ValueError: labels are 7, 9
"""
