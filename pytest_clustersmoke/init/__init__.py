"""`clustersmoke init`: cluster.yaml and the suite for a new cluster, by what its Slurm says.

command   the words, and what is told of what was found and guessed
ask       what Slurm says of itself, as plain records
pick      the partition, and the kind of its nodes that jobs are for
sizes     which phases fit the hardware, and how large they are there
place     what this shell and its file systems tell: shared directory, interpreter, modules
draft     found and guessed -> the entries of a profile
entries   entries -> YAML with comments
suite     where the suite that ships is
write     all files or none, and nothing overwritten
"""
