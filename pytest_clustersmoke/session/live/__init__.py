"""The progress of a run while pytest waits: a live view on a terminal, or lines in a log."""
