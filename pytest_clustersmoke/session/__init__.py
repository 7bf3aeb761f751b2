"""One pytest session: items, selected phases, the watch thread, xdist, the live view."""
