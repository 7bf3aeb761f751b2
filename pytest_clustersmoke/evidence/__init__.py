"""The run directory: every file name, events with their units, facts, logs, findings, history.

run_record.py defines the record of a run, since the history and the comparison with the past take
it; report/ fills it.

Files that a job wrote are read here once and typed from there on. Their content is hostile text: a
value of the wrong type counts as missing, and a missing value is never a pass.
"""
