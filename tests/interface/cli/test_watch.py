"""fcorun watch: the page of runs that go on, at an address that nobody else knows."""

import json
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from browser import RenderedPage
from fake_records import fake_config, fake_record, fake_rows
from helpers import fails

from fcorun.base.records.formats import csv_text
from fcorun.interface.cli.commands.watch_command import make_server
from fcorun.reports.page.live_page import LivePage


def running_record(folder: str, rows: int) -> Path:
    """Write the record of a run of 40 rounds that goes on, with the first evaluations."""
    record = fake_record(folder, fake_config(algo__client_lr=0.2), status="running")
    table = fake_rows()[:rows]
    (record.folder / "metrics.csv").write_text(csv_text(table))
    status = record.status | {"status": "running", "host": "another", "round": int(table[-1]["round"])}
    (record.folder / "status.json").write_text(json.dumps(status))
    return record.folder


@pytest.fixture
def server():
    """Serve the page of the folder s, in threads."""
    server = make_server(LivePage([Path("s")]), 0)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def address(server, path: str = "") -> str:
    return f"http://127.0.0.1:{server.server_port}/{server.token}/{path}"


def test_the_page_says_how_far_runs_are_and_follows_them(monkeypatch):
    Path("s").mkdir()
    monkeypatch.setattr("fcorun.reports.page.live_page._LEAST_SECONDS", 1e4)
    page = LivePage([Path("s")])
    assert "s holds no records yet." in page.read()
    assert page.read() is page.read()  # made once in some seconds
    monkeypatch.setattr("fcorun.reports.page.live_page._LEAST_SECONDS", 0.0)
    monkeypatch.setattr("fcorun.reports.page.live_page._TIMES_LONGER", 0.0)
    page = LivePage([Path("s")])
    fake_record("s/done")
    fake_record("s/failed", status="failed", reason="the disk is full")
    running_record("s/running", 2)
    text = page.read()
    assert "Of 3 runs: 1 done, 1 failed, 1 running." in text
    assert "the disk is full" in text
    assert "90 of about 120 rounds are done." in text
    status = json.loads(Path("s/running/status.json").read_text())
    Path("s/running/status.json").write_text(json.dumps(status | {"round": 30}))
    text = page.read()
    assert "110 of about 120 rounds are done; about" in text
    assert "at the pace since this page was first opened" in text


def test_a_metric_that_no_run_has_measured_is_told_on_the_page():
    fake_record("s/done")
    assert "fcorun watch" in LivePage([Path("s")], metric="val_auc").read()
    assert "val_auc" in LivePage([Path("s")], metric="val_auc").read()


def test_only_who_knows_the_token_sees_the_page(server):
    fake_record("s/done")
    with urlopen(Request(address(server), headers={"Accept-Encoding": "gzip"})) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    with urlopen(Request(address(server).rstrip("/"), headers={"Host": f"localhost:{server.server_port}"})) as answer:
        assert answer.url == address(server)
    elsewhere = {"Host": f"somewhere.example:{server.server_port}"}
    refused = [
        Request(f"http://127.0.0.1:{server.server_port}/"),
        Request(f"http://127.0.0.1:{server.server_port}/{server.token[:-1]}x/"),
        Request(address(server, "../etc/passwd")),
        Request(address(server, "status.json")),
    ]
    for request in refused:
        with pytest.raises(HTTPError, match="404"):
            urlopen(request)
    with pytest.raises(HTTPError) as caught:
        urlopen(refused[1])
    assert "Open the whole address that fcorun watch has printed" in caught.value.read().decode()
    with pytest.raises(HTTPError, match="421") as caught:
        urlopen(Request(address(server), headers=elsewhere))
    assert f"Open http://127.0.0.1:{server.server_port}/" in caught.value.read().decode()
    with pytest.raises(HTTPError, match="501"):  # nothing can be changed
        urlopen(Request(address(server), data=b"x", method="POST"))
    assert server.server_address[0] == "127.0.0.1"
    assert sorted(path.name for path in Path().rglob("*") if path.is_file()) == sorted(
        path.name for path in Path("s").rglob("*") if path.is_file()
    )


def test_a_port_that_is_taken_is_refused(server):
    with fails(f"--port {server.server_port} cannot be used", "give another one, or leave it out"):
        make_server(LivePage([Path("s")]), server.server_port)


@pytest.mark.slow
def test_the_page_draws_the_curves_of_running_and_ended_runs_in_a_browser(server):
    server.page._seconds = 1e4  # the browser waits for all timers
    fake_record("s/done")
    running_record("s/running", 3)
    page = RenderedPage(Path("profile.html"), address=address(server))
    assert page.console == []
    assert page.data["errors"] == "0"
    assert page.data["curves"] == "2"
    assert int(page.data["ready"]) > 0
    assert sorted(text.partition(",")[0] for text in page.column("status")) == ["done", "running"]
