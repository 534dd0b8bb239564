"""Files of handwriting by writer: HDF5 as TensorFlow Federated has it, and LEAF's JSON shards."""

import hashlib
import json
import logging
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.host_rows import allocate
from fcorun.system.cache import cache_dir

PIXELS = 28 * 28
DIGEST_BYTES, DIGEST_PIECES = 1 << 20, 16  # bytes and number of the pieces of a file that its digest reads

LabelledImages = tuple[np.ndarray, np.ndarray]  # pixels (n, 784) uint8, labels (n,) int32
log = logging.getLogger(__name__)


def file_format(files: list[Path]) -> str:
    """Which of the two these are."""
    return "TFF" if files[0].suffix == ".h5" else "LEAF"


def _damaged(file: Path, error: object) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"data.root: {file} cannot be read ({reason}); delete it and get it anew")


def list_writers(file: Path) -> list[str]:
    """The names of the writers in a file, in any order."""
    if file.suffix == ".h5":
        with _h5(file) as groups:
            return list(groups)
    # LEAF writes the list of users first: no need to parse the images, which take minutes
    with file.open(encoding="utf-8") as text:
        head = text.read(1 << 20)
    if start := re.match(r'\s*\{\s*"users"\s*:\s*', head):
        try:
            return json.JSONDecoder().raw_decode(head, start.end())[0]
        except ValueError:
            pass
    return list(_shard(file))


@dataclass
class WriterImages:
    """The images of some writers, of those that have any.

    Attributes:
        labels: those of each writer, (n,) int32.
        pixels: gives, for names of writers, each name and its images, (n, 784) uint8, in any order.
    """

    labels: dict[str, np.ndarray]
    pixels: Callable[[Collection[str]], Iterable[tuple[str, np.ndarray]]]

    def offsets(self, names: list[str]) -> np.ndarray:
        """Where the images of each of these writers begin, and the end."""
        return np.cumsum([0, *(len(self.labels.get(name, ())) for name in names)])

    def gather(self, names: list[str], cut: np.ndarray | None, part: int) -> tuple[Any, np.ndarray]:
        """x, with the images of this host's writers, and y of all of these writers."""
        x, room = allocate(self.offsets(names), cut, part, PIXELS, np.uint8)
        here = range(len(names)) if cut is None else range(cut[part], cut[part + 1])
        places = {names[m]: m for m in here if names[m] in self.labels}
        for name, pixels in self.pixels(places):
            room(places[name])[:] = pixels
        return x, np.concatenate([self.labels[name] for name in names if name in self.labels])


def open_images(files: list[Path], writers: list[str], classes: int) -> WriterImages:
    """The images of the chosen writers in these files."""
    if files[0].suffix == ".h5":
        return WriterImages({name: labels for file in files for name, labels in _h5_labels(file, writers, classes)},
                       lambda names: (found for file in files for found in _h5_pixels(file, names)))  # fmt: skip
    rows = _leaf(files, writers, classes)
    return WriterImages(
        {name: y for name, (_, y) in rows.items()}, lambda names: ((name, rows[name][0]) for name in names)
    )


def _h5_labels(file: Path, chosen: Collection[str], classes: int) -> Iterator[tuple[str, np.ndarray]]:
    with _h5(file) as groups:
        for name in sorted({*chosen} & {*groups}):
            labels = _stored(file, groups, name, "label")
            if len(labels):
                yield name, _checked(labels, classes, f"{file}: writer {name}")


def _h5_pixels(file: Path, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    with _h5(file) as groups:
        for name in sorted({*names} & {*groups}):
            labels, pixels = (_stored(file, groups, name, key) for key in ("label", "pixels"))
            yield name, _bytes(pixels, len(labels), f"{file}: writer {name}")


def _stored(file: Path, groups: Any, name: str, key: str) -> np.ndarray:
    try:
        return groups[name][key][()]
    except (KeyError, OSError) as error:
        raise _damaged(file, f"writer {name}: {error.args[0]}") from error


def _leaf(files: list[Path], chosen: list[str], classes: int) -> dict[str, LabelledImages]:
    """The images of the chosen writers, of those that have any. Parsed JSON, 4 GB of text in all, is cached."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((1, stats, chosen, classes)).encode()).hexdigest()[:16]
    kept_in = cache_dir("femnist") / f"leaf_{key}.npz"
    try:
        with kept_in.open("rb") as data, np.load(data) as arrays:  # numpy would leave a damaged file open
            ends = np.cumsum(arrays["sizes"])[:-1]
            parts = zip(np.split(arrays["x"], ends), np.split(arrays["y"], ends), strict=True)
            return dict(zip(arrays["names"].tolist(), parts, strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent or damaged: made anew
    found = dict(_read(files, chosen, classes))
    if found:
        arrays: dict[str, Any] = {
            "names": np.array(list(found)),
            "sizes": np.array([len(y) for _, y in found.values()]),
            "x": np.concatenate([x for x, _ in found.values()]),
            "y": np.concatenate([y for _, y in found.values()]),
        }
        with tempfile.TemporaryDirectory(dir=kept_in.parent) as folder:  # whole or not at all
            np.savez(Path(folder) / kept_in.name, **arrays)
            os.replace(Path(folder) / kept_in.name, kept_in)
    return found


def _read(files: list[Path], chosen: list[str], classes: int) -> Iterator[tuple[str, LabelledImages]]:
    """Name and images of each chosen writer with any in LEAF's shards; images of other classes are left out."""
    wanted = set(chosen)
    for file in files:
        here = wanted.intersection(list_writers(file))
        if not here:
            continue
        log.info("reading %s", file)
        users = _shard(file)
        for name in sorted(here):
            try:
                pixels, labels = users[name]["x"], np.asarray(users[name]["y"], dtype=np.int64)
                pixels = np.asarray(pixels, dtype=np.float32).reshape(len(labels), -1)
            except (KeyError, TypeError, ValueError) as error:
                raise _damaged(file, f"writer {name}: {error}") from error
            shown = labels < classes if classes == 10 else np.ones(len(labels), bool)
            if shown.any():
                where, labels = f"{file}: writer {name}", labels[shown]
                yield name, (_bytes(pixels[shown], len(labels), where), _checked(labels, classes, where))


class _h5:
    """The group 'examples' of an HDF5 file, a context manager."""

    def __init__(self, file: Path):
        self.path = file

    def __enter__(self) -> Any:
        import h5py

        try:
            self.file = h5py.File(self.path, "r")
        except OSError as error:
            raise _damaged(self.path, error) from error
        if "examples" not in self.file:
            found = ", ".join(self.file) or "nothing"
            self.file.close()
            raise UserError(
                f"data.root: {self.path} has no group 'examples' (it holds {found}); give TFF's federated EMNIST"
            )
        return self.file["examples"]

    def __exit__(self, *error) -> None:
        self.file.close()


def _shard(file: Path) -> dict[str, Any]:
    """The writers of a JSON shard of LEAF, with their images x and labels y as lists."""
    try:
        return dict(json.loads(file.read_bytes())["user_data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file, f"no LEAF shard with 'user_data': {error}") from error


def _bytes(pixels: np.ndarray, count: int, where: str) -> np.ndarray:
    """Images of ``count`` labels, with 1.0 for the background, as bytes with 0 for it, checked."""
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape != (count, PIXELS):
        raise UserError(f"data.root: {where} has pixels of shape {pixels.shape} and {count} labels; "
                        "give images of 28 x 28 and a label for each")  # fmt: skip
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise UserError(f"data.root: {where} has pixels outside 0 to 1; give them as TFF and LEAF do, 1.0 for white")
    return np.rint(255 * (1 - flat)).astype(np.uint8)


def _checked(labels: np.ndarray, classes: int, where: str) -> np.ndarray:
    """Labels, as int32. Raises UserError for one that is of no class."""
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(f"data.root: {where} has a label {bad}; the {classes} classes are 0 to {classes - 1}"
                        + (", or 0 to 61 with data.only_digits=false" if classes == 10 else ""))  # fmt: skip
    return labels.astype(np.int32)


def sample_digest(file: Path) -> str:
    """A digest of a file's size and of sixteen megabytes spread evenly over it; all of it, where it is no larger."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as data:
        for start in (
            np.linspace(0, max(0, size - DIGEST_BYTES), DIGEST_PIECES).astype(int)
            if size > DIGEST_BYTES * DIGEST_PIECES
            else [0]
        ):
            data.seek(int(start))
            digest.update(data.read(DIGEST_BYTES if size > DIGEST_BYTES * DIGEST_PIECES else size))
    return digest.hexdigest()
