"""The course of runs: one run, batches, sweeps, several hosts, trackers, and what completes a record.

It imports the rooms up to ``reports``.
"""
