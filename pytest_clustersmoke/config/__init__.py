"""`cluster.yaml`, the phase marker and the command line become a frozen `Phase`.

Each value knows the place it came from. All problems are raised at once, as `UsageProblems`.
"""
