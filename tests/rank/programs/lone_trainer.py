"""One rank whose library opened no process group."""

from pytest_clustersmoke.rank import Rank

with Rank.start(init="trainer") as rank:
    rank.stage("init", rank.group_opened)
    rank.fact(shared=rank.run_on_main(lambda: [rank.world_size]))
