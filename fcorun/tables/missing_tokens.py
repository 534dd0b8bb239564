"""Words such as NA and None in the cells of a table: gaps among numbers, names among names."""

from collections.abc import Mapping
from typing import Any

from fcorun.errors import UserError
from fcorun.tables.columns import ColumnKind, coerce_numbers, infer_kind

# what pandas takes for a gap in a file of text, but for the empty cell
MISSING_TOKENS = frozenset(
    {"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)


def find_missing_tokens(frame: Any, client: str | None) -> dict[str, list[str]]:
    """The columns that hold some of these words, and which; ``client`` names clients, whatever they are called."""
    from pandas.api import types

    found = {}
    for name in frame.columns:
        if str(name) != client and not types.is_numeric_dtype(frame[name].dtype):
            there = frame[name].isin(MISSING_TOKENS)
            if there.any():
                found[name] = sorted(set(frame[name][there]))
    return found


def restore_level_columns(
    frame: Any, written: Mapping[str, Any], target: str | None, kinds: Mapping[str, ColumnKind]
) -> None:
    """Put back the columns as they are ``written`` whose words are names; ``frame`` has gaps for the words.

    They are where ``kinds`` say so, which are those of the record to follow, and else in columns of levels. In a
    ``target`` they are labels, unless all that is beside them are numbers.
    """
    for name, series in written.items():
        known = kinds.get(str(name))
        if known == "levels" or (known is None and _names(frame[name], str(name) == target)):
            frame[name] = series


def _names(series: Any, labels: bool) -> bool:
    """Whether a column, its gaps apart, holds names."""
    if labels:
        return bool(coerce_numbers(series)[1].any())
    try:
        return infer_kind(series, "", None) == "levels"
    except UserError:  # dates, or text among numbers, of which reading the features tells
        return False
