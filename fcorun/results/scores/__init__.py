"""The scores, one file for each family, and the weighted rows from which they are computed."""
