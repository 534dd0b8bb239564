"""What files look like, each format once: metrics.csv, config.yaml, JSON, named arrays, checkpoints, tables of runs."""

import csv
import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fcorun.metrics import RENAMED, WHOLE, renamed

if TYPE_CHECKING:
    import numpy as np

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# what reading a file of named arrays raises that is not there or damaged
DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


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
        with (folder / "metrics.csv").open(newline="") as file:
            told, *lines = csv.reader(file)
    except (OSError, ValueError):
        return []
    names = [RENAMED.get(name, name) for name in told]
    kinds = [int if name in WHOLE else float for name in names]
    return [{n: kind(v) for n, kind, v in zip(names, kinds, line, strict=True)} for line in lines]


def yaml_text(config: dict[str, Any]) -> str:
    """A configuration as YAML, its keys in their order."""
    return yaml.dump(config, Dumper=_DUMPER, sort_keys=False)


def read_yaml(path: Path) -> dict[str, Any]:
    """A configuration. Raises OSError or yaml.YAMLError."""
    return yaml.load(path.read_bytes(), _LOADER) or {}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys; lists become text."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = str(value) if isinstance(value, list) else value
    return found


def json_text(content: Any) -> str:
    """JSON, indented."""
    return json.dumps(content, indent=2) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """The mapping of a JSON file; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """A folder's summary.json, its metrics under the names they have now; empty where there is none to be read."""
    found = read_json(folder / "summary.json")
    return found | {kind: renamed(found[kind]) for kind in ("final", "best", "tail") if kind in found}


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    """Named arrays as the content of an .npz file."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def read_npz(path: Path) -> "dict[str, np.ndarray]":
    """The arrays of an .npz file by name. Raises one of DAMAGED."""
    import numpy as np

    with path.open("rb") as file, np.load(file) as found:  # numpy would leave a damaged file open
        return dict(found)


def nifti_bytes(array: "np.ndarray", affine: "np.ndarray") -> bytes:
    """An image (X, Y, Z[, n]) as the content of a .nii.gz file; the same image gives the same bytes."""
    import gzip

    from nibabel.nifti1 import Nifti1Image

    return gzip.compress(Nifti1Image(array, affine).to_bytes(), mtime=0)


def read_grid(path: Path) -> "tuple[np.ndarray, np.ndarray] | None":
    """Where a mask that ``nifti_bytes`` wrote is not 0, and its affine; None without a file. Raises one of DAMAGED."""
    import numpy as np

    if not path.exists():
        return None
    from nibabel import load
    from nibabel.filebasedimages import ImageFileError

    try:
        image: Any = load(path)
        return np.asarray(image.dataobj) != 0, np.asarray(image.affine, float)
    except (ImageFileError, EOFError) as error:
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
    except DAMAGED:
        return None
    return leaves, about["round"], about["seconds"], [renamed(row) for row in about["rows"]]


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
