"""The kinds of columns: each is a class in a file of its own, which this list names.

``column.py`` is the contract. Outside of this folder nothing asks for a column's kind by name.
"""

from fcorun.data.tables.columns.column import Column, MissingPolicy
from fcorun.data.tables.columns.levels import LevelColumn
from fcorun.data.tables.columns.number import NumberColumn
from fcorun.data.tables.columns.spline import SplineColumn

COLUMN_KINDS: dict[str, type[Column]] = {column.kind: column for column in (NumberColumn, LevelColumn, SplineColumn)}

__all__ = ["COLUMN_KINDS", "Column", "LevelColumn", "MissingPolicy", "NumberColumn", "SplineColumn"]
