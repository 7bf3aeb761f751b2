"""What people see of a run while pytest waits: a view on a terminal, or lines in a log."""
