"""`clustersmoke init`: cluster.yaml and the suite for a new cluster, by what its Slurm says.

init_command      the options, and what is printed of what was found and guessed
partition_survey  what Slurm says, and the partition and nodes that the phases are for
cluster_draft     a survey -> the values of cluster.yaml, and why some are guesses
cluster.yaml.j2   the file's form
suite_files       the suite that ships, and writing files where nothing is overwritten
"""
