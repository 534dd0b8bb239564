"""Trackers, services that show records of runs: one file each; no tracker is in ``base``."""
