"""The benchmarks of `benchmark.py`, one file for each subject, with generators that yield rows of a table."""
