"""What a person sees of a run while pytest waits for it.

On a terminal it is a view that is drawn below pytest's own output and erased before anything else
is written; elsewhere one line a change. Everything is drawn in the main thread, while it waits: a
display with a thread of its own leaves rows between pytest's lines.

board.py    what is known of each phase, told by the watching thread; `PhaseState`
tail.py     how far a running phase is, from its rank 0's events
rows.py     the view's rows: phases, folded where there are more than fit
screen.py   draws rows on a terminal and erases them
lines.py    how far a phase is as lines, sparsely
show.py     which of them, and what happens where one cannot be drawn
xdist.py    where pytest-xdist's controller waits
"""
