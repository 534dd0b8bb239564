"""Names of clients, groups and folds such as 17.0, which versions before took for other names than 17.

By these versions, rows were held out by other names, and so were other rows: such data have another fingerprint.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fcorun.base.system.files import cached_by_key
from fcorun.data.tables.array_files import ARRAY_FOLDER, PARQUET_ENDING, is_array_folder, read_arrays
from fcorun.data.tables.cells import column_as_text, names_as_text
from fcorun.data.tables.parsed_table import FileOptions
from fcorun.data.tables.readers import (
    LIBSVM_ENDINGS,
    NAMED_COLUMN_ENDINGS,
    TEXT_ENDINGS,
    detect_ending,
    explain_damage,
    read_named_columns,
)
from fcorun.data.tables.text_files import examine_text_file

REAL_NAMES = {"names": "17.0 is 17"}  # in the fingerprint of data that have such names


@cached_by_key
def file_has_real_names(_key: str, path: str, names: Collection[str], options: FileOptions) -> bool:
    """Return whether a file has names of clients, groups or folds as ``have_real_names`` finds them.

    Args:
        path: the file, or a folder of .npy files.
        names: the columns, or arrays, of names; those that the file lacks are left out.
        options: how a file with named columns is read.

    Raises UserError for a file that cannot be read.
    """
    import pandas as pd

    where = f"`data.path={path}`"
    file = Path(path).expanduser()
    ending = ARRAY_FOLDER if is_array_folder(path) else detect_ending(file, where)
    if ending in LIBSVM_ENDINGS or (ending in NAMED_COLUMN_ENDINGS and not names):
        return False
    with explain_damage(where, ending), warnings.catch_warnings(action="ignore"):
        if ending in TEXT_ENDINGS:
            form = examine_text_file(file, ending, options.encoding, where).pandas_options()
            frame: Any = pd.read_csv(file, usecols=names.__contains__, dtype=str, keep_default_na=False, **form)
        elif ending == PARQUET_ENDING:
            from pyarrow import parquet

            frame = pd.read_parquet(file, columns=[name for name in parquet.read_schema(file).names if name in names])
        elif ending in NAMED_COLUMN_ENDINGS:
            frame = read_named_columns(file, ending, None, list(names), where=where, options=options).frame
            frame = frame[frame.columns.intersection(list(names))]
        else:
            frame = pd.DataFrame(read_arrays(file, ending, where, (), ("client", *names)))
    return have_real_names({name: frame[name] for name in frame})


def have_real_names(columns: Mapping[str, Any]) -> bool:
    """Return whether one of these columns of names has one such as "3.0", which ``names_as_text`` changes."""
    for column in columns.values():
        names = column_as_text(column.drop_duplicates())
        if (names_as_text(names) != names).any():
            return True
    return False
