"""Federated EMNIST: what is read of TFF's and LEAF's files, what users get wrong, and the download."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
import requests
from helpers import fails, snapshots

from fcorun import compose
from fcorun.config import build
from fcorun.datasets import download, femnist
from fcorun.datasets.femnist import Femnist

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
NAME = "fed_emnist_digitsonly"
PAIR = (f"{NAME}_train.h5", f"{NAME}_test.h5")

real = pytest.mark.skipif(
    not all((REAL / name).exists() for name in PAIR),
    reason=f"NO REAL IMAGES: {PAIR[0]} and {PAIR[1]} are not in {REAL}",
)


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """A cache of the test's own, and no network but this machine."""
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    send = requests.Session.send

    def local(self, request, **options):
        if not request.url.startswith("http://127.0.0.1:"):
            raise requests.ConnectionError(f"no network in tests: {request.url}")
        return send(self, request, **options)

    monkeypatch.setattr(requests.Session, "send", local)
    monkeypatch.setattr(download, "RETRIES", 1)
    monkeypatch.setattr(download, "CHUNK", 100)


# ---------------------------------------------------------------- files made up

Writers = dict[str, tuple[np.ndarray, np.ndarray]]  # brightness in 1/255, white being 255, (n, 28, 28) uint8; labels


def some(count: int = 10, classes: int = 10, seed: int = 0) -> Writers:
    """Writers w09, w08, .. with 1, 2, .. images: the order of the files is not that of the names."""
    rng = np.random.default_rng(seed)
    return {
        f"w{count - 1 - k:02d}": (rng.integers(0, 256, (k + 1, 28, 28), np.uint8), rng.integers(0, classes, k + 1))
        for k in range(count)
    }


def save(folder: Path, train: Writers, test: Writers, name: str = NAME) -> Path:
    """The layout of TFF."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, writers in (("train", train), ("test", test)):
        with h5py.File(folder / f"{name}_{part}.h5", "w") as file:
            for writer, (pixels, labels) in writers.items():
                group = file.create_group(f"examples/{writer}")
                group["pixels"] = (pixels / 255).astype(np.float32)
                group["label"] = labels.astype(np.int32)
    return folder


def save_leaf(folder: Path, train: Writers, test: Writers, shards: int = 1, users_first: bool = True) -> Path:
    """The layout of LEAF, in several shards."""
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


def agrees(data, train: Writers, test: Writers, names: list[str]) -> None:
    """The data are those of the writers ``names``, background and ink exchanged."""
    assert data.clients == tuple(names)
    assert data.x.dtype == data.x_val.dtype == np.uint8
    assert data.y.dtype == data.y_val.dtype == np.int32
    assert data.sizes.tolist() == [len(train[n][1]) for n in names]
    assert np.diff(data.offsets_val).tolist() == [len(test[n][1]) for n in names]
    for x, y, writers in ((data.x, data.y, train), (data.x_val, data.y_val, test)):
        np.testing.assert_array_equal(x, 255 - np.concatenate([writers[n][0].reshape(-1, 784) for n in names]))
        np.testing.assert_array_equal(y, np.concatenate([writers[n][1] for n in names]))


# ---------------------------------------------------------------- TFF's files


@real
def test_the_real_images():
    data = Femnist(str(REAL), fraction_clients=1.0).load()
    assert (data.x.shape, data.x_val.shape) == ((5745, 784), (606, 784))
    assert len(data.clients) == len(data.sizes) == 60
    assert data.clients[:2] == ("f0000_00", "f0001_00")
    assert data.task == "multiclass"
    assert data.classes == tuple("0123456789")
    assert data.scale == 1 / 255
    assert data.truth is None
    with h5py.File(REAL / PAIR[0]) as file:
        pixels = file["examples/f0001_00/pixels"][()]
        labels = file["examples/f0001_00/label"][()]
    assert data.offsets_val[-1] == 606
    assert (np.diff(data.offsets_val) > 0).all()
    rows = slice(data.offsets[1], data.offsets[2])
    np.testing.assert_allclose(data.x[rows] * data.scale, 1 - pixels.reshape(-1, 784), atol=1e-6)
    np.testing.assert_array_equal(data.y[rows], labels)
    corners = data.x.reshape(-1, 28, 28)[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert not corners.any()  # the background
    assert data.x.max() == 255


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
    train, test = some(), some(seed=1)
    agrees(Femnist(str(save(tmp_path, train, test)), fraction_clients=1.0).load(), train, test, sorted(train))


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 1), (0.3, 3), (0.35, 3), (0.7, 7), (1e-6, 1), (1.0, 10)])
def test_the_first_writers(tmp_path, fraction, count):
    train, test = some(), some(seed=1)
    data = Femnist(str(save(tmp_path, train, test)), fraction_clients=fraction).load()
    agrees(data, train, test, sorted(train)[:count])


def test_a_fraction_is_decimal(tmp_path):
    """0.29 * 100 is 28.999999999999996."""
    train = {f"w{k:03d}": (np.zeros((2, 28, 28), np.uint8), np.array([0, 1])) for k in range(100)}
    assert len(Femnist(str(save(tmp_path, train, train)), fraction_clients=0.29).load().clients) == 29


def test_only_chosen_writers_are_read(tmp_path):
    root = save(tmp_path, some(), some(seed=1))
    with h5py.File(root / PAIR[0], "a") as file:
        del file["examples/w07/pixels"]
    assert len(Femnist(str(root), fraction_clients=0.7).load().clients) == 7
    with fails("data.root", PAIR[0], "w07", "pixels"):
        Femnist(str(root), fraction_clients=0.8).load()


def test_every_brightness_is_kept(tmp_path):
    ramp = np.resize(np.arange(256, dtype=np.uint8), (4, 28, 28))
    writers = {"a": (ramp, np.array([0, 1, 2, 3]))}
    agrees(Femnist(str(save(tmp_path, writers, writers))).load(), writers, writers, ["a"])


def test_all_classes_are_there_whatever_was_written(tmp_path):
    few = {"a": (np.zeros((2, 28, 28), np.uint8), np.array([3, 9]))}
    save(tmp_path, few, few)
    assert Femnist(str(tmp_path)).load().classes == tuple("0123456789")
    many = {"a": (np.zeros((3, 28, 28), np.uint8), np.array([9, 11, 61]))}
    save(tmp_path, many, many, "fed_emnist")
    data = Femnist(str(tmp_path), only_digits=False).load()
    assert len(data.classes) == len(set(data.classes)) == 62
    assert [data.classes[k] for k in data.y] == ["9", "B", "z"]  # as TFF's documentation says


def test_writers_without_images(tmp_path):
    train, test = some(4), some(4, seed=1)
    nothing = (np.zeros((0, 28, 28), np.uint8), np.zeros(0, int))
    train["w01"] = test["w02"] = nothing
    del test["w03"]
    data = Femnist(str(save(tmp_path, train, test)), fraction_clients=1.0).load()
    assert data.clients == ("w00", "w02", "w03")
    np.testing.assert_array_equal(data.y_val, test["w00"][1])


# ---------------------------------------------------------------- LEAF's shards


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("users_first", [True, False])
@pytest.mark.parametrize("below", [".", "data"])
def test_leaf(tmp_path, shards, users_first, below):
    train, test = some(), some(seed=1)
    save_leaf(tmp_path / below, train, test, shards, users_first)
    data = Femnist(str(tmp_path), fraction_clients=0.7).load()
    agrees(data, train, test, sorted(train)[:7])
    assert data.classes == tuple("0123456789")


def test_leaf_digits_are_picked(tmp_path):
    train, test = some(classes=62), some(classes=62, seed=1)
    train["w09"] = (train["w09"][0], np.array([40]))  # one image, a letter
    save_leaf(tmp_path, train, test, 2)
    agrees(Femnist(str(tmp_path), False, 1.0).load(), train, test, sorted(train))
    data = Femnist(str(tmp_path), True, 1.0).load()
    assert data.y.max() < 10
    assert data.y_val.max() < 10
    names = [name for name in sorted(train) if (train[name][1] < 10).any()]
    assert data.clients == tuple(names) != tuple(sorted(train))
    rows = [255 - train[name][0][train[name][1] < 10].reshape(-1, 784) for name in names]
    np.testing.assert_array_equal(data.x, np.concatenate(rows))


def test_leaf_is_parsed_once(tmp_path, monkeypatch):
    train, test = some(), some(seed=1)
    save_leaf(tmp_path, train, test, 2)
    options = Femnist(str(tmp_path), fraction_clients=1.0)
    options.load()

    def parse(file):
        raise AssertionError("parsed again")

    with monkeypatch.context() as patch:
        patch.setattr(femnist, "_shard", parse)
        agrees(options.load(), train, test, sorted(train))
        with pytest.raises(AssertionError, match="parsed again"):
            Femnist(str(tmp_path), fraction_clients=0.5).load()
        os.utime(tmp_path / "train" / "all_data_0.json", ns=(1, 1))
        with pytest.raises(AssertionError, match="parsed again"):
            options.load()
    options.load()
    for kept in Path(os.environ["FCORUN_CACHE"], "femnist").iterdir():
        kept.write_bytes(kept.read_bytes()[:100])
    agrees(options.load(), train, test, sorted(train))  # a damaged cache is made anew


def test_a_writer_without_test_images(tmp_path):
    train, test = some(), some(seed=1)
    del test["w03"]
    data = Femnist(str(save(tmp_path, train, test)), fraction_clients=0.5).load()
    assert data.sizes.tolist() == [10, 9, 8, 7, 6]
    assert np.diff(data.offsets_val).tolist() == [10, 9, 8, 0, 6]


def test_leaf_split_by_writers(tmp_path):
    everyone = some()
    train = {name: rows for name, rows in everyone.items() if name < "w08"}
    save_leaf(tmp_path, train, {name: rows for name, rows in everyone.items() if name not in train})
    with fails("data.root", "no test image", "-t sample"):
        Femnist(str(tmp_path), fraction_clients=1.0).load()


# ---------------------------------------------------------------- identity


def test_the_fingerprint_is_of_the_content(tmp_path):
    train, test = some(), some(seed=1)
    one = Femnist(str(save(tmp_path / "one", train, test)))
    moved = Femnist(str(shutil.copytree(tmp_path / "one", tmp_path / "two")))
    assert one.fingerprint() == moved.fingerprint()
    assert one.fingerprint() != Femnist(moved.root, fraction_clients=0.2).fingerprint()
    for part in PAIR:  # a single pixel of either file
        before = moved.fingerprint()
        with h5py.File(tmp_path / "two" / part, "a") as file:
            file["examples/w05/pixels"][0, 3, 4] = 0.123
        assert moved.fingerprint() != before
    leaf = Femnist(str(save_leaf(tmp_path / "leaf", train, test)))
    assert leaf.fingerprint() == leaf.fingerprint() != one.fingerprint()
    assert (leaf.sources()[0], one.sources()[0]) == ("LEAF", "TFF")


def test_large_files_are_sampled_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(femnist, "PART", 10)
    file = tmp_path / "large"
    content = bytearray(b"x" * 1000)
    digests = []
    for place in (None, 0, 999, 500):
        changed = content.copy()
        if place is not None:
            changed[place : place + 1] = b"y"
        file.write_bytes(changed)
        digests.append(femnist._digest(file))
    assert len(set(digests[:3])) == 3
    file.write_bytes(content + b"x")
    assert femnist._digest(file) not in digests


# ---------------------------------------------------------------- what users get wrong


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5])
def test_fractions_that_are_none(fraction):
    with fails(f"data.fraction_clients={fraction}"):
        Femnist(fraction_clients=fraction)
    with fails(f"data.fraction_clients={fraction}"):
        build(Femnist, {"fraction_clients": fraction}, "data")


def test_files_that_are_wrong(tmp_path):
    options = Femnist(str(save(tmp_path, some(), some(seed=1))), fraction_clients=1.0)
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
    save(tmp_path, some(1), some(1))
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
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": 1}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1, 2], [3]], "y": [1, 2]}}}',
    ],
)
def test_shards_that_are_wrong(tmp_path, text):
    save_leaf(tmp_path, some(1), some(1))
    (tmp_path / "train" / "all_data_0.json").write_text(text)
    with fails("data.root", "all_data_0.json", "cannot be read"):
        Femnist(str(tmp_path)).load()


def test_without_files_and_network(tmp_path):
    root = tmp_path / "none"
    for only_digits, name in ((True, NAME), (False, "fed_emnist")):
        url = f"https://storage.googleapis.com/tff-datasets-public/{name}.tar.bz2"
        with fails(f"data.root={root}", f"{name}_train.h5", "LEAF", url, "ConnectionError", "by hand"):
            Femnist(str(root), only_digits).load()
    assert not root.exists()


# ---------------------------------------------------------------- the download


@pytest.fixture
def archive(tmp_path) -> bytes:
    """An archive as TFF packs it."""
    folder = save(tmp_path / "packed", some(), some(seed=1))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as tar:
        for name in PAIR:
            tar.add(folder / name, name)
    return packed.getvalue()


@pytest.fixture
def serve(archive, monkeypatch):
    """A server on this machine for the archive; returns an object to say how it is to behave, and what was asked."""

    class Server:
        content = archive
        cuts: list[int] = []  # the first replies end after so many bytes
        ranges = True
        slow = 0.0
        asked: list[str | None] = []

    state = Server()
    state.cuts, state.asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start >= len(state.content):
                return self.send_error(416)
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            time.sleep(state.slow)
            self.wfile.write(body[: state.cuts.pop(0) if state.cuts else None])

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setattr(femnist, "URL", state.url)
    monkeypatch.setitem(femnist.SHA256, NAME, hashlib.sha256(archive).hexdigest())
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def cached() -> list[str]:
    """What a download left in the cache, but for its lock."""
    return [p.name for p in Path(os.environ["FCORUN_CACHE"], "downloads").iterdir() if p.suffix != ".lock"]


def test_download(tmp_path, serve, capsys):
    root = tmp_path / "new" / "root"
    data = Femnist(str(root), fraction_clients=1.0)
    agrees(data.load(), some(), some(seed=1), sorted(some()))
    assert sorted(p.name for p in root.iterdir()) == sorted(PAIR)
    assert cached() == []
    assert capsys.readouterr().err.startswith(f"downloading {serve.url}{NAME}.tar.bz2 (")
    data.load()
    assert serve.asked == [None]  # once


def test_progress_on_a_terminal(tmp_path, serve, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    Femnist(str(tmp_path / "root")).load()
    shown = capsys.readouterr().err
    assert "downloading" in shown
    assert "unpacking" in shown
    assert "━" in shown


def test_a_download_that_breaks_off_is_resumed(tmp_path, serve):
    serve.cuts = [1000]
    Femnist(str(tmp_path / "root")).load()
    assert serve.asked == [None, "bytes=1000-"]
    assert cached() == []


def test_a_server_that_cannot_resume(tmp_path, serve):
    serve.cuts, serve.ranges = [1000], False
    agrees(Femnist(str(tmp_path / "root"), fraction_clients=1.0).load(), some(), some(seed=1), sorted(some()))
    assert serve.asked == [None, "bytes=1000-"]


def test_a_download_that_fails_is_completed_by_the_next_run(tmp_path, serve):
    root = tmp_path / "root"
    serve.cuts = [1000, 500]
    with fails(f"data.root={root}", serve.url, "by hand"):
        Femnist(str(root)).load()
    assert not root.exists()
    assert cached() == [f"{NAME}.tar.bz2.part"]
    Femnist(str(root)).load()
    assert serve.asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_wrong_archive_is_refused(tmp_path, serve):
    root = tmp_path / "root"
    serve.content = serve.content[:-1] + b"!"
    with fails(f"data.root={root}", serve.url, "SHA-256", femnist.SHA256[NAME]):
        Femnist(str(root)).load()
    assert not root.exists()
    assert cached() == []
    assert serve.asked == [None, None]  # tried twice, from the beginning


def test_a_whole_but_wrong_part_is_begun_anew(tmp_path, serve):
    part = download.cache_dir("downloads") / f"{NAME}.tar.bz2.part"
    part.write_bytes(b"?" * len(serve.content))
    Femnist(str(tmp_path / "root")).load()
    assert serve.asked == [f"bytes={len(serve.content)}-", None]


def test_an_archive_without_the_files(tmp_path, serve, monkeypatch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as tar:
        tar.addfile(tarfile.TarInfo(PAIR[0]))
    serve.content = packed.getvalue()
    monkeypatch.setitem(femnist.SHA256, NAME, hashlib.sha256(serve.content).hexdigest())
    root = tmp_path / "root"
    with fails(f"data.root={root}", PAIR[0]):
        Femnist(str(root)).load()
    assert list(root.iterdir()) == []


def test_unpacking_that_was_killed_leaves_nothing(tmp_path, serve):
    root = tmp_path / "root"
    (root / f".{NAME}.tar.bz2-killed").mkdir(parents=True)
    (root / f".{NAME}.tar.bz2-killed" / PAIR[0]).write_bytes(b"half")
    (root / PAIR[1]).write_bytes(b"the one of the two that had come")
    Femnist(str(root)).load()
    assert sorted(p.name for p in root.iterdir()) == sorted(PAIR)


def test_two_processes_download_once(tmp_path, serve):
    serve.slow = 1.0
    script = (
        "from fcorun.datasets import femnist\n"
        f"femnist.URL, femnist.SHA256['{NAME}'] = {serve.url!r}, {femnist.SHA256[NAME]!r}\n"
        f"print(len(femnist.Femnist({str(tmp_path / 'root')!r}, fraction_clients=1.0).load().clients))"
    )
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [process.communicate(timeout=60) for process in started]
    assert [out.strip() for out, _ in ends] == ["10", "10"], ends
    assert serve.asked == [None]
    assert sum("downloading http" in err for _, err in ends) == 1
    assert sum("waiting for it" in err for _, err in ends) <= 1
