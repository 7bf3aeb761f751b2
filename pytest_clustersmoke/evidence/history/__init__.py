"""Past runs in `history.db`, by cluster, phase, hardware, versions and sizes."""
