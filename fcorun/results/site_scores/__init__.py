"""The scores of models whose rows stay at sites, from sums over the rows."""
