"""A table with named columns as read from a file, and the cells in it that stand for missing values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import coerce_numbers
from fcorun.data.tables.columns import Column
from fcorun.data.tables.columns.infer_kind import infer_kind


@dataclass
class ParsedTable:
    """A table as read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        missing_tokens: by column, the tokens for missing values in it (``fcorun.data.tables.cells``).
        unparsed_columns: by column whose numbers have commas, the reason why these were not read as decimal commas.
        header: the names of columns as written, where pandas may have changed them.
        warnings: sentences about how the file was read.
    """

    frame: Any
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def restore_level_columns(
    frame: Any, original: Mapping[str, Any], target: str | None, kinds: Mapping[str, Column]
) -> None:
    """Put back the ``original`` columns whose tokens are names; ``frame`` has gaps in place of the tokens.

    Tokens are names in a column of levels, whose kind ``kinds`` may give. In the ``target`` they are labels unless
    all other values are numbers.
    """
    for name, column in original.items():
        known = kinds.get(str(name))
        if known is not None:
            holds_names = known.has_levels
        elif str(name) == target:
            holds_names = bool(coerce_numbers(frame[name])[1].any())
        else:
            try:
                holds_names = infer_kind(frame[name], "", None).has_levels
            except UserError:  # dates, or text among numbers: reading the features raises the error
                holds_names = False
        if holds_names:
            frame[name] = column
