"""Federated EMNIST: what is read of TFF's and LEAF's files, and what users get wrong."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from handwriting import NAME, PAIR, assert_holds_writers, random_writers, save_leaf, save_tff
from helpers import SHARED, fails, not_none, snapshots

from fcorun import compose
from fcorun.base.config import build
from fcorun.data.datasets import femnist
from fcorun.data.datasets.femnist import Femnist

pytestmark = pytest.mark.usefixtures("isolated")

REAL = SHARED / "data"

real = pytest.mark.skipif(
    not all((REAL / name).exists() for name in PAIR),
    reason=f"NO REAL IMAGES: {PAIR[0]} and {PAIR[1]} are not in {REAL}",
)


# ---------------------------------------------------------------- TFF's files


@real
def test_the_real_images():
    data = Femnist(str(REAL), fraction_clients=1.0).load()
    assert (data.train.x.shape, not_none(data.validation).x.shape) == ((5745, 784), (606, 784))
    assert len(data.clients) == len(data.train.sizes) == 60
    assert data.clients[:2] == ("f0000_00", "f0001_00")
    assert data.task == "multiclass"
    assert data.classes == tuple("0123456789")
    assert data.features.scale == 1 / 255
    assert data.truth is None
    with h5py.File(REAL / PAIR[0]) as file:
        pixels, labels = (np.asarray(file[f"examples/f0001_00/{name}"]) for name in ("pixels", "label"))
    assert not_none(data.validation_offsets)[-1] == 606
    assert (np.diff(not_none(data.validation_offsets)) > 0).all()
    rows = slice(data.train.offsets[1], data.train.offsets[2])
    np.testing.assert_allclose(data.train.x[rows] * data.features.scale, 1 - pixels.reshape(-1, 784), atol=1e-6)
    np.testing.assert_array_equal(data.train.y[rows], labels)
    corners = data.train.x.reshape(-1, 28, 28)[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert not corners.any()  # the background
    assert data.train.x.max() == 255


@pytest.mark.slow
@real
@pytest.mark.parametrize(("objective", "accuracy"), [("softmax", 0.88), ("mlp", 0.92)])
def test_the_defaults_learn(objective, accuracy):
    config = compose(
        ["data=femnist", f"data.root={REAL}", "data.fraction_clients=1", f"objective={objective}", "rounds=30"]
    )
    first, *_, last = snapshots(config)
    assert first.metrics["val_accuracy"][0] < 0.3
    assert last.metrics["val_accuracy"][0] > accuracy
    assert last.metrics["density"][0] < 1


def test_writers_in_the_order_of_their_names(tmp_path):
    train, test = random_writers(), random_writers(seed=1)
    assert_holds_writers(
        Femnist(str(save_tff(tmp_path, train, test)), fraction_clients=1.0).load(), train, test, sorted(train)
    )


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 1), (0.3, 3), (0.35, 3), (0.7, 7), (1e-6, 1), (1.0, 10)])
def test_the_first_writers(tmp_path, fraction, count):
    train, test = random_writers(), random_writers(seed=1)
    data = Femnist(str(save_tff(tmp_path, train, test)), fraction_clients=fraction).load()
    assert_holds_writers(data, train, test, sorted(train)[:count])
    assert data.description.startswith(f"{count} of 10 writers, 10 classes, {data.train.n_rows:,} training and ")
    assert f"from TensorFlow Federated's files in '{tmp_path}'" in data.description


def test_a_fraction_is_decimal(tmp_path):
    """0.29 * 100 is 28.999999999999996."""
    train = {f"w{k:03d}": (np.zeros((2, 28, 28), np.uint8), np.array([0, 1])) for k in range(100)}
    assert len(Femnist(str(save_tff(tmp_path, train, train)), fraction_clients=0.29).load().clients) == 29


def test_only_chosen_writers_are_read(tmp_path):
    root = save_tff(tmp_path, random_writers(), random_writers(seed=1))
    with h5py.File(root / PAIR[0], "a") as file:
        del file["examples/w07/pixels"]
    assert len(Femnist(str(root), fraction_clients=0.7).load().clients) == 7
    with fails("data.root", PAIR[0], "w07", "pixels"):
        Femnist(str(root), fraction_clients=0.8).load()


def test_every_brightness_is_kept(tmp_path):
    ramp = np.resize(np.arange(256, dtype=np.uint8), (4, 28, 28))
    writers = {"a": (ramp, np.array([0, 1, 2, 3]))}
    assert_holds_writers(Femnist(str(save_tff(tmp_path, writers, writers))).load(), writers, writers, ["a"])


def test_all_classes_are_there_whatever_was_written(tmp_path):
    few = {"a": (np.zeros((2, 28, 28), np.uint8), np.array([3, 9]))}
    save_tff(tmp_path, few, few)
    assert Femnist(str(tmp_path)).load().classes == tuple("0123456789")
    many = {"a": (np.zeros((3, 28, 28), np.uint8), np.array([9, 11, 61]))}
    save_tff(tmp_path, many, many, "fed_emnist")
    data = Femnist(str(tmp_path), only_digits=False).load()
    assert len(data.classes) == len(set(data.classes)) == 62
    assert [data.classes[k] for k in data.train.y] == ["9", "B", "z"]  # as TFF's documentation says


def test_writers_without_images(tmp_path):
    train, test = random_writers(4), random_writers(4, seed=1)
    nothing = (np.zeros((0, 28, 28), np.uint8), np.zeros(0, int))
    train["w01"] = test["w02"] = nothing
    del test["w03"]
    data = Femnist(str(save_tff(tmp_path, train, test)), fraction_clients=1.0).load()
    assert data.clients == ("w00", "w02", "w03")
    np.testing.assert_array_equal(not_none(data.validation).y, test["w00"][1])


# ---------------------------------------------------------------- LEAF's shards


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("users_first", [True, False])
@pytest.mark.parametrize("below", [".", "data"])
def test_leaf(tmp_path, shards, users_first, below):
    train, test = random_writers(), random_writers(seed=1)
    save_leaf(tmp_path / below, train, test, shards, users_first)
    data = Femnist(str(tmp_path), fraction_clients=0.7).load()
    assert_holds_writers(data, train, test, sorted(train)[:7])
    assert data.classes == tuple("0123456789")


def test_leaf_digits_are_picked(tmp_path):
    train, test = random_writers(classes=62), random_writers(classes=62, seed=1)
    train["w09"] = (train["w09"][0], np.array([40]))  # one image, a letter
    save_leaf(tmp_path, train, test, 2)
    assert_holds_writers(Femnist(str(tmp_path), False, 1.0).load(), train, test, sorted(train))
    data = Femnist(str(tmp_path), True, 1.0).load()
    assert data.train.y.max() < 10
    assert not_none(data.validation).y.max() < 10
    names = [name for name in sorted(train) if (train[name][1] < 10).any()]
    assert data.clients == tuple(names) != tuple(sorted(train))
    rows = [255 - train[name][0][train[name][1] < 10].reshape(-1, 784) for name in names]
    np.testing.assert_array_equal(data.train.x, np.concatenate(rows))


def test_leaf_is_parsed_once(tmp_path, monkeypatch):
    train, test = random_writers(), random_writers(seed=1)
    save_leaf(tmp_path, train, test, 2)
    options = Femnist(str(tmp_path), fraction_clients=1.0)
    options.load()

    def parse(file):
        raise AssertionError("parsed again")

    with monkeypatch.context() as patch:
        patch.setattr(femnist, "_load_shard", parse)
        assert_holds_writers(options.load(), train, test, sorted(train))
        with pytest.raises(AssertionError, match="parsed again"):
            Femnist(str(tmp_path), fraction_clients=0.5).load()
        os.utime(tmp_path / "train" / "all_data_0.json", ns=(1, 1))
        with pytest.raises(AssertionError, match="parsed again"):
            options.load()
    options.load()
    for kept in Path(os.environ["FCORUN_CACHE"], "femnist").iterdir():
        kept.write_bytes(kept.read_bytes()[:100])
    assert_holds_writers(options.load(), train, test, sorted(train))  # a damaged cache is made anew


def test_leaf_needs_no_cache(tmp_path, monkeypatch):
    def fill_disk(*_, **__):
        raise OSError(28, "No space left on device")

    train, test = random_writers(2), random_writers(2, seed=1)
    save_leaf(tmp_path, train, test)
    monkeypatch.setattr(femnist.np, "savez", fill_disk)
    assert_holds_writers(Femnist(str(tmp_path), fraction_clients=1.0).load(), train, test, sorted(train))


def test_a_leaf_writer_without_images_is_left_out(tmp_path):
    train, test = random_writers(3), random_writers(3, seed=1)
    train["w01"] = (train["w01"][0][:0], train["w01"][1][:0])
    save_leaf(tmp_path, train, test)
    assert Femnist(str(tmp_path), fraction_clients=1.0).load().clients == ("w00", "w02")


def test_a_leaf_writer_in_two_shards_is_refused(tmp_path):
    save_leaf(tmp_path, random_writers(2), random_writers(2))
    shutil.copy(tmp_path / "train" / "all_data_0.json", tmp_path / "train" / "all_data_1.json")
    with fails("data.root", "writer w00 is in two files", "train"):
        Femnist(str(tmp_path)).load()


def test_a_writer_without_test_images(tmp_path):
    train, test = random_writers(), random_writers(seed=1)
    del test["w03"]
    data = Femnist(str(save_tff(tmp_path, train, test)), fraction_clients=0.5).load()
    assert data.train.sizes.tolist() == [10, 9, 8, 7, 6]
    assert np.diff(not_none(data.validation_offsets)).tolist() == [10, 9, 8, 0, 6]


def test_leaf_split_by_writers(tmp_path):
    everyone = random_writers()
    train = {name: rows for name, rows in everyone.items() if name < "w08"}
    save_leaf(tmp_path, train, {name: rows for name, rows in everyone.items() if name not in train})
    with fails("data.root", "no test image", "-t sample"):
        Femnist(str(tmp_path), fraction_clients=1.0).load()


# ---------------------------------------------------------------- identity


def test_the_fingerprint_is_of_the_content(tmp_path):
    train, test = random_writers(), random_writers(seed=1)
    one = Femnist(str(save_tff(tmp_path / "one", train, test)))
    moved = Femnist(str(shutil.copytree(tmp_path / "one", tmp_path / "two")))
    assert one.fingerprint() == moved.fingerprint()
    assert one.fingerprint() != Femnist(moved.root, fraction_clients=0.2).fingerprint()
    for part in PAIR:  # a single pixel of either file
        before = moved.fingerprint()
        with h5py.File(tmp_path / "two" / part, "a") as file:
            pixels = file["examples/w05/pixels"]
            assert isinstance(pixels, h5py.Dataset)
            pixels[0, 3, 4] = 0.123
        assert moved.fingerprint() != before
    leaf = Femnist(str(save_leaf(tmp_path / "leaf", train, test)))
    assert leaf.fingerprint() == leaf.fingerprint() != one.fingerprint()
    assert (leaf.sources()[0], one.sources()[0]) == ("LEAF", "TFF")


# ---------------------------------------------------------------- what users get wrong


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5])
def test_fractions_that_are_none(fraction):
    with fails(f"data.fraction_clients={fraction}"):
        Femnist(fraction_clients=fraction)
    with fails(f"data.fraction_clients={fraction}"):
        build(Femnist, {"fraction_clients": fraction}, "data")


def test_files_that_are_wrong(tmp_path):
    options = Femnist(str(save_tff(tmp_path, random_writers(), random_writers(seed=1))), fraction_clients=1.0)
    train = tmp_path / PAIR[0]
    with h5py.File(train, "w") as file:
        file["images"] = np.zeros(3)
    with fails("data.root", str(train), "'examples'", "images"):
        options.load()
    train.write_bytes(b"no HDF5")
    with fails("data.root", str(train), "cannot be read"):
        options.load()
    with h5py.File(train, "w") as file:
        file.create_group("examples")
    with fails("data.root", str(train), "no writer"):
        options.load()


@pytest.mark.parametrize(
    ("pixels", "labels", "words"),
    [
        (np.zeros((2, 14, 14)), [1, 2], ["(2, 14, 14)", "28 x 28"]),
        (np.zeros((3, 28, 28)), [1, 2], ["(3, 28, 28)", "2 labels"]),
        (np.full((2, 28, 28), 255.0), [1, 2], ["outside 0 to 1"]),
        (np.full((2, 28, 28), np.nan), [1, 2], ["outside 0 to 1"]),
        (np.zeros((2, 28, 28)), [1, 10], ["label 10", "data.only_digits=false"]),
        (np.zeros((2, 28, 28)), [-1, 3], ["label -1"]),
    ],
)
def test_images_that_are_wrong(tmp_path, pixels, labels, words):
    save_tff(tmp_path, random_writers(1), random_writers(1))
    with h5py.File(tmp_path / PAIR[0], "w") as file:
        file["examples/w00/pixels"], file["examples/w00/label"] = pixels, labels
    with fails("data.root", PAIR[0], "w00", *words):
        Femnist(str(tmp_path)).load()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"users": ["a"]}',
        '{"users": 5, "user_data": 5}',
        '{"users": ["\udcff"], "user_data": {}}',  # no UTF-8
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": 1}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1, 2], [3]], "y": [1, 2]}}}',
    ],
)
def test_shards_that_are_wrong(tmp_path, text):
    save_leaf(tmp_path, random_writers(1), random_writers(1))
    (tmp_path / "train" / "all_data_0.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with fails("data.root", "all_data_0.json", "cannot be read"):
        Femnist(str(tmp_path)).load()


@pytest.mark.slow
def test_without_files_and_network(tmp_path):
    root = tmp_path / "none"
    for only_digits, name in ((True, NAME), (False, "fed_emnist")):
        url = f"https://storage.googleapis.com/tff-datasets-public/{name}.tar.bz2"
        with fails(f"data.root={root}", f"{name}_train.h5", "LEAF", url, "ConnectionError", "by hand", "SHA-256"):
            Femnist(str(root), only_digits).load()
    assert not root.exists()
