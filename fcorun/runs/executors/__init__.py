"""Executors: where the groups of a sweep are computed. A new one is a file, and a line of ``sweep.EXECUTORS``."""
