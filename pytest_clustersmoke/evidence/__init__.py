"""The run directory: every file name, events with their units, facts, logs, findings, history.

What a job left behind is read here once, and is typed from there on. Its content is hostile text: a
value of the wrong kind counts as missing, and what is missing is never a pass.
"""
