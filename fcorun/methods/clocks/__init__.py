"""Clocks, laws of how long clients compute and send: one file each; no clock is in ``clock``."""
