"""Submit, watch and cancel: phases become jobs of Slurm, or virtual nodes of this machine."""
