"""Federated EMNIST: handwritten digits, or digits and letters; a client is a writer."""

import hashlib
import json
import logging
import math
import os
import re
import string
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun import config
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.datasets.download import Damaged, fetch
from fcorun.errors import UserError
from fcorun.system.cache import cache_dir

URL = "https://storage.googleapis.com/tff-datasets-public/"
# of the archives, as tensorflow_federated.simulation.datasets.emnist.load_data pinned them until it left HDF5
SHA256 = {
    "fed_emnist_digitsonly": "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
    "fed_emnist": "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
}
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # in the order of the labels
PIXELS = 28 * 28
PART, PARTS = 1 << 20, 16  # bytes and number of the pieces of a file that its digest reads

Rows = tuple[np.ndarray, np.ndarray]  # pixels (n, 784) uint8, labels (n,) int32
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Femnist(Dataset):
    """Federated EMNIST by writers, from TensorFlow Federated's HDF5 files or LEAF's JSON shards, found in ``root``.

    TFF (fed_emnist_digitsonly_{train,test}.h5: 3,383 writers, 341,873 + 40,832 images of 10 classes;
    fed_emnist_{train,test}.h5: 3,400 writers, 671,585 + 77,483 images of 62 classes) is downloaded if there are no
    files. LEAF's FEMNIST (train/*.json and test/*.json, there or in data/; by its paper 3,550 writers, 805,263 images)
    is another selection of the same scans, with other numbers and a fingerprint of its own. Both store 1.0 for the
    background, here it is 0, as in the code of FedDualAvg's paper, and number the classes 0-9, A-Z, a-z. Pixels stay
    bytes until they are in a batch. The test images of a writer are for validation.

    Attributes:
        root: the folder with the files, or the one to download to.
        only_digits: 10 classes; else 62. Of LEAF's shards, the digits are taken.
        fraction_clients: of the writers, the first ones in the order of their names; at least one writer.
    """

    source = "handwriting of @cohen2017 by writer, from TensorFlow Federated or LEAF, @caldas2018"
    root: config.Path = "data"
    only_digits: bool = True
    fraction_clients: config.Fraction = 0.1

    def __post_init__(self):
        if not 0 < self.fraction_clients <= 1:
            raise UserError(
                f"data.fraction_clients={self.fraction_clients} must be more than 0 and at most 1: "
                "give 1 for all writers"
            )

    def load(self) -> FederatedData:
        """Images x 784 bytes, scale 1/255, writer by writer in the order of their names; y indexes ``classes``."""
        train, test = self._files()
        classes = CLASSES[:10] if self.only_digits else CLASSES
        writers = sorted({name for file in train for name in _writers(file)})
        if not writers:
            raise UserError(f"data.root={self.root}: {train[0]} names no writer; download it anew")
        # the little more makes 0.29 of 100 writers 29, whatever 0.29 is in binary
        chosen = writers[: max(1, math.floor(self.fraction_clients * len(writers) + 1e-9))]
        training, validation = (_examples(files, chosen, len(classes)) for files in (train, test))
        names = [name for name in chosen if name in training]
        held = [validation[name] for name in names if name in validation]
        if not names:
            raise UserError(f"data.root={self.root}: the chosen writers have no training image of the "
                            f"{len(classes)} classes; raise data.fraction_clients={self.fraction_clients}")  # fmt: skip
        if not held:
            raise UserError(f"data.root={self.root}: {test[0].parent} holds no test image of the chosen writers; split "
                            "each writer's images (in LEAF: preprocess.sh -t sample), not the writers")  # fmt: skip
        log.info("%s: %d of %d writers", _kind(train), len(names), len(writers))
        return FederatedData(
            x=np.concatenate([training[name][0] for name in names]),
            y=np.concatenate([training[name][1] for name in names]),
            offsets=np.cumsum([0] + [len(training[name][1]) for name in names]),
            task="multiclass",
            classes=classes,
            x_val=np.concatenate([x for x, _ in held]),
            y_val=np.concatenate([y for _, y in held]),
            offsets_val=np.cumsum([0] + [len(validation[name][1]) if name in validation else 0 for name in names]),
            clients=tuple(names),
            scale=1 / 255,
        ).validate()

    def fetch(self) -> None:
        self._files()

    def sources(self) -> Any:
        """Which of the two it is, and digests of its training and test files, wherever they lie."""
        train, test = self._files(download=False)
        return [_kind(train), sorted(map(_digest, train)), sorted(map(_digest, test))]

    def _files(self, download: bool = True) -> tuple[list[Path], list[Path]]:
        """Training and test files, downloaded where there are none if that is wanted."""
        root = Path(self.root).expanduser()
        name = "fed_emnist_digitsonly" if self.only_digits else "fed_emnist"
        pair = [root / f"{name}_train.h5", root / f"{name}_test.h5"]
        if all(file.exists() for file in pair):
            return pair[:1], pair[1:]
        for folder in (root, root / "data"):
            shards = [sorted((folder / part).glob("*.json")) for part in ("train", "test")]
            if all(shards):
                return shards[0], shards[1]
        url = f"{URL}{name}.tar.bz2"
        if not download:
            raise UserError(
                f"data.root={self.root}: '{root}' has no {pair[0].name} yet; a run that is not dry downloads it"
            )
        try:
            fetch(url, SHA256[name], [file.name for file in pair], root)
        except Damaged as error:
            raise UserError(
                f"data.root={self.root}: what {url} sends is not the archive that TFF published ({error}); try again, "
                f"or put {pair[0].name} and {pair[1].name} into '{root}' yourself"
            ) from error
        except (OSError, tarfile.TarError) as error:
            lacking = next(file.name for file in pair if not file.exists())
            raise UserError(
                f"data.root={self.root}: '{root}' has no {lacking} and no train/*.json and test/*.json of LEAF, and "
                f"{url} cannot be downloaded ({type(error).__name__}); unpack that archive into '{root}' by hand"
            ) from error
        return pair[:1], pair[1:]


def _kind(files: list[Path]) -> str:
    return "TFF" if files[0].suffix == ".h5" else "LEAF"


def _damaged(file: Path, error: object) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"data.root: {file} cannot be read ({reason}); delete it and get it anew")


def _writers(file: Path) -> list[str]:
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


def _examples(files: list[Path], chosen: list[str], classes: int) -> dict[str, Rows]:
    """The images of the chosen writers, of those that have any. Parsed JSON, 4 GB of text in all, is cached."""
    if files[0].suffix == ".h5":
        return dict(_read(files, chosen, classes))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((1, stats, chosen, classes)).encode()).hexdigest()[:16]
    kept = cache_dir("femnist") / f"leaf_{key}.npz"
    try:
        with kept.open("rb") as data, np.load(data) as arrays:  # numpy would leave a damaged file open
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
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:  # whole or not at all
            np.savez(Path(folder) / kept.name, **arrays)
            os.replace(Path(folder) / kept.name, kept)
    return found


def _read(files: list[Path], chosen: list[str], classes: int) -> Iterator[tuple[str, Rows]]:
    """Name and images of each chosen writer with any; LEAF's images of other classes are left out."""
    wanted = set(chosen)
    for file in files:
        here = wanted.intersection(_writers(file))
        if not here:
            continue
        if file.suffix == ".h5":
            with _h5(file) as groups:
                for name in sorted(here):
                    try:
                        pixels, labels = groups[name]["pixels"][()], groups[name]["label"][()]
                    except (KeyError, OSError) as error:
                        raise _damaged(file, f"writer {name}: {error.args[0]}") from error
                    if len(labels):
                        yield name, _rows(pixels, labels, classes, f"{file}: writer {name}")
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
                yield name, _rows(pixels[shown], labels[shown], classes, f"{file}: writer {name}")


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


def _rows(pixels: np.ndarray, labels: np.ndarray, classes: int, where: str) -> Rows:
    """Images with 1.0 for the background as bytes with 0 for it, and labels, both checked."""
    flat = pixels.reshape(len(pixels), -1)
    if flat.shape != (len(labels), PIXELS):
        raise UserError(f"data.root: {where} has pixels of shape {pixels.shape} and {len(labels)} labels; "
                        "give images of 28 x 28 and a label for each")  # fmt: skip
    if not (flat.min() >= 0 and flat.max() <= 1):
        raise UserError(f"data.root: {where} has pixels outside 0 to 1; give them as TFF and LEAF do, 1.0 for white")
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(f"data.root: {where} has a label {bad}; the {classes} classes are 0 to {classes - 1}"
                        + (", or 0 to 61 with data.only_digits=false" if classes == 10 else ""))  # fmt: skip
    return np.rint(255 * (1 - flat)).astype(np.uint8), labels.astype(np.int32)


def _digest(file: Path) -> str:
    """A digest of a file's size and of sixteen megabytes spread evenly over it; all of it, where it is no larger."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as data:
        for start in np.linspace(0, max(0, size - PART), PARTS).astype(int) if size > PART * PARTS else [0]:
            data.seek(int(start))
            digest.update(data.read(PART if size > PART * PARTS else size))
    return digest.hexdigest()
