"""What `benchmark.py` measures: a file each, with functions that print rows of a table as they are measured."""
