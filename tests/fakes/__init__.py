"""Fakes of what is not ours: Slurm's commands, torchrun, a rank program, a backend."""
