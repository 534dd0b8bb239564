"""Federated EMNIST: handwritten digits, or digits and letters; a client is a writer.

The images are read from TensorFlow Federated's HDF5 files or LEAF's JSON shards.
"""

import json
import logging
import math
import os
import re
import shutil
import string
import sys
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base import config
from fcorun.base.errors import UserError, first_line
from fcorun.base.system import locks
from fcorun.base.system.files import cache_dir, file_digest
from fcorun.data.datasets.dataset import Dataset, Features, FederatedData
from fcorun.data.datasets.images import file_stats, load_or_make
from fcorun.data.rows.rows import Rows, allocate, balance_clients

URL = "https://storage.googleapis.com/tff-datasets-public/"
# checksums that tensorflow_federated.simulation.datasets.emnist.load_data pinned while it read HDF5 files
SHA256 = {
    "fed_emnist_digitsonly": "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
    "fed_emnist": "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
}
PUBLISHERS = {"TFF": "TensorFlow Federated's files", "LEAF": "LEAF's files"}
RETRIES = 2  # of a download
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # in the order of the labels
PIXELS = 28 * 28

LabelledImages = tuple[np.ndarray, np.ndarray]  # pixels (n, 784) uint8, labels (n,) int32
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Femnist(Dataset):
    """Federated EMNIST by writers, from TensorFlow Federated's HDF5 files or LEAF's JSON shards in ``root``.

    TFF (fed_emnist_digitsonly_{train,test}.h5: 3,383 writers, 341,873 + 40,832 images of 10 classes;
    fed_emnist_{train,test}.h5: 3,400 writers, 671,585 + 77,483 images of 62 classes) is downloaded if there are no
    files, and takes precedence over LEAF's. LEAF's FEMNIST (train/*.json and test/*.json in ``root`` or its data/; by
    its paper 3,550 writers, 805,263 images) is another selection of the same scans, with other numbers and another
    fingerprint. Both store 1.0 for the background and number the classes 0-9, A-Z, a-z. The background is 0 here, as in
    the code of FedDualAvg's paper. Pixels stay bytes until they are in a batch. The test images of a writer are the
    validation split.
    """

    source = "handwriting of @cohen2017 by writer, from TensorFlow Federated or LEAF, @caldas2018"
    root: config.PathOption = "data"
    only_digits: bool = True
    fraction_clients: config.Fraction = 0.1
    split_seed: config.SplitSeed = None

    def __post_init__(self):
        if not 0 < self.fraction_clients <= 1:
            raise UserError(
                f"`data.fraction_clients={self.fraction_clients}` must be more than 0 and at most 1: "
                "give 1 for all writers"
            )

    def load(self) -> FederatedData:
        """Return the images as rows of 784 bytes, with the scale 1/255, sorted by the writer's name.

        Targets are indices of ``classes``.
        """
        return self.load_shard(0, 1)

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """Load the shard of a host, without reading other writers' images in HDF5 files; LEAF's text is read whole."""
        train, test = self._files()
        classes = CLASSES[:10] if self.only_digits else CLASSES
        writers = sorted({name for file in train for name in list_writers(file)})
        if not writers:
            raise UserError(f"`data.root={self.root}`: {train[0]} names no writer; download it anew")
        # 1e-9 makes 0.29 of 100 writers 29, though 0.29 * 100 is less in binary
        chosen = writers[: max(1, math.floor(self.fraction_clients * len(writers) + 1e-9))]
        training, validation = (open_images(files, chosen, len(classes)) for files in (train, test))
        names = [name for name in chosen if name in training.labels]
        if not names:
            raise UserError(f"`data.root={self.root}`: the chosen writers have no training image of the "
                            f"{len(classes)} classes; raise "
                            f"`data.fraction_clients={self.fraction_clients}`")  # fmt: skip
        if not any(name in validation.labels for name in names):
            raise UserError(f"`data.root={self.root}`: {test[0].parent} holds no test image of the chosen writers; "
                            "split each writer's images (in LEAF: preprocess.sh -t sample), not the "
                            "writers")  # fmt: skip
        host_offsets = balance_clients(training.offsets(names), n_hosts) if 1 < n_hosts <= len(names) else None
        return FederatedData(
            train=training.gather(names, host_offsets, host),
            validation=validation.gather(names, host_offsets, host),
            description=f"{len(names):,} of {len(writers):,} writers, {len(classes)} classes, "
            f"{training.offsets(names)[-1]:,} training and {validation.offsets(names)[-1]:,} validation images, "
            f"from {PUBLISHERS[file_format(train)]} in '{train[0].parent}'",
            features=Features(scale=1 / 255),
            task="multiclass",
            classes=classes,
            clients=tuple(names),
        ).validate()

    def fetch(self) -> None:
        self._files()

    def sources(self) -> Any:
        """Return the format of the files, and digests of the training and of the test files.

        Raises UserError without any.
        """
        train, test = self._files(download=False)
        return [file_format(train), sorted(map(file_digest, train)), sorted(map(file_digest, test))]

    def _files(self, download: bool = True) -> tuple[list[Path], list[Path]]:
        """Return the training and the test files. Downloads missing files if ``download``."""
        root = Path(self.root).expanduser()
        name = "fed_emnist_digitsonly" if self.only_digits else "fed_emnist"
        archive_files = [root / f"{name}_train.h5", root / f"{name}_test.h5"]
        if all(file.exists() for file in archive_files):
            return archive_files[:1], archive_files[1:]
        for folder in (root, root / "data"):
            shards = [sorted((folder / split).glob("*.json")) for split in ("train", "test")]
            if all(shards):
                return shards[0], shards[1]
        url = f"{URL}{name}.tar.bz2"
        if not download:
            raise UserError(
                f"`data.root={self.root}`: '{root}' has no {archive_files[0].name} yet; "
                "a run that is not dry downloads it"
            )
        try:
            fetch_archive(url, SHA256[name], [file.name for file in archive_files], root)
        except ValueError as error:
            raise UserError(
                f"`data.root={self.root}`: what {url} sends is not the archive that TFF published (its SHA-256 is not "
                f"{SHA256[name]}); try again, "
                f"or put {archive_files[0].name} and {archive_files[1].name} into '{root}' yourself"
            ) from error
        except (OSError, tarfile.TarError) as error:
            missing = next(file.name for file in archive_files if not file.exists())
            raise UserError(
                f"`data.root={self.root}`: '{root}' has no {missing} and no train/*.json and test/*.json of LEAF, and "
                f"{url} cannot be downloaded ({type(error).__name__}); get that archive of TensorFlow Federated "
                f"(SHA-256 {SHA256[name]}), and unpack it into '{root}' by hand"
            ) from error
        return archive_files[:1], archive_files[1:]


def fetch_archive(url: str, sha256: str, members: Iterable[str], folder: Path) -> None:
    """Download the tar archive at ``url``, check it, and put its files called ``members`` into ``folder``.

    Does nothing if the folder has all of them already. The folder gets whole files only. Other processes wait for the
    first one. Raises ValueError for a checksum that stays wrong when the download is repeated, OSError (the base class
    of errors of requests) also for an archive without a member, and tarfile.TarError.
    """
    import pooch

    name = url.rsplit("/", 1)[1]
    cache = cache_dir("downloads")
    targets = [folder / member for member in members]
    with locks.acquire(cache / f"{name}.lock", seconds=-1):
        if all(target.exists() for target in targets):
            return
        print(f"downloading {url} for {folder}", file=sys.stderr, flush=True)
        pooch.get_logger().setLevel("ERROR")
        store = pooch.create(
            path=cache,
            base_url="",
            registry={name: f"sha256:{sha256}"},
            urls={name: url},
            retry_if_failed=RETRIES,
        )
        unpacked = folder / f".{name}-unpacked"  # in the folder, so that its files move at once
        shutil.rmtree(unpacked, ignore_errors=True)  # of a killed process, since this one has the lock
        try:
            store.fetch(name, processor=pooch.Untar(extract_dir=str(unpacked.resolve())))
            sources = [unpacked / target.name for target in targets]
            for source in sources:
                source.stat()  # all are there before the first one moves
            for source, target in zip(sources, targets, strict=True):
                os.replace(source, target)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
            (cache / name).unlink(missing_ok=True)


def file_format(files: list[Path]) -> str:
    """Return "TFF" or "LEAF", the source of these files."""
    return "TFF" if files[0].suffix == ".h5" else "LEAF"


def _damage_error(file: Path, error: Exception, where: str = "") -> UserError:
    return UserError(f"`data.root`: {file} cannot be read ({where}{first_line(error)}); delete it and get it anew")


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
        x, store = allocate(offsets, host_offsets, host, PIXELS, np.uint8)
        numbers = range(len(names)) if host_offsets is None else range(host_offsets[host], host_offsets[host + 1])
        number_of_writer = {names[m]: m for m in numbers if names[m] in self.labels}
        for name, pixels in self.read_pixels(number_of_writer):
            store(number_of_writer[name], pixels)
        return Rows.from_offsets(
            x, np.concatenate([self.labels[name] for name in names if name in self.labels]), offsets
        )


def open_images(files: list[Path], writers: list[str], classes: int) -> WriterImages:
    """Return the images of these writers: labels are read now, pixels of HDF5 files when they are needed.

    The parsed JSON of LEAF, 4 GB of text in all, is cached.
    """
    if files[0].suffix != ".h5":
        content = (1, file_stats(files), writers, classes)
        arrays = load_or_make("femnist", "leaf", content, lambda: _parse_leaf(files, writers, classes))
        names = arrays["names"].tolist()
        bounds = np.cumsum(arrays["sizes"])[:-1]
        pixels = dict(zip(names, np.split(arrays["x"], bounds), strict=False))
        labels = dict(zip(names, np.split(arrays["y"], bounds), strict=False))
        return WriterImages(labels, lambda names: ((name, pixels[name]) for name in names))
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
        raise _damage_error(file, error, f"writer {name}: ") from error


def _parse_leaf(files: list[Path], writers: list[str], classes: int) -> dict[str, np.ndarray]:
    """Return the "names" (W,) and numbers of images "sizes" (W,) of these writers, pixels "x" and labels "y" in order.

    Writers without images are left out. Raises UserError for a writer whose images are in two files.
    """
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
                raise _damage_error(file, error, f"writer {name}: ") from error
            if classes == 10:  # digits
                pixels = pixels[labels < classes]
                labels = labels[labels < classes]
            if not len(labels):
                continue
            if name in images:
                raise UserError(f"`data.root`: writer {name} is in two files of {files[0].parent}: put all images of "
                                "the writer into one")  # fmt: skip
            images[name] = (_to_bytes(pixels, len(labels), where), _check_labels(labels, classes, where))
    return {
        "names": np.array(list(images), str),
        "sizes": np.array([len(y) for _, y in images.values()], int),
        "x": np.concatenate([np.empty((0, PIXELS), np.uint8), *(x for x, _ in images.values())]),
        "y": np.concatenate([np.empty(0, np.int32), *(y for _, y in images.values())]),
    }


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
        raise _damage_error(file, error, "no LEAF shard with 'user_data': ") from error


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
