"""Intervals of the scores of held-out rows, and of differences of scores."""
