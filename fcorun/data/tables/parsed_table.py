"""A table with named columns as read from a file, and the cells in it that stand for missing values."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fcorun.base.config import AUTO, build
from fcorun.base.errors import UserError, abbreviate, suggest_name
from fcorun.data.tables.cells import coerce_numbers, has_numpy_numbers, parse_numbers, to_level_names
from fcorun.data.tables.columns import Column
from fcorun.data.tables.columns.infer_kind import infer_kind

Codes = dict[str, list[str]] | list[str] | None
NA = "NA"  # a missing value, as R writes it
_SHOWN = 40  # letters of a row that an error quotes


@dataclass(frozen=True)
class FileOptions:
    """Options by which a file with named columns is read. ``conf/data/table.yaml`` explains the options.

    Attributes:
        na: the codes of missing values in all columns but those of names, or by column.
        encoding: the encoding of the characters of a file of text that is not UTF-8.
        sheet: the sheet of a workbook; None: the first one.
        sparse: whether rows of a LIBSVM file stay sparse; "auto": where few of many numbers are not 0.
        na_is_missing: whether the text NA, as R writes it, is a missing value among levels, too.
        rename: the names of columns in a record by those in the file of the site that keeps the record.
        optional: the options that say nothing about a file without such columns, codes or sheets: for new rows those
            of the record's own file.
        also_read: the columns that predictions read beside features, by their names in the record.
    """

    na: Codes = None
    encoding: str | None = None
    sheet: str | None = None
    sparse: Annotated[bool, "or auto"] = AUTO
    na_is_missing: bool = False
    rename: dict[str, str] | None = None
    optional: tuple[str, ...] = ()
    also_read: tuple[str, ...] = ()

    def __post_init__(self):
        if self.encoding is not None and not is_character_encoding(self.encoding):
            raise UserError(f"`data.encoding={self.encoding}` is no encoding of characters: give utf-8, utf-16, "
                            "latin-1 or windows-1252, or leave `data.encoding` out")  # fmt: skip

    @classmethod
    def for_new_rows(cls, record_data: Mapping[str, Any], **given: Any) -> "FileOptions":
        """Return how rows to predict are read: as ``given``, and else as the file of a record.

        ``record_data`` is the section data of the record's configuration. Raises UserError for values of other types.
        """
        values = {
            "na": record_data.get("na"),
            "encoding": record_data.get("file_encoding") or find_character_encoding(record_data.get("encoding")),
            "sheet": record_data.get("sheet"),
            "rename": record_data.get("rename"),
            "na_is_missing": record_data.get("missing", "refuse") != "refuse",
        }
        optional = tuple(values.keys() - given.keys())
        also_read = (record_data.get("client"), record_data.get("offset"), *(record_data.get("keep") or ()))
        return replace(build(cls, values | given, "data"), optional=optional, also_read=also_read)

    def codes_by_column(self, columns: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
        """Return the codes of missing values of each column; ``names`` are columns of names, of clients for example.

        Raises UserError for a column that ``na`` names and that is not among ``columns``.
        """
        if not isinstance(self.na, dict):
            codes = list(map(str, self.na or ()))
            return {name: codes for name in columns if codes and name not in names}
        for name in self.na:
            if name not in columns and "na" not in self.optional:
                raise UserError(f"`data.na` names '{name}', which is no column of the file: "
                                f"{suggest_name(name, columns)}")  # fmt: skip
        return {name: list(map(str, codes)) for name, codes in self.na.items() if name in columns}

    def find_renamed(self, columns: Sequence[str], features: Collection[str], where: str) -> dict[str, str]:
        """Return the new names of these columns of new rows; none unless they have all the site's names of features.

        Raises UserError, which begins with ``where``, for a new name that another column has, if predictions read it,
        and for a feature without its column of the site, if another column of the site has the feature's name.
        """
        rename = self.rename or {}
        lacking = [name for name, shared in rename.items() if shared in features and name not in columns]
        for name in lacking:
            taken = rename[name]
            if taken in columns and rename.get(taken, taken) not in columns:
                raise UserError(f"{where}: the site's file has '{name}' for '{taken}', and its own column '{taken}' is "
                                f"'{rename[taken]}': these rows lack '{name}': add that column")  # fmt: skip
        if lacking:
            return {}
        renamed = {name: shared for name, shared in rename.items() if name in columns}
        doubled = {name: shared for name, shared in renamed.items() if shared in columns and shared not in renamed}
        for name, shared in doubled.items():
            if shared in features or shared in self.also_read or name in renamed.values():
                raise UserError(f"{where}: the site's file has '{name}' in place of '{shared}', and these rows have "
                                "both: delete one of the two columns")  # fmt: skip
        return {name: shared for name, shared in renamed.items() if name not in doubled}

    def find_column(self, name: str, columns: Collection[str]) -> str:
        """Return a column of new rows, as they were read, from its name in the record or in the site's own file."""
        shared = (self.rename or {}).get(name, name)
        return shared if shared in columns and name not in columns else name


def is_character_encoding(name: str) -> bool:
    """Return whether Python knows an encoding of text by this name."""
    try:
        "a".encode(name)
    except (LookupError, UnicodeError):
        return False
    return True


def find_character_encoding(encoding: str | None) -> str | None:
    """Return the option ``data.encoding`` if it names an encoding of characters, and no folder of a record."""
    if encoding is not None and is_character_encoding(encoding) and not Path(encoding).exists():
        return encoding
    return None


def check_first_row(rows: Sequence[tuple[int, Sequence[str]]], where: str, fitting: Sequence[int] = ()) -> None:
    """Raise UserError, which begins with ``where``, if the names of the columns are in a later row than the first.

    Names have letters, there are at least twice as many as cells of a title before them, and most rows below have as
    many cells. ``rows`` are the first rows of a file: the number of each, from 1, and its cells, "" for empty ones.
    ``fitting`` are the numbers of rows that are known to be no names.
    """
    title = list(filter(None, map(str.strip, rows[0][1])))
    least = max(2 * len(title), 2)
    for i, (number, cells) in enumerate(rows[1:], start=1):
        names = list(filter(None, map(str.strip, cells)))
        if number in fitting or len(names) < least or not all(any(map(str.isalpha, name)) for name in names):
            continue
        below = [len(others) >= len(cells) for _, others in rows[i + 1 :]]
        if 2 * sum(below) >= len(below):
            raise UserError(f"{where}: row {number} seems to name the columns ({abbreviate(names)}), and "
                            f"'{', '.join(title)[:_SHOWN]}' in row {rows[0][0]} is before it: delete the rows before "
                            "the names")  # fmt: skip


@dataclass
class ParsedTable:
    """A table as read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        missing_tokens: by column, the tokens for missing values in it (``fcorun.data.tables.cells``).
        unparsed_columns: by column whose numbers have commas, the reason why these were not read as decimal commas.
        header: the names of columns as written, where pandas may have changed them.
        warnings: sentences about how the file was read.
        column_warnings: by column, a sentence about how it was read.
    """

    frame: Any
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    column_warnings: dict[str, str] = field(default_factory=dict)

    def rename(self, names: Mapping[str, str]) -> "ParsedTable":
        """Return the table with other names of some columns."""
        return replace(
            self,
            frame=self.frame.rename(columns=names),
            missing_tokens={names.get(name, name): tokens for name, tokens in self.missing_tokens.items()},
            unparsed_columns={names.get(name, name): reason for name, reason in self.unparsed_columns.items()},
            column_warnings={names.get(name, name): text for name, text in self.column_warnings.items()},
        )


def mask_codes(frame: Any, codes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Make gaps, in place, of the cells that hold a code for missing values, and return the codes found by column.

    A cell and a code that are both numbers are compared as numbers, -9.0 with -9 and 09 with 9, all else as text.
    """
    found = {}
    for name, column_codes in codes.items():
        column = frame[name]
        if has_numpy_numbers(column):
            numbers = column.to_numpy()
            is_code = {}
        else:
            cells = to_level_names(column)
            numbers = parse_numbers(column.astype(str), errors="coerce").to_numpy(float)
            is_code = {code: cells == code for code in column_codes}
        for code in column_codes:
            with suppress(ValueError):  # of a code that is no number
                is_code[code] = (numbers == float(code)) | is_code.get(code, False)
        held = [code for code, mask in is_code.items() if mask.any()]
        if held:
            found[name] = held
            frame[name] = column.mask(np.any([is_code[code] for code in held], axis=0)).infer_objects()
    return found


def add_codes(tokens: Mapping[str, list[str]], codes: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the tokens and the codes for missing values of each column."""
    names = dict.fromkeys([*tokens, *codes])
    return {name: list(dict.fromkeys([*tokens.get(name, ()), *codes.get(name, ())])) for name in names}


def restore_level_columns(
    frame: Any,
    original: Mapping[str, Any],
    target: str | None,
    kinds: Mapping[str, Column],
    options: FileOptions,
) -> None:
    """Put back the ``original`` columns whose tokens are names; ``frame`` has gaps in place of the tokens.

    Tokens are names in a column of levels, whose kind ``kinds`` may give. In the ``target`` they are labels unless
    all other values are numbers. The token NA is a gap there, too, where the ``options`` say so, unless it is a known
    level.
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
        if not holds_names:
            continue
        is_gap = options.na_is_missing and (known is None or NA not in known.levels)
        frame[name] = column.mask(column == NA) if is_gap else column
