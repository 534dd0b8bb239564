"""The rows of a file as a ledger knows them: tokens of cells, and the sets of a plan that each row is in."""

import hashlib
import hmac
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import suggest_name
from fcorun.data.tables.cells import MISSING_TOKENS
from fcorun.data.tables.column_roles import SPLITS
from fcorun.data.tables.parsed_table import FileOptions
from fcorun.data.tables.readers import detect_ending, find_file, read_named_columns
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.site_options import OwnTableError, SiteOptions
from fcorun.sites.tables.fold_rules import NOT_HELD_OUT, draw_row_folds
from fcorun.sites.tables.table_rows import SiteTable

ROW_ID = "row id"  # the column of ``policy.row_id``, whatever its name in the file
PATIENTS = "patients\0"  # before the name of a column that is read only because an earlier plan took it for patients
_TRUTH_VALUES = {"true": "1", "false": "0"}
_GAP = "\0"
_EXACT = 2**53  # real numbers below are whole numbers exactly


@dataclass(frozen=True)
class ReleasedSet:
    """Rows that are in the same sums of a plan.

    Attributes:
        client: the name of the client.
        split: the split, one of SPLITS.
        fold: the fold that holds the rows out, from 0; ``NOT_HELD_OUT`` without a selection, and of held-out rows.
        weighted: whether the rows have a weight above 0. The others are in sums without weights alone.
    """

    client: str
    split: str
    fold: int
    weighted: bool = True

    def describe(self, several_clients: bool) -> str:
        """Return the set in words; it names the client if there are several."""
        rows = f"{'training' if self.split == SPLITS[0] else self.split} rows"
        client = f" of client '{self.client}'" if several_clients else ""
        fold = "" if self.fold == NOT_HELD_OUT else f" in fold {self.fold + 1}"
        weight = "" if self.weighted else " of weight 0"
        return f"{rows}{weight}{client}{fold}"


def divide_rows(plan: Plan, table: SiteTable) -> tuple[tuple[ReleasedSet, ...], np.ndarray]:
    """Return the released sets of a plan that are not empty, and the set of each row of a site's table, from 1, (N,).

    Rows of weight 0 are sets of their own: sums without weights have them, weighted sums do not. The folds of
    ``by=clients`` are whole clients, and divide no client.
    """
    folds = draw_row_folds(plan, table)
    if folds is None:
        folds = np.full(len(table.rows.y), NOT_HELD_OUT)
    client = table.client_rows.client_index
    split = table.masks[1] + 2 * table.masks[2]
    weight = np.ones(len(client)) if table.rows.weight is None else table.rows.weight
    shape = len(table.clients), len(SPLITS), int(folds.max(initial=NOT_HELD_OUT)) + 2, 2
    code = np.ravel_multi_index((client, split, folds + 1, (weight > 0).astype(np.int64)), shape)
    codes, numbers = np.unique(code, return_inverse=True)
    sets = []
    for m, s, fold, weighted in zip(*(axis.tolist() for axis in np.unravel_index(codes, shape)), strict=True):
        sets.append(ReleasedSet(table.clients[m], SPLITS[s], fold - 1, bool(weighted)))
    return tuple(sets), numbers + 1


def number_codes(table: SiteTable, options: SiteOptions) -> dict[str, np.ndarray]:
    """Return the number of the code of each row, (N,), by the name in the file of each column of levels.

    Rare levels have one code; rows with a gap have 0. A column that is taken as constant tells nothing.
    """
    import pandas as pd

    codes = {}
    for name in table.level_counts.keys() - table.constant:
        numbers = pd.factorize(table.code_levels(name), use_na_sentinel=True)[0] + 1
        codes[options.own_names.get(name, name)] = numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
    return codes


def list_read_columns(
    table: SiteTable, options: SiteOptions, row_id: str | None, groups: Collection[str] = ()
) -> dict[str, Any]:
    """Return the columns of a site's table that a plan reads, each of N cells, by their names in the file.

    The cells are those of the file: a value that is rare in one plan, and hidden there, may not be so in the next.

    Args:
        row_id: the column of the file that names a row; None: there is none.
        groups: columns that name patients in earlier plans. Those that the file has and the plan does not read are
            read, too, by names after ``PATIENTS``: they count patients, and do not tell which rows are equal.

    Raises OwnTableError if the file has no such column.
    """
    import pandas as pd

    shared = table.options
    columns = {**table.columns, **table.file_cells}
    if table.rows.metadata is not None:
        columns |= {str(name): column for name, column in table.rows.metadata.items()}
    if client_column := options.client or shared.client:  # a client's name that the file's name gives is no cell
        columns[client_column] = pd.Series(table.rows.client)
    y = table.rows.y
    if shared.event is not None:
        y = np.abs(y)  # the sign is the event
    columns[shared.target] = pd.Series(y)
    columns = {options.own_names.get(name, name): column for name, column in columns.items()}
    groups = [name for name in groups if name not in columns]
    further = [*groups, *([] if row_id is None else [row_id])]
    if further:
        file = find_file(options.path)
        where = f"data.path={options.path}"
        file_options = options.file_options()
        parsed = read_named_columns(file, detect_ending(file, where), None, further, where=where, options=file_options)
        columns |= {f"{PATIENTS}{name}": parsed.frame[name] for name in groups if name in parsed.frame}
    if row_id is not None:
        if row_id not in parsed.frame:
            public = "the file of this site lacks the column that policy.row_id of its owner names"
            suggestion = suggest_name(row_id, list(map(str, parsed.frame.columns)))
            raise OwnTableError(
                f"policy.row_id={row_id}: there is no such column in {options.path}; {suggestion}", public
            )
        columns[ROW_ID] = parsed.frame[row_id]
    return columns


def identify_reading(data: str, options: SiteOptions) -> str:
    """Return a digest of a file, whose own digest is ``data``, as it is read.

    Equal readings have the same rows in the same order.
    """
    reading: list[Any] = [data]
    if options.file_options() != FileOptions():
        reading.append([options.na, options.encoding, options.sheet])
    return hashlib.sha256(json.dumps(reading).encode()).hexdigest()


def make_tokens(secret: bytes, columns: Mapping[str, Any], known: Collection[str]) -> dict[str, np.ndarray]:
    """Return tokens of the cells of columns, (N,) of uint64 by column, but for the ``known`` columns.

    Cells of one column have equal tokens if they have the same value, however the file writes it. Who lacks the secret
    cannot tell which value a token stands for.
    """
    import pandas as pd

    tokens = {}
    for name, column in columns.items():
        if name in known:
            continue
        values: Any
        codes, values = pd.factorize(column, use_na_sentinel=True)
        if getattr(values.dtype, "kind", "") == "f" and values.dtype.itemsize < 8:
            values = np.asarray(values).astype(str)  # the shortest digits
        digests = bytearray()
        for value in (*values.tolist(), _GAP):  # the last one is that of the code -1
            digests += _digest(secret, name.removeprefix(PATIENTS), _normalize(value))
        tokens[name] = np.frombuffer(digests, "<u8").astype(np.uint64)[codes]
    return tokens


def gap_token(secret: bytes, name: str) -> np.uint64:
    """Return the token of the cells of a column that have no value."""
    return np.frombuffer(_digest(secret, name, _GAP), "<u8")[0]


def _digest(secret: bytes, name: str, text: str) -> bytes:
    return hmac.digest(secret, f"{name}\0{text}".encode(), "sha256")[:8]


def _normalize(value: Any) -> str:
    """Return a text that is the same for 1, 1.0 and "1", and for all ways to write a gap."""
    number = value
    if not isinstance(value, float):
        text = str(value).strip()
        if not text or text in MISSING_TOKENS:
            return _GAP
        text = _TRUTH_VALUES.get(text.casefold(), text)
        with suppress(ValueError):
            return str(int(text))
        try:
            number = float(text)
        except ValueError:
            return text
    if number.is_integer() and abs(number) < _EXACT:
        return str(int(number))
    return f"{number:.12g}"
