"""On the node: facts, checks, rendezvous, the launcher, supervision of the ranks, stack dumps."""
