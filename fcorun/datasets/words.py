"""Words such as NA and None in the cells of a table: gaps among numbers, names among names."""

from collections.abc import Mapping
from typing import Any

from fcorun.datasets.columns import Kind, as_numbers, kind_of
from fcorun.errors import UserError

# what pandas takes for a gap in a file of text, but for the empty cell
WORDS = frozenset(
    {"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)


def words_in(frame: Any, client: str | None) -> dict[str, list[str]]:
    """The columns that hold some of these words, and which; ``client`` names clients, whatever they are called."""
    from pandas.api import types

    found = {}
    for name in frame.columns:
        if str(name) != client and not types.is_numeric_dtype(frame[name].dtype):
            there = frame[name].isin(WORDS)
            if there.any():
                found[name] = sorted(set(frame[name][there]))
    return found


def take_names(frame: Any, written: Mapping[str, Any], target: str | None, kinds: Mapping[str, Kind]) -> None:
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
        return bool(as_numbers(series)[1].any())
    try:
        return kind_of(series, "", None) == "levels"
    except UserError:  # dates, or text among numbers, of which reading the features tells
        return False
