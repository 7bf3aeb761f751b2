"""pytest takes this directory as its root directory, and so reads its cluster.yaml.

A site's own fixtures and hooks belong here.
"""

# torchrun runs these programs; pytest must not collect them.
collect_ignore_glob = ["smoke_tests/train_*.py", "smoke_tests/data/*", "benchmarks/*"]
