"""Turn `cluster.yaml`, the phase marker and the command line into a frozen `Phase`.

Each value records where it was written. All problems are raised together, as `UsageProblems`.
"""
