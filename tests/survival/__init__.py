"""Runs whose controller, scheduler or nodes die: what docs/promises.md promises."""
