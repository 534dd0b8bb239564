"""Gaps in a table: fills that folds learn anew, multiple imputation by chained equations, and gaps by outcome.

The fill of a column, a mean, a median or the most frequent level, and its indicator belong to the kind of the column
(``fcorun.data.tables.columns``). The intervals of imputed rows are in ``fcorun.results.models.multiple_imputation``.
"""
