"""One pytest session: items, phases chosen, the watching thread, xdist, progress, the live view."""
