"""Federated EMNIST: the download."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from handwriting import NAME, PAIR, assert_holds_writers, random_writers, save_tff
from helpers import fails

from fcorun.data.datasets import femnist
from fcorun.data.datasets.femnist import Femnist

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def archive(tmp_path) -> bytes:
    """An archive as TFF packs it."""
    folder = save_tff(tmp_path / "packed", random_writers(), random_writers(seed=1))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as tar:
        for name in PAIR:
            tar.add(folder / name, name)
    return packed.getvalue()


@pytest.fixture
def serve(archive, monkeypatch):
    """A server on this machine for the archive; returns an object to say how it is to behave, and what was asked."""

    class Server:
        url: str
        content = archive
        cuts: list[int] = []  # the first replies end after so many bytes
        slow = 0.0
        asked: list[str | None] = []

    state = Server()
    state.cuts, state.asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append(self.headers.get("Range"))
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            time.sleep(state.slow)
            self.wfile.write(state.content[: state.cuts.pop(0) if state.cuts else None])

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
    """Return the files that a download left in the cache, without its lock."""
    return [p.name for p in Path(os.environ["FCORUN_CACHE"], "downloads").iterdir() if p.suffix != ".lock"]


def test_download(tmp_path, serve, capsys):
    root = tmp_path / "new" / "root"
    data = Femnist(str(root), fraction_clients=1.0)
    assert_holds_writers(data.load(), random_writers(), random_writers(seed=1), sorted(random_writers()))
    assert sorted(p.name for p in root.iterdir()) == sorted(PAIR)
    assert cached() == []
    assert capsys.readouterr().err == f"downloading {serve.url}{NAME}.tar.bz2 for {root}\n"
    data.load()
    assert serve.asked == [None]  # once


@pytest.mark.slow
def test_a_download_that_breaks_off_is_repeated(tmp_path, serve):
    serve.cuts = [1000]
    Femnist(str(tmp_path / "root")).load()
    assert serve.asked == [None, None]
    assert cached() == []


@pytest.mark.slow
def test_a_download_that_fails_leaves_nothing(tmp_path, serve):
    root = tmp_path / "root"
    serve.cuts = [1000, 500]
    with fails(f"data.root={root}", serve.url, "by hand"):
        Femnist(str(root)).load()
    assert not root.exists()
    assert cached() == []
    Femnist(str(root)).load()


@pytest.mark.slow
def test_a_wrong_archive_is_refused(tmp_path, serve):
    root = tmp_path / "root"
    serve.content = serve.content[:-1] + b"!"
    with fails(f"data.root={root}", serve.url, "SHA-256", femnist.SHA256[NAME]):
        Femnist(str(root)).load()
    assert not root.exists()
    assert cached() == []
    assert serve.asked == [None, None]


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
    (root / f".{NAME}.tar.bz2-unpacked").mkdir(parents=True)
    (root / f".{NAME}.tar.bz2-unpacked" / PAIR[0]).write_bytes(b"half")
    (root / PAIR[1]).write_bytes(b"the one of the two that had come")
    Femnist(str(root)).load()
    assert sorted(p.name for p in root.iterdir()) == sorted(PAIR)


@pytest.mark.slow
def test_two_processes_download_once(tmp_path, serve):
    serve.slow = 1.0
    script = (
        "from fcorun.data.datasets import femnist\n"
        f"femnist.URL, femnist.SHA256['{NAME}'] = {serve.url!r}, {femnist.SHA256[NAME]!r}\n"
        f"print(len(femnist.Femnist({str(tmp_path / 'root')!r}, fraction_clients=1.0).load().clients))"
    )
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [process.communicate(timeout=600) for process in started]
    assert [out.strip() for out, _ in ends] == ["10", "10"], ends
    assert serve.asked == [None]
    assert sum("downloading http" in err for _, err in ends) == 1
