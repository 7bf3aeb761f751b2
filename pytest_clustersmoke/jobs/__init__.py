"""Submits phases as jobs, to Slurm or to virtual nodes on this machine, and watches them."""
