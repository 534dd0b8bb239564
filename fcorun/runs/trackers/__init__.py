"""Trackers, services that show records of runs: one file each."""
