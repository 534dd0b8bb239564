"""What came out of a run: its model, in the words of the data."""
