"""What files look like, each format once: metrics.csv, config.yaml, JSON, named arrays, checkpoints, tables of runs.

A record may come from somebody else: links are not followed, files have a largest size, and nothing that is read is
executed.
"""

import csv
import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fcorun.metrics import INTEGER_COUNTERS
from fcorun.system.files import read_regular_file

if TYPE_CHECKING:
    import numpy as np

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# the largest file of each kind that is read, in bytes
_TEXT, _YAML, _ARRAYS, _MASK = 2**30, 2**24, 2**34, 2**29
_DEPTH = 30  # of mappings and lists within each other in YAML
# what reading a file of named arrays raises that is not there or damaged
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def read_text(path: Path) -> str:
    """Return the text of a file of a record, with the ends of its lines as they are. Raises OSError or ValueError."""
    return read_regular_file(path, _TEXT).decode("utf-8")


def csv_text(rows: Iterable[dict]) -> str:
    """Rows as CSV, numbers with all their digits."""
    rows = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_rows(folder: Path) -> list[dict[str, float]]:
    """The rows of a folder's metrics.csv as it was written, counts as whole numbers; none where there is no file."""
    try:
        names, *lines = csv.reader(io.StringIO(read_text(folder / "metrics.csv"), newline=""))
    except (OSError, ValueError, csv.Error):
        return []
    kinds = [int if name in INTEGER_COUNTERS else float for name in names]
    return [{n: kind(v) for n, kind, v in zip(names, kinds, line, strict=True)} for line in lines]


def yaml_text(config: dict[str, Any]) -> str:
    """A configuration as YAML, its keys in their order."""
    return yaml.dump(config, Dumper=_Dumper, sort_keys=False)


class _Dumper(_DUMPER):
    """A dumper that writes a list anew where it comes up again, for ``read_yaml`` takes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a configuration: mappings with keys of text, lists, texts, numbers, true, false and null.

    Raises OSError or yaml.YAMLError: for an alias too, which may stand for exponentially many values, and for values
    deep within each other, which libyaml could not bear.
    """
    content, depth = read_regular_file(path, _YAML), 0
    for event in yaml.parse(content, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"{path} has an alias, *{event.anchor}, which no configuration of a record has")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise yaml.YAMLError(f"{path} has more than {_DEPTH} mappings or lists within each other")
    try:
        found = yaml.load(content, _LOADER)
    except ValueError as error:  # of a number, or a date
        raise yaml.YAMLError(f"{path}: {error}") from error
    if found is not None and not (isinstance(found, dict) and _is_plain(found)):
        raise yaml.YAMLError(f"{path} holds something else than texts, numbers, lists and mappings")
    return found or {}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys; lists become text."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = str(value) if isinstance(value, list) else value
    return found


def json_text(content: Any) -> str:
    """JSON, indented."""
    return json.dumps(content, indent=2) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """The mapping of a JSON file; empty where there is none that can be read."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a folder's summary.json; empty if the file is missing or cannot be read."""
    return read_json(folder / "summary.json")


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    """Named arrays as the content of an .npz file."""
    import numpy as np

    buffer = io.BytesIO()
    try:
        np.savez(buffer, **arrays)
    except ValueError as error:  # closing the archive hides what broke off the writing, KeyboardInterrupt too
        raise error.__context__ or error from None
    return buffer.getvalue()


def read_npz(path: Path) -> "dict[str, np.ndarray]":
    """Return the arrays of an .npz file that ``npz_bytes`` wrote, by name. Raises one of DAMAGED."""
    return arrays_from_bytes(read_regular_file(path, _ARRAYS))


def arrays_from_bytes(content: bytes) -> "dict[str, np.ndarray]":
    """Return the arrays of the content of an .npz file by name: of numbers and texts, never of objects.

    Raises one of DAMAGED: for compressed arrays too, which might be of any size.
    """
    import numpy as np

    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        if any(each.compress_type != zipfile.ZIP_STORED for each in packed.infolist()):
            raise ValueError("its arrays are compressed, which those of a record are not")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return dict(found)
    except MemoryError as error:
        raise ValueError("an array claims to be larger than its file") from error


def nifti_bytes(array: "np.ndarray", affine: "np.ndarray") -> bytes:
    """An image (X, Y, Z[, n]) as the content of a .nii.gz file; the same image gives the same bytes."""
    import gzip

    from nibabel.nifti1 import Nifti1Image

    return gzip.compress(Nifti1Image(array, affine).to_bytes(), mtime=0)


def read_mask(path: Path) -> "tuple[np.ndarray, np.ndarray] | None":
    """Where a mask that ``nifti_bytes`` wrote is not 0, and its affine; None without a file. Raises one of DAMAGED."""
    import numpy as np

    if not path.exists():
        return None
    import gzip
    import zlib

    from nibabel.filebasedimages import ImageFileError
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import HeaderDataError

    try:
        with gzip.open(io.BytesIO(read_regular_file(path, _MASK))) as packed:
            content = packed.read(_MASK + 1)
        if len(content) > _MASK:
            raise OSError(f"{path} unpacks to more than {_MASK:,} bytes")
        image = Nifti1Image.from_bytes(content)
        return np.asarray(image.dataobj) != 0, np.asarray(image.affine, float)
    except (ImageFileError, HeaderDataError, EOFError, zlib.error) as error:
        raise OSError(f"{path} is no image") from error


def checkpoint_bytes(leaves: list, round_: int, seconds: float, rows: list[dict]) -> bytes:
    """The arrays of a state, and what was measured on the way there."""
    import numpy as np

    about = json.dumps({"round": round_, "seconds": seconds, "rows": rows})
    arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    return npz_bytes({"about": np.frombuffer(about.encode(), np.uint8), **arrays})


def read_checkpoint(path: Path) -> tuple[list, int, float, list[dict]] | None:
    """What ``checkpoint_bytes`` was given; None if there is nothing, or nothing that can be read."""
    try:
        found = read_npz(path)
        about = json.loads(bytes(found.pop("about")))
        leaves = [found[f"leaf{i}"] for i in range(len(found))]
    except READ_ERRORS:
        return None
    return leaves, about["round"], about["seconds"], about["rows"]


def frame_csv(frame: Any) -> bytes:
    """A data frame as CSV, numbers with all their digits."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def frame_parquet(frame: Any) -> bytes:
    """A data frame as Parquet; columns of mixed types become text."""
    frame, buffer = frame.copy(), io.BytesIO()
    for name in (name for name in frame if frame[name].dtype == object):
        frame[name] = [None if gone else str(v) for v, gone in zip(frame[name], frame[name].isna(), strict=True)]
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
