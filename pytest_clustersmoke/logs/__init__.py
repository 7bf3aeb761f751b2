"""What the subcommands that read a job's logs share: `transports`, `diagnose`, and in part others.

inputs.py       words -> files and streams
log_streams.py  how they are opened, how far they are read, and what could not be
text_output.py  lines as wide as the terminal, in colour
"""
