"""Files of handwriting by writer: TensorFlow Federated's HDF5 files and LEAF's JSON shards."""

import hashlib
import json
import logging
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.files import cache_dir
from fcorun.data.rows.host_matrix import allocate
from fcorun.data.rows.rows import Rows

PIXELS = 28 * 28
DIGEST_BYTES, DIGEST_PIECES = 1 << 20, 16  # length and number of the pieces of a file that are digested

LabelledImages = tuple[np.ndarray, np.ndarray]  # pixels (n, 784) uint8, labels (n,) int32
log = logging.getLogger(__name__)


def file_format(files: list[Path]) -> str:
    """Return "TFF" or "LEAF", the source of these files."""
    return "TFF" if files[0].suffix == ".h5" else "LEAF"


def _damage_error(file: Path, error: object) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"`data.root`: {file} cannot be read ({reason}); delete it and get it anew")


def list_writers(file: Path) -> list[str]:
    """Return the names of the writers in a file, in any order."""
    if file.suffix == ".h5":
        with _open_h5(file) as groups:
            return list(groups)
    # LEAF writes the list of users first, so that the images, which take minutes, need no parsing
    with file.open(encoding="utf-8", errors="replace") as text:
        head = text.read(1 << 20)
    if start := re.match(r'\s*\{\s*"users"\s*:\s*', head):
        with suppress(ValueError):
            users = json.JSONDecoder().raw_decode(head, start.end())[0]
            if isinstance(users, list) and all(isinstance(name, str) for name in users):
                return users
    return list(_load_shard(file))


@dataclass
class WriterImages:
    """The images of those among some writers that have any.

    Attributes:
        labels: the labels of each writer, (n,) int32.
        read_pixels: yields the name and the images, (n, 784) uint8, of each of the named writers, in any order.
    """

    labels: dict[str, np.ndarray]
    read_pixels: Callable[[Collection[str]], Iterable[tuple[str, np.ndarray]]]

    def offsets(self, names: list[str]) -> np.ndarray:
        """Return the bounds of the images of these writers, in order."""
        return np.cumsum([0, *(len(self.labels.get(name, ())) for name in names)])

    def gather(self, names: list[str], host_offsets: np.ndarray | None, host: int) -> Rows:
        """Return the images of these writers, with the pixels of the writers on this host."""
        offsets = self.offsets(names)
        x, buffer_of = allocate(offsets, host_offsets, host, PIXELS, np.uint8)
        numbers = range(len(names)) if host_offsets is None else range(host_offsets[host], host_offsets[host + 1])
        number_of_writer = {names[m]: m for m in numbers if names[m] in self.labels}
        for name, pixels in self.read_pixels(number_of_writer):
            buffer_of(number_of_writer[name])[:] = pixels
        return Rows.from_offsets(
            x, np.concatenate([self.labels[name] for name in names if name in self.labels]), offsets
        )


def open_images(files: list[Path], writers: list[str], classes: int) -> WriterImages:
    """Return the images of these writers: labels are read now, pixels of HDF5 files when they are needed."""
    if files[0].suffix != ".h5":
        images = _read_leaf(files, writers, classes)
        labels = {name: y for name, (_, y) in images.items()}
        return WriterImages(labels, lambda names: ((name, images[name][0]) for name in names))
    labels = {}
    for file in files:
        with _open_h5(file) as groups:
            for name in sorted({*writers} & {*groups}):
                labels_of_writer = _read_array(file, groups, name, "label")
                if len(labels_of_writer):
                    labels[name] = _check_labels(labels_of_writer, classes, f"{file}: writer {name}")

    def read_pixels(names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
        for file in files:
            with _open_h5(file) as groups:
                for name in sorted({*names} & {*groups}):
                    n_images = len(_read_array(file, groups, name, "label"))
                    pixels = _read_array(file, groups, name, "pixels")
                    yield name, _to_bytes(pixels, n_images, f"{file}: writer {name}")

    return WriterImages(labels, read_pixels)


def _read_array(file: Path, groups: Any, name: str, key: str) -> np.ndarray:
    try:
        return groups[name][key][()]
    except (KeyError, OSError) as error:
        raise _damage_error(file, f"writer {name}: {error.args[0]}") from error


def _read_leaf(files: list[Path], writers: list[str], classes: int) -> dict[str, LabelledImages]:
    """Read the images of those among these writers that have any. The parsed JSON, 4 GB of text in all, is cached.

    Raises UserError for a writer whose images are in two files.
    """
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((1, stats, writers, classes)).encode()).hexdigest()[:16]
    cache_name = f"leaf_{key}.npz"
    try:
        # numpy would leave a damaged file open
        with (cache_dir("femnist") / cache_name).open("rb") as stream, np.load(stream) as arrays:
            bounds = np.cumsum(arrays["sizes"])[:-1]
            by_writer = zip(np.split(arrays["x"], bounds), np.split(arrays["y"], bounds), strict=True)
            return dict(zip(arrays["names"].tolist(), by_writer, strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # no cache file, or a damaged one
    images: dict[str, LabelledImages] = {}
    for file in files:
        names = {*writers}.intersection(list_writers(file))
        if not names:
            continue
        log.info("reading %s", file)
        users = _load_shard(file)
        for name in sorted(names):
            where = f"{file}: writer {name}"
            try:
                labels = np.asarray(users[name]["y"], dtype=np.int64)
                n_pixels = -1 if len(labels) else PIXELS
                pixels = np.asarray(users[name]["x"], dtype=np.float32).reshape(len(labels), n_pixels)
            except (KeyError, TypeError, ValueError) as error:
                raise _damage_error(file, f"writer {name}: {error}") from error
            if classes == 10:  # digits
                pixels = pixels[labels < classes]
                labels = labels[labels < classes]
            if not len(labels):
                continue
            if name in images:
                raise UserError(f"`data.root`: writer {name} is in two files of {files[0].parent}: put all images of "
                                "the writer into one")  # fmt: skip
            images[name] = (_to_bytes(pixels, len(labels), where), _check_labels(labels, classes, where))
    if images:
        arrays: dict[str, Any] = {
            "names": np.array(list(images)),
            "sizes": np.array([len(y) for _, y in images.values()]),
            "x": np.concatenate([x for x, _ in images.values()]),
            "y": np.concatenate([y for _, y in images.values()]),
        }
        with suppress(OSError), tempfile.TemporaryDirectory(dir=cache_dir("femnist")) as folder:
            np.savez(Path(folder) / cache_name, **arrays)
            os.replace(Path(folder) / cache_name, cache_dir("femnist") / cache_name)  # appears whole or not at all
    return images


@contextmanager
def _open_h5(path: Path) -> Iterator[Any]:
    """Open the group 'examples' of an HDF5 file, which has the writers."""
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise _damage_error(path, error) from error
    with file:
        if "examples" not in file:
            groups = ", ".join(file) or "nothing"
            raise UserError(
                f"`data.root`: {path} has no group 'examples' (it holds {groups}); give TFF's federated EMNIST"
            )
        yield file["examples"]


def _load_shard(file: Path) -> dict[str, Any]:
    """Parse the writers of a JSON shard of LEAF, with their images x and labels y as lists."""
    try:
        return dict(json.loads(file.read_bytes())["user_data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damage_error(file, f"no LEAF shard with 'user_data': {error}") from error


def _to_bytes(pixels: np.ndarray, count: int, where: str) -> np.ndarray:
    """Convert images with a background of 1.0 to bytes with a background of 0.

    Raises UserError unless the values are in [0, 1] and there are ``count`` images.
    """
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape != (count, PIXELS):
        raise UserError(f"`data.root`: {where} has pixels of shape {pixels.shape} and {count} labels; "
                        "give images of 28 x 28 and a label for each")  # fmt: skip
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise UserError(f"`data.root`: {where} has pixels outside 0 to 1; give them as TFF and LEAF do, 1.0 for white")
    return np.rint(255 * (1 - flat)).astype(np.uint8)


def _check_labels(labels: np.ndarray, classes: int, where: str) -> np.ndarray:
    """Convert labels to int32. Raises UserError for a label that is no class."""
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(f"`data.root`: {where} has a label {bad}; the {classes} classes are 0 to {classes - 1}"
                        + (", or 0 to 61 with `data.only_digits=false`" if classes == 10 else ""))  # fmt: skip
    return labels.astype(np.int32)


def sample_digest(file: Path) -> str:
    """Digest a file's size and sixteen megabytes spread evenly over the file, or all of a smaller file."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    starts, length = [0], size
    if size > DIGEST_BYTES * DIGEST_PIECES:
        starts, length = np.linspace(0, size - DIGEST_BYTES, DIGEST_PIECES).astype(int), DIGEST_BYTES
    with file.open("rb") as stream:
        for start in starts:
            stream.seek(int(start))
            digest.update(stream.read(length))
    return digest.hexdigest()
