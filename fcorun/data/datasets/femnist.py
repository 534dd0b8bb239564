"""Federated EMNIST: handwritten digits, or digits and letters; a client is a writer."""

import logging
import math
import string
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcorun.base import config
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Dataset, Features, FederatedData
from fcorun.data.datasets.download import fetch_archive
from fcorun.data.datasets.femnist_files import file_format, list_writers, open_images, sample_digest
from fcorun.data.rows.host_matrix import balance_clients

URL = "https://storage.googleapis.com/tff-datasets-public/"
# checksums that tensorflow_federated.simulation.datasets.emnist.load_data pinned while it read HDF5 files
SHA256 = {
    "fed_emnist_digitsonly": "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
    "fed_emnist": "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
}
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # in the order of the labels
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

    Attributes:
        root: the folder of the files, to which missing files are downloaded.
        only_digits: 10 classes, the digits among LEAF's images; else 62 classes.
        fraction_clients: the fraction of writers to load, the first ones by name; at least one writer.
        split_seed: the seed of folds of a selection. None: ``seed`` of the run draws them.
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
        log.info("%s: %d of %d writers", file_format(train), len(names), len(writers))
        host_offsets = balance_clients(training.offsets(names), n_hosts) if 1 < n_hosts <= len(names) else None
        return FederatedData(
            train=training.gather(names, host_offsets, host),
            validation=validation.gather(names, host_offsets, host),
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
        return [file_format(train), sorted(map(sample_digest, train)), sorted(map(sample_digest, test))]

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
                f"{url} cannot be downloaded ({type(error).__name__}); unpack that archive into '{root}' by hand"
            ) from error
        return archive_files[:1], archive_files[1:]
