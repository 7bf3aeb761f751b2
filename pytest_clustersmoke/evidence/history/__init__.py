"""Past runs in `history.db`, by cluster, phase, hardware, shape and versions."""
