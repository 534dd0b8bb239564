"""The rows of a file as a ledger knows them: tokens of cells, and the sets of a plan that each row is in."""

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import suggest_name
from fcorun.data.tables.cells import MISSING_TOKENS
from fcorun.data.tables.readers import detect_ending, find_file, read_named_columns
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.table_options import OwnTableError, SiteOptions
from fcorun.sites.tables.row_folds import NOT_HELD_OUT, draw_row_folds
from fcorun.sites.tables.table_rows import SiteTable

IN_NO_SET = 0  # the label of a row that no answer of a plan sums over
ROW_ID = "row id"  # the column of ``policy.row_id``, whatever its name in the file
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


@dataclass(frozen=True)
class PlanRows:
    """The rows of a file as a plan divides them.

    Attributes:
        sets: the released sets of the plan that are not empty.
        labels: the set of each row, from 1, or ``IN_NO_SET``, (N,) of int64.
        columns: the columns that the plan reads, each of N cells, by their shared names.
    """

    sets: tuple[ReleasedSet, ...]
    labels: np.ndarray
    columns: Mapping[str, Any]


def divide_rows(plan: Plan, table: SiteTable, options: SiteOptions, row_id: str | None) -> PlanRows:
    """Return the rows of a site's table as a plan divides them.

    Rows of weight 0 are sets of their own: sums without weights have them, weighted sums do not. The folds of
    ``by=clients`` are whole clients, and divide no client.

    Args:
        row_id: the column of the file that names a row; None: there is none.

    Raises OwnTableError if the file has no such column.
    """
    folds = draw_row_folds(plan, table)
    if folds is None:
        folds = np.full(len(table.rows.y), NOT_HELD_OUT)
    client = table.client_rows.client_index
    split = table.masks[1] + 2 * table.masks[2]
    weight = table.weight_and_offset.get("weight", np.ones(len(client)))
    shape = len(table.clients), len(SPLITS), int(folds.max(initial=NOT_HELD_OUT)) + 2, 2
    code = np.ravel_multi_index((client, split, folds + 1, (weight > 0).astype(np.int64)), shape)
    codes, numbers = np.unique(code, return_inverse=True)
    sets = []
    for m, s, fold, weighted in zip(*(axis.tolist() for axis in np.unravel_index(codes, shape)), strict=True):
        sets.append(ReleasedSet(table.clients[m], SPLITS[s], fold - 1, bool(weighted)))
    columns = _list_columns(table, options)
    if row_id is not None:
        columns[ROW_ID] = _read_row_id(options, row_id)
    return PlanRows(tuple(sets), numbers + 1, columns)


def _list_columns(table: SiteTable, options: SiteOptions) -> dict[str, Any]:
    """Return all columns that the plan reads, by their shared names.

    The name of a client that follows from the name of the file is no cell.
    """
    import pandas as pd

    shared = table.options
    columns = dict(table.columns)
    if table.rows.metadata is not None:
        columns |= {str(name): column for name, column in table.rows.metadata.items()}
    if client := options.client or shared.client:
        columns[client] = pd.Series(table.rows.client)
    y = table.rows.y
    columns[shared.target] = pd.Series(y if shared.event is None else np.abs(y))  # the sign is the event
    return columns


def _read_row_id(options: SiteOptions, name: str) -> Any:
    """Return the column of the file that names a row."""
    file = find_file(options.path)
    where = f"data.path={options.path}"
    parsed, _ = read_named_columns(file, detect_ending(file, where), None, [name], where=where)
    if name not in parsed.frame:
        public = "the file of this site lacks the column that policy.row_id of its owner names"
        columns = suggest_name(name, list(map(str, parsed.frame.columns)))
        raise OwnTableError(f"policy.row_id={name}: there is no such column in {options.path}; {columns}", public)
    return parsed.frame[name]


def identify_reading(data: str, options: SiteOptions) -> str:
    """Return a digest of a file, whose own digest is ``data``, with the shared names of its columns.

    Equal readings have the same rows in the same order.
    """
    return hashlib.sha256(json.dumps([data, sorted((options.rename or {}).items())]).encode()).hexdigest()


def make_tokens(secret: bytes, columns: Mapping[str, Any], known: Collection[str]) -> dict[str, np.ndarray]:
    """Return tokens of the cells of columns, (N,) of uint64 by column, but for the ``known`` columns.

    Cells of one column have equal tokens if they have the same value, however the file writes it. Who lacks the secret
    cannot tell which value a token stands for.
    """
    sign = _keyed_hash(secret)
    return {name: _sign_cells(sign, name, column) for name, column in columns.items() if name not in known}


def _sign_cells(sign: Callable[[bytes], bytes], name: str, column: Any) -> np.ndarray:
    """Return the tokens of the cells of a column, computed once for each value."""
    import pandas as pd

    codes, values = pd.factorize(column, use_na_sentinel=True)
    texts = [*_normalize(values), _GAP]  # the last one is that of the code -1
    begin = name.encode() + b"\0"
    digests = b"".join([sign(begin + text.encode())[:8] for text in texts])
    return np.frombuffer(digests, "<u8").astype(np.uint64)[codes]


def _normalize(values: Any) -> list[str]:
    """Return a text for each value, which is the same for 1, 1.0 and "1", and for all ways to write a gap."""
    if getattr(values.dtype, "kind", "") == "f" and values.dtype.itemsize < 8:
        values = np.asarray(values).astype(str)  # the shortest digits
    return [
        _normalize_number(value) if isinstance(value, float) else _normalize_text(value) for value in values.tolist()
    ]


def _normalize_number(value: float) -> str:
    if value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return f"{value:.12g}"


def _normalize_text(value: Any) -> str:
    text = str(value).strip()
    if not text or text in MISSING_TOKENS:
        return _GAP
    if text.casefold() in _TRUTH_VALUES:
        return _TRUTH_VALUES[text.casefold()]
    try:
        return str(int(text))
    except ValueError:
        pass
    try:
        return _normalize_number(float(text))
    except ValueError:
        return text


def _keyed_hash(secret: bytes) -> Callable[[bytes], bytes]:
    """Return the function HMAC-SHA256 of a secret of at most 64 bytes; of many short texts faster than that of hmac."""
    block = secret.ljust(hashlib.sha256().block_size, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    sha256 = hashlib.sha256

    def sign(text: bytes) -> bytes:
        return sha256(outer + sha256(inner + text).digest()).digest()

    assert sign(b"") == hmac.digest(secret, b"", "sha256")
    return sign
