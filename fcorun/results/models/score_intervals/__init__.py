"""Intervals of the scores of held-out rows, from predictions.csv alone."""
