"""Tokens such as NA and None in the cells of a table: missing values among numbers, names among names."""

from collections.abc import Mapping
from typing import Any

from fcorun.errors import UserError
from fcorun.tables.columns import ColumnKind, coerce_numbers, infer_kind

# the cells that pandas reads as missing in a text file, without the empty cell
MISSING_TOKENS = frozenset(
    {"#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)


def find_missing_tokens(frame: Any, client: str | None) -> dict[str, list[str]]:
    """Return the sorted tokens of each column that has some.

    The column ``client`` is skipped, since a token may be the name of a client.
    """
    from pandas.api import types

    tokens = {}
    for name in frame.columns:
        if str(name) != client and not types.is_numeric_dtype(frame[name].dtype):
            is_token = frame[name].isin(MISSING_TOKENS)
            if is_token.any():
                tokens[name] = sorted(set(frame[name][is_token]))
    return tokens


def restore_level_columns(
    frame: Any, original: Mapping[str, Any], target: str | None, kinds: Mapping[str, ColumnKind]
) -> None:
    """Put back the ``original`` columns whose tokens are names; ``frame`` has gaps in place of the tokens.

    Tokens are names in a column of levels, whose kind ``kinds`` may give. In the ``target`` they are labels unless
    all other values are numbers.
    """
    for name, column in original.items():
        kind = kinds.get(str(name))
        if kind == "levels" or (kind is None and _holds_names(frame[name], str(name) == target)):
            frame[name] = column


def _holds_names(series: Any, is_target: bool) -> bool:
    """Return whether the values of a column, gaps left out, are names."""
    if is_target:
        not_numeric = coerce_numbers(series)[1]
        return bool(not_numeric.any())
    try:
        return infer_kind(series, "", None) == "levels"
    except UserError:  # dates, or text among numbers: reading the features raises the error
        return False
