"""Opens the process group, and does nothing else."""

from pytest_clustersmoke.rank import Rank

with Rank.start() as rank:
    rank.say("open")
