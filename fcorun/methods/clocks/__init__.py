"""Clocks, laws of how long clients compute and send."""
