"""Part of the fake torch."""
