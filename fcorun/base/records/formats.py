"""The file formats of records: metrics.csv, config.yaml, JSON, named arrays, checkpoints, tables of runs.

A record may come from somebody else: links are not followed, files have a largest size, and no content is executed.
"""

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from fcorun.base.errors import abbreviate
from fcorun.base.system.files import read_regular_file

if TYPE_CHECKING:
    import numpy as np

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# the size of the largest file of each kind that is read, in bytes
_MAX_TEXT = 2**30
_MAX_YAML = 2**24
_MAX_ARRAYS = 2**34
_MAX_MASK = 2**29
_MAX_KEYS = 10_000  # of all mappings of a YAML file
_MAX_DEPTH = 30  # of nested mappings and lists in YAML
_MAX_SHOWN = 100  # characters of a value in a sentence
_CLIENTS = "clients/"  # before the names of arrays of clients in a checkpoint
_MAX_NUMBER = 3000  # characters of a number in YAML: its value has fewer than the 4,300 digits that Python writes
# the errors that reading a missing or damaged file of named arrays raises
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile)


def read_text(path: Path) -> str:
    """Read the text of a file of a record, with its line ends as they are. Raises OSError or ValueError."""
    return read_regular_file(path, _MAX_TEXT).decode("utf-8")


def csv_text(rows: Iterable[dict]) -> str:
    """Format rows as CSV, numbers with all their digits."""
    rows = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def columns_csv(columns: Mapping[str, Sequence]) -> str:
    """Format columns as CSV, numbers with all their digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()


_FORMULA = re.compile(r'(?m)(?:^|,)"?([=+@-][^,"\n]*)')


def describe_formulas(files: Mapping[str, bytes | str]) -> str:
    """Return a sentence on cells of .csv files that a spreadsheet reads as formulas, as it does -2+3 or =A1; or "".

    The cells stay as they are, so that every program reads the names of clients and columns unchanged.
    """
    tables = []
    cells: dict[str, None] = {}
    for name, content in files.items():
        if not name.endswith(".csv"):
            continue
        text = content if isinstance(content, str) else content.decode()
        formulas = [cell for cell in _FORMULA.findall(text) if not _is_number(cell)]
        if formulas:
            tables.append(name)
            cells |= dict.fromkeys(formulas)
    if not tables:
        return ""
    shown = abbreviate([f"'{cell[:_MAX_SHOWN]}'" for cell in cells])
    return f"a spreadsheet reads cells of {abbreviate(tables)} as formulas ({shown}): import them there as text"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def yaml_text(config: dict[str, Any]) -> str:
    """Format a configuration as YAML, its keys in their order."""
    return yaml.dump(config, Dumper=_Dumper, sort_keys=False)


class _Dumper(_DUMPER):
    """A dumper that writes a repeated list in full each time, because ``read_yaml`` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(_LOADER):
    """A loader that refuses a key given twice, of which YAML keeps the last value, and long numbers.

    Numbers with colons (base 60) take quadratic time, other long ones cannot be written.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        values = super().construct_mapping(node, deep)
        known = set()
        for key, _ in node.value:
            if key.value in known:
                problem = f"the key '{str(key.value)[:_MAX_SHOWN]}' is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            known.add(key.value)
        return values

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        if node.tag.endswith((":int", ":float")) and len(text) > _MAX_NUMBER:
            raise ValueError(f"a number has more than {_MAX_NUMBER:,} characters")
        return text

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Raises yaml.MarkedYAMLError for a scalar that is not of its tag, or not plain."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:  # from a bad number, boolean or date
            problem = f"a value is not of its tag ({str(error)[:_MAX_SHOWN]})"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error
        if isinstance(node, yaml.ScalarNode) and not _is_plain(value):
            problem = f"'{str(node.value)[:_MAX_SHOWN]}' is no text, number, true, false or null"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


def _refuse_tag(loader: Any, node: Any) -> None:
    raise yaml.MarkedYAMLError(problem=f"the tag {node.tag[:_MAX_SHOWN]} is not read", problem_mark=node.start_mark)


_Loader.add_constructor(None, _refuse_tag)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a configuration: mappings with keys of text, lists, texts, numbers, true, false and null.

    Raises OSError, and yaml.YAMLError as ``parse_yaml`` does.
    """
    return parse_yaml(read_regular_file(path, _MAX_YAML), str(path))


def parse_yaml(content: bytes | str, path: str) -> dict[str, Any]:
    """Return the content of a YAML file as ``read_yaml`` does.

    Raises yaml.YAMLError, whose text is one line: the ``path``, the number of the line if it is known, and the problem.
    An alias is refused because it may stand for exponentially many values, deep nesting because libyaml overflows its
    stack, very many keys because each may become a column of a table, and a key given twice because YAML keeps its last
    value.
    """
    if len(content) > _MAX_YAML:
        raise yaml.YAMLError(f"{path} has more than the {_MAX_YAML:,} characters that are read")
    try:
        parents: list[yaml.Event] = []  # the mappings and lists that hold the event
        n_nodes = 0  # keys and values of mappings
        for event in yaml.parse(content, _LOADER):
            problem = ""
            if isinstance(event, yaml.NodeEvent) and parents and isinstance(parents[-1], yaml.MappingStartEvent):
                n_nodes += 1
            if isinstance(event, yaml.CollectionStartEvent):
                parents.append(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                parents.pop()
            if isinstance(event, yaml.AliasEvent):
                problem = f"the alias *{event.anchor[:_MAX_SHOWN]} stands for another value"
            elif n_nodes > 2 * _MAX_KEYS:
                problem = f"there are more than {_MAX_KEYS:,} keys"
            elif len(parents) > _MAX_DEPTH:
                problem = f"more than {_MAX_DEPTH} mappings or lists are within each other"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        config = yaml.load(content, _Loader)
    except yaml.MarkedYAMLError as error:
        raise yaml.YAMLError(describe_yaml_error(error, path)) from error
    except yaml.reader.ReaderError as error:
        text = content.encode() if isinstance(content, str) else content
        line = text.count(b"\n", 0, error.position) + 1
        raise yaml.YAMLError(f"{path}, line {line}: the text is not UTF-8, or has a control character") from error
    if config is not None and not isinstance(config, dict):
        raise yaml.YAMLError(f"{path} holds no mapping of keys to values")
    if not _is_plain(config):
        raise yaml.YAMLError(f"{path} holds something else than texts, numbers, lists and mappings with keys of text")
    return config or {}


def describe_yaml_error(error: yaml.MarkedYAMLError, name: str = "") -> str:
    """Return one sentence for an error of YAML: the file (``name``, or that of the error), the line and the problem."""
    mark = error.problem_mark or error.context_mark
    location = f"{name or (mark.name if mark else 'YAML')}" + (f", line {mark.line + 1}" if mark else "")
    return f"{location}: {error.problem or error.context}"


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of mappings with keys of text, lists, texts, numbers, booleans and null."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float))


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration with dotted keys; lists become text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value) if isinstance(value, list) else value
    return flat


def json_text(content: Any) -> str:
    """Format a value as indented JSON."""
    return json.dumps(content, indent=2) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read the mapping of a JSON file; empty if the file is missing or cannot be read."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    """Return named arrays as the content of an .npz file."""
    import numpy as np

    buffer = io.BytesIO()
    try:
        np.savez(buffer, **arrays)
    except ValueError as error:  # closing the archive hides the error that ended the writing, KeyboardInterrupt too
        raise error.__context__ or error from None
    return buffer.getvalue()


def read_npz(path: Path) -> "dict[str, np.ndarray]":
    """Read the arrays of an .npz file that ``npz_bytes`` wrote, by name. Raises one of READ_ERRORS."""
    return arrays_from_bytes(read_regular_file(path, _MAX_ARRAYS))


def arrays_from_bytes(content: bytes) -> "dict[str, np.ndarray]":
    """Return the arrays in the content of an .npz file by name: numbers and texts, never objects.

    Raises one of READ_ERRORS, also for compressed arrays, whose size is unknown before they are read.
    """
    import numpy as np

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its arrays are compressed, which those of a record are not")
        if sum(member.file_size for member in members) > len(content):
            raise ValueError("its arrays overlap")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # numpy parses the header of an array, and may raise any error
        raise ValueError(f"its arrays cannot be read ({error})") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it holds something else than arrays")
    if any(array.size > len(content) for array in arrays.values()):  # of texts without characters
        raise ValueError("an array claims to be larger than its file")
    return arrays


def nifti_bytes(array: "np.ndarray", affine: "np.ndarray") -> bytes:
    """Return an image (X, Y, Z[, n]) as the content of a .nii.gz file; the same image gives the same bytes."""
    import gzip

    from nibabel.nifti1 import Nifti1Image

    return gzip.compress(Nifti1Image(array, affine).to_bytes(), mtime=0)


def read_mask(path: Path) -> "tuple[np.ndarray, np.ndarray] | None":
    """Read a mask that ``nifti_bytes`` wrote: the array of its nonzero voxels, and its affine.

    Returns None if the file is missing. Raises OSError for a file that cannot be read.
    """
    import numpy as np

    if not path.exists():
        return None
    import gzip

    from nibabel.nifti1 import Nifti1Image

    try:
        with gzip.open(io.BytesIO(read_regular_file(path, _MAX_MASK))) as archive:
            content = archive.read(_MAX_MASK + 1)
        if len(content) > _MAX_MASK:
            raise OSError(f"{path} unpacks to more than {_MAX_MASK:,} bytes")
        image: Any = Nifti1Image.from_bytes(content)
        if math.prod(image.shape) * image.get_data_dtype().itemsize > len(content):  # nibabel would allocate them
            raise OSError(f"{path} claims to have more voxels than it has")
        return np.asarray(image.dataobj) != 0, np.asarray(image.affine, float)
    except OSError:
        raise
    except Exception as error:  # nibabel may raise any error for a damaged header
        raise OSError(f"{path} is no image") from error


class Checkpoint(NamedTuple):
    """The point from which an interrupted run resumes.

    Attributes:
        leaves: the leaves of the run's state.
        round: the number of rounds done.
        seconds: the running time so far.
        rows: the evaluations so far.
        clients: the arrays of each client's losses and scores so far.
    """

    leaves: list
    round: int
    seconds: float
    rows: list[dict]
    clients: Mapping[str, Any] = MappingProxyType({})


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the content of a file."""
    import numpy as np

    header = json.dumps({"round": checkpoint.round, "seconds": checkpoint.seconds, "rows": checkpoint.rows})
    arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(checkpoint.leaves)}
    arrays |= {_CLIENTS + name: array for name, array in checkpoint.clients.items()}
    return npz_bytes({"about": np.frombuffer(header.encode(), np.uint8), **arrays})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a checkpoint; return None if the file is missing or cannot be read."""
    try:
        arrays = read_npz(path)
        header = json.loads(bytes(arrays.pop("about")))
        names = [name for name in arrays if name.startswith(_CLIENTS)]
        clients = {name.removeprefix(_CLIENTS): arrays.pop(name) for name in names}
        leaves = [arrays[f"leaf{i}"] for i in range(len(arrays))]
        return Checkpoint(leaves, header["round"], header["seconds"], header["rows"], clients)
    except (*READ_ERRORS, TypeError):
        return None


def frame_csv(frame: Any) -> bytes:
    """Return a data frame as CSV, numbers with all their digits."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def frame_parquet(frame: Any) -> bytes:
    """Return a data frame as Parquet; columns of mixed types become text."""
    frame = frame.copy()
    for name in frame:
        if frame[name].dtype == object:
            values = zip(frame[name], frame[name].isna(), strict=True)
            frame[name] = [None if missing else str(value) for value, missing in values]
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
