"""The top of the suite: pytest finds the root directory, and with it cluster.yaml, by this file.

A site's own fixtures and hooks belong here.
"""

# Rank programs and their data are run by torchrun and collected by nobody.
collect_ignore_glob = ["smoke_tests/train_*.py", "smoke_tests/data/*", "benchmarks/*"]
