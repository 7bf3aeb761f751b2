"""Logs of NCCL for `clustersmoke transports`."""

from __future__ import annotations

import sys

COMM = "comm 0x5a rank {0} nranks {1} cudaDev 0 nvmlDev 0 busId 18000 commId 0xf{2}"
RING = f"""\
NCCL version 2.20.5+cuda12.4
k1:10:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
k1:10:20 [0] NCCL INFO Using network IB
k1:10:20 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA
k2:11:21 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1/GDRDMA
k1:10:20 [0] NCCL INFO {COMM.format(0, 2, 0)} - Init COMPLETE
k2:11:21 [0] NCCL INFO {COMM.format(1, 2, 0)} - Init COMPLETE

[2026-04-22 21:34:20] k2:11:21 [0] misc/shmutils.cc:88 (extend) NCCL WARN Error: \x07full
"""
EDGE = "k1:10:20 [0] NCCL INFO Channel 00/0 : {}[0] -> {}[1] via P2P/CUMEM\n"
COMMAND = [sys.executable, "-m", "pytest_clustersmoke.cli", "transports"]
