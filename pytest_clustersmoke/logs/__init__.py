"""What the subcommands that read a job's logs share: `transports`, `diagnose`, and in part others.

command.py    their words, streams and output
inputs.py     words -> files and streams; progress.py: how far they are read
text_output.py  lines as wide as the terminal, in colour
"""
