"""Random handwriting, in the layouts of TFF's and LEAF's files."""

import json
from pathlib import Path

import h5py
import numpy as np

NAME = "fed_emnist_digitsonly"
PAIR = (f"{NAME}_train.h5", f"{NAME}_test.h5")

Writers = dict[str, tuple[np.ndarray, np.ndarray]]  # brightness (n, 28, 28) uint8, white is 255; labels


def random_writers(count: int = 10, classes: int = 10, seed: int = 0) -> Writers:
    """Return writers w09, w08, .. with 1, 2, .. images: the order of the files is not that of the names."""
    rng = np.random.default_rng(seed)
    return {
        f"w{count - 1 - k:02d}": (rng.integers(0, 256, (k + 1, 28, 28), np.uint8), rng.integers(0, classes, k + 1))
        for k in range(count)
    }


def save_tff(folder: Path, train: Writers, test: Writers, name: str = NAME) -> Path:
    """Write files in the layout of TFF."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, writers in (("train", train), ("test", test)):
        with h5py.File(folder / f"{name}_{part}.h5", "w") as file:
            for writer, (pixels, labels) in writers.items():
                group = file.create_group(f"examples/{writer}")
                group["pixels"] = (pixels / 255).astype(np.float32)
                group["label"] = labels.astype(np.int32)
    return folder


def save_leaf(folder: Path, train: Writers, test: Writers, shards: int = 1, users_first: bool = True) -> Path:
    """Write files in the layout of LEAF, in several shards."""
    for part, writers in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(shards):
            names = list(writers)[number::shards]
            data = {
                n: {"x": (writers[n][0] / 255).reshape(-1, 784).tolist(), "y": writers[n][1].tolist()} for n in names
            }
            shard = {"users": names, "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
            if not users_first:
                shard = dict(reversed(shard.items()))
            (folder / part / f"all_data_{number}.json").write_text(json.dumps(shard))
    return folder


def assert_holds_writers(data, train: Writers, test: Writers, names: list[str]) -> None:
    """Assert that data hold the images of the writers ``names``, with background and ink exchanged."""
    assert data.clients == tuple(names)
    assert data.train.x.dtype == data.validation.x.dtype == np.uint8
    assert data.train.y.dtype == data.validation.y.dtype == np.int32
    assert data.train.sizes.tolist() == [len(train[n][1]) for n in names]
    assert np.diff(data.validation_offsets).tolist() == [len(test[n][1]) for n in names]
    for x, y, writers in ((data.train.x, data.train.y, train), (data.validation.x, data.validation.y, test)):
        np.testing.assert_array_equal(x, 255 - np.concatenate([writers[n][0].reshape(-1, 784) for n in names]))
        np.testing.assert_array_equal(y, np.concatenate([writers[n][1] for n in names]))
