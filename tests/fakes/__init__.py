"""Fakes of Slurm's commands, torchrun, nvidia-smi, NCCL's log, NFS, a rank program, a backend."""
