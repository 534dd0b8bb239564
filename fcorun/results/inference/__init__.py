"""Intervals for the coefficients of linear models, from sums over rows that clients add up."""
