"""fcorun archive and fcorun publish: what others get of results, and what stays."""

import csv
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from browser import RenderedPage
from fake_records import fake_config, fake_record

from fcorun.base.records.few_rows import FewRows
from fcorun.base.records.formats import csv_text
from fcorun.experiment.tracker import SentRecord
from fcorun.reports.results_to_share import KINDS, PathCutter, find_results

PATIENT = "patient-"  # before the number of a row, which predictions.csv keeps
PREDICTED = b"set,client,row"  # the first columns of predictions.csv
TABLE = (
    *("data=table", "data.target=ill", "data.task=binary", "data.client=ward", "data.positive=yes"),
    *("data.ignore=[mrn]", "data.keep=[mrn]", "data.test=0.3"),
)
STUDY = ("algo=centralized", "points=3", "folds=2")
COMMANDS = {
    "run": ("algo=newton", "rounds=3"),
    "sweep": ("-m", "algo=fedavg", "algo.client_lr=0.1,0.2", "rounds=3"),
    "selection": ("select", *STUDY),
    "stability": ("stability", "algo=centralized", "points=3", "subsamples=4"),
    "permutation": ("permute", *STUDY, "n=2"),
    "comparison": ("compare", *STUDY, "outer_folds=2", "samples=200"),
    "figure": ("figure", "mine"),
}
FIGURE = """# @package _global_
defaults: [override /data: lasso_16]
rounds: 4
tail_rounds: 2
figure: {title: Mine, draw: bars, panels: [objective]}
"""


@pytest.fixture
def home(monkeypatch) -> Path:
    """The home folder of a user, with a table of patients and files of figures."""
    folder = Path("jane o'müller").absolute()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(FIGURE)
    rng = np.random.default_rng(0)
    rows = []
    for i in range(80):
        x = rng.normal(size=2)
        ill = "yes" if x[0] + rng.logistic() > 0 else "no"
        rows.append({"mrn": f"{PATIENT}{i}", "x": x[0], "z": x[1], "ward": "ab"[i % 2], "ill": ill})
    for name in ("the rows.csv", "other rows.csv"):
        (folder / name).write_text(csv_text(rows))
    return folder


def contents_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_each_kind_of_result_has_a_command_here():
    assert COMMANDS.keys() == set(KINDS.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_result_is_read_from_its_archive_and_names_no_place_and_no_patient(home, fcorun, call, kind):
    path = f'"{home}/the rows.csv"'
    if kind == "sweep":
        path += f',"{home}/other rows.csv"'
    given = [f"data.path={path}", *TABLE]
    if kind == "figure":
        given = ["--config-dir", f"{home}/conf"]
    code, printed, errors = fcorun(*COMMANDS[kind], *given, f'out="{home}/study/it"', "verbose=false")
    assert code == 0, printed + errors
    study = home / "study"
    assert list(find_results(study).values()) == [kind]

    assert call("archive", study, "a.zip")[0] == 0
    files = contents_of(Path("a.zip"))
    lines = [line.partition("  ") for line in files.pop("archive.sha256").decode().splitlines()]
    sums = {name: digest for digest, _, name in lines}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    for name, content in files.items():
        assert not name.startswith("/")
        for private in ("jane", "ller", str(home.parent), PATIENT, '"limits"'):
            assert private not in name
            assert private.encode() not in content, name
        assert not content.startswith(PREDICTED), name
        assert not name.endswith((".py", ".pkl", ".log", ".html")), name
    assert call("archive", study, "b.zip")[0] == 0
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()  # as nothing has changed

    zipfile.ZipFile("a.zip").extractall("unpacked")
    code, printed, errors = call("report", "unpacked")
    assert (code, errors) == (0, "")
    code, printed, errors = call("results", "unpacked")
    has_records = any(name.endswith("status.json") for name in files)
    assert (code == 0) == has_records, errors

    assert call("archive", study, "all.zip", "--predictions")[0] == 0
    more = contents_of(Path("all.zip"))
    assert files.keys() <= more.keys()
    has_predictions = any(PATIENT.encode() in content for content in more.values())
    assert has_predictions == (kind in ("run", "sweep", "selection", "comparison"))

    assert call("publish", study, "site")[0] == 0
    for path in Path("site").rglob("*"):
        if path.is_file():
            assert path.suffix == ".html" or path.name == "plotly.js"
            assert b"jane" not in path.read_bytes(), path
            assert b"ller/" not in path.read_bytes(), path  # also where JSON has a code for the umlaut
            assert PATIENT.encode() not in path.read_bytes(), path
    index = Path("site/index.html").read_text()
    assert f"<td>{kind}</td>" in index
    assert '<a href="' in index


def test_a_file_that_differs_from_its_archive_is_told(call):
    for name in ("first", "second"):
        fake_record(f"study/{name}")
    assert call("archive", "study", "a.zip")[0] == 0
    code, _, errors = call("results", "a.zip")
    assert code == 2
    assert "a.zip is an archive: unpack it by python -m zipfile -e a.zip a, and give a" in errors
    zipfile.ZipFile("a.zip").extractall("a")
    assert call("results", "a")[2] == ""
    Path("a/first/curves.png").write_bytes(b"a later picture")
    assert call("results", "a")[2] == ""
    table = Path("a/first/metrics.csv")
    table.write_text(table.read_text().replace("1", "2"))
    code, _, errors = call("results", "a")
    assert (code, errors.count("\n")) == (0, 1)
    assert f"left out: {table.absolute()} is not as its archive had it" in errors
    assert "metrics.csv is not as its archive had it" in Path(call("report", "a")[1].split(":")[0]).read_text()
    table.unlink()
    assert "metrics.csv is not as its archive had it" in call("results", "a")[2]
    Path("a/archive.sha256").write_bytes(b"\xff")
    assert "archive.sha256 cannot be read: unpack the archive again" in call("results", "a")[2]


def test_others_decide_neither_which_files_are_archived_nor_where(call):
    fake_record("study/run", fake_config(data__path="C:\\Users\\jane\\rows.csv"))
    Path("study/run/.sweep").write_text("pictures: [../../secret.png, secret.csv, rates.png]\n")
    for path in ("secret.png", "study/run/secret.csv", "study/run/rates.png", "study/run/table.csv"):
        Path(path).write_text("a row of a patient")
    status = json.loads(Path("study/run/status.json").read_text())
    status |= {"host": "janes-machine", "pid": 7, "reason": "/data/jane/x y.csv, file:///jane/z.csv are not there"}
    Path("study/run/status.json").write_text(json.dumps(status))
    assert call("archive", "study", "a.zip")[0] == 0
    files = contents_of(Path("a.zip"))
    assert {name for name in files if "secret" in name or "table" in name} == set()
    assert "run/rates.png" in files
    assert all(b"jane" not in content for content in files.values())
    assert json.loads(files["run/status.json"])["reason"] == "x y.csv, z.csv are not there"


@pytest.mark.parametrize("home", ["/", "/home/jane"])
def test_sentences_lose_the_folders_of_absolute_paths_alone(monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    cutter = PathCutter(Path())
    for text in ("https://doi.org/10.1137/080716542", "1/2 and/or a / b", "data/rows.csv", "../rows.csv", "<b>x</b>",
                 "image/png;base64,/9j/b/cd+/e/f", "seconds/step", "geno -/-, -/+ or +/-", "'CRP [mg]/L' (I)/II",
                 "HbA1c (%)/year", "kg /m2", "dose [U] /kg/d", "<td>-/-</td>"):  # fmt: skip
        assert cutter.cut_sentence(text) == text
    for path in ("/home/jane/klinik/x.csv", "/data/x.csv", "~/klinik/berlin/x.csv", "file:///jane/x.csv",
                 "C:\\Users\\jane\\x.csv", "/home/jane/x.csv"):  # fmt: skip
        for before, after in (("", " is not there"), ("no '", "'"), ("<td>", "</td>"), ("data.path=", ", x")):
            assert cutter.cut_sentence(before + path + after).replace("~/", "") == f"{before}x.csv{after}"


def test_the_model_of_an_archive_predicts_and_keeps_names_that_look_like_paths(home, fcorun, call):
    """The table lies two folders below the user's home folder."""
    folder = home / "klinik_x" / "berlin"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    levels = ["+/+", "-/-", "+/-"]
    rows = []
    for i in range(90):
        row = {
            "CRP [mg]/L": rng.normal(),
            "dose [U] /kg/d": rng.normal(),
            "geno": levels[i % 3],
            "ward /a/b": "st"[i % 2],
        }
        row["cost"] = row["CRP [mg]/L"] + 3 * (row["geno"] == "-/-") + 0.1 * rng.normal()
        rows.append(row)
    (folder / "rows.csv").write_text(csv_text(rows))
    Path("new.csv").write_text(csv_text(rows[:9]))
    options = ["data=table", f'data.path="{folder}/rows.csv"', "data.target=cost", "data.client='ward /a/b'"]
    code, printed, errors = fcorun("algo=newton", "rounds=3", *options, "out=study", "verbose=false")
    assert code == 0, printed + errors
    status = json.loads(Path("study/status.json").read_text())
    status["reason"] = f"{folder}/mine.py, ~/klinik_x/berlin/rows.csv and {folder}/rows.csv are not there"
    Path("study/status.json").write_text(json.dumps(status))

    assert call("archive", "study", "a.zip")[0] == 0
    files = contents_of(Path("a.zip"))
    for name, content in files.items():
        assert b"jane" not in content, name
        assert b"klinik_x" not in content, name
    assert files["encoding.json"] == Path("study/encoding.json").read_bytes()
    assert files["coefficients.csv"] == Path("study/coefficients.csv").read_bytes()
    reason = json.loads(files["status.json"])["reason"]
    assert reason == "mine.py, rows.csv and rows.csv are not there"
    assert "path: rows.csv" in files["config.yaml"].decode()
    assert "client: ward /a/b" in files["config.yaml"].decode()
    zipfile.ZipFile("a.zip").extractall("unpacked")
    for record in ("study", "unpacked"):
        code, _, errors = call("predict", record, "new.csv", "--out", f"{record}.csv")
        assert (code, "unknown" in errors) == (0, False), errors
    assert Path("study.csv").read_text() == Path("unpacked.csv").read_text()

    assert call("publish", "study", "site")[0] == 0
    page = Path("site/report.html").read_text()
    assert "klinik_x" not in page
    for name in ("CRP [mg]/L", "dose [U] /kg/d", "-/-"):
        assert name in page


def test_numbers_of_few_rows_stay_at_home_and_are_named_on_pages(fcorun, call):
    """A client has 4 training rows and 1 validation row, and 2 rows of another have a gap."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(85):
        x = rng.normal()
        rows.append({"x": x, "z": "" if i in (1, 11) else rng.normal(), "ward": "ab"[i % 2] if i < 80 else "few"})
        rows[-1]["ill"] = "yes" if x + rng.logistic() > 0 else "no"
    Path("rows.csv").write_text(csv_text(rows))
    options = (
        "data=table",
        "data.path=rows.csv",
        "data.target=ill",
        "data.task=binary",
        "data.client=ward",
        "data.missing=mean",
    )
    more = ("data.validation=0.2", "client_metrics=true", "out=study", "verbose=false")
    code, printed, errors = fcorun("algo=newton", "rounds=2", *options, *more)
    assert code == 0, printed + errors

    names = {"scores.csv", "missing.csv", "summary.json"}
    assert call("archive", "study", "a.zip")[0] == 0
    archived = contents_of(Path("a.zip"))
    assert not {"clients.parquet", "clients.png"} & archived.keys()
    Path("copy").mkdir()
    copy = SentRecord.copy(Path("study"), FewRows.find([Path("study")]), Path("copy"))
    tracked = {path.name: path.read_bytes() for path in copy.folder.iterdir()}
    assert not {"clients.parquet", "clients.png", "curves.png"} & tracked.keys()
    for sent in (archived, tracked):
        lines = [*csv.DictReader(sent["scores.csv"].decode().splitlines())]
        assert {(line["set"], line["client"]) for line in lines} == {("train", ""), ("validation", "")}
        assert "missing.csv" not in sent
        assert b"_tenth" not in sent["metrics.csv"]
        summary = json.loads(sent["summary.json"])
        assert {line["client"] for line in summary["data"]["outcome"]} == {""}
        assert not any("_tenth" in name for name in summary["final"])
        assert "left out of what was sent: numbers by client and by fold" in summary["warnings"][-1]
    assert call("archive", "study", "all.zip", "--predictions")[0] == 0
    everything = contents_of(Path("all.zip"))
    assert {"clients.parquet", "clients.png", *names} <= everything.keys()
    for name in names:
        assert b"few" in everything[name] or name == "missing.csv"

    sentence = (
        "the page has numbers of fewer than 5 rows, groups or events (few, a, b, z), which tell of single patients: "
        "read it before"
    )
    assert sentence in call("report", "study")[1]
    assert f"study: {sentence}" in call("publish", "study", "site")[1]
    assert 'data-v="' not in Path("study/report.html").read_text()  # digits beyond those that are shown
    zipfile.ZipFile("a.zip").extractall("unpacked")
    assert "fewer than" not in call("report", "unpacked")[1]
    assert "Left out of what was sent" in Path("unpacked/report.html").read_text()


@pytest.mark.parametrize("option", [(), ("--predictions",)])
def test_runs_that_have_not_ended_are_archived_with_the_others(call, option):
    for status in ("done", "failed", "running"):
        fake_record(f"study/{status}", status=status)
    code, printed, errors = call("archive", "study", "a.zip", *option)
    assert (code, errors) == (0, "")
    assert "results: 3" in printed
    archived = contents_of(Path("a.zip"))
    assert {"done/summary.json", "failed/status.json", "running/status.json"} <= archived.keys()


@pytest.mark.parametrize("command", ["archive", "publish"])
def test_nothing_is_replaced_and_bad_input_is_one_sentence(call, command):
    fake_record("study/run")
    Path("there.zip").write_bytes(b"mine")
    assert "there.zip exists, and this command replaces nothing" in call(command, "study", "there.zip")[2]
    assert Path("there.zip").read_bytes() == b"mine"
    assert "there is no folder no; make it" in call(command, "study", "no/a.zip")[2]
    assert "there is no folder nowhere; give one that holds records" in call(command, "nowhere", "a.zip")[2]
    Path("empty").mkdir()
    assert "empty holds no results; give a folder that fcorun has written" in call(command, "empty", "a.zip")[2]
    Path("study/run/status.json").write_text("{")
    code, _, errors = call(command, "study", "a.zip")
    assert (code, errors.count("\n")) == (2, 1)
    assert "status.json is damaged" in errors
    assert not Path("a.zip").exists()
    assert "must end in .zip: give a.zip" in call("archive", "study", "a")[2]


def test_a_damaged_result_is_left_out_of_a_site_and_named(call):
    fake_record("study/run")
    fake_record("study/broken")
    Path("study/broken/status.json").write_text("{")
    code, _, errors = call("publish", "study", "site")
    assert code == 0
    assert "left out: study/broken/status.json is damaged" in errors
    assert sorted(path.name for path in Path("site").iterdir()) == ["index.html", "plotly.js", "run"]


@pytest.mark.slow
def test_the_index_sorts_and_filters_in_a_browser(call):
    for name, algo, data in (("a", "fedmid", "lasso"), ("b #1", "fedavg", "haxby"), ("c", "fedavg", "lasso")):
        fake_record(f"study/{name}", fake_config(algo, data), status="done" if name != "c" else "failed")
    assert call("publish", "study", "site")[0] == 0
    page = RenderedPage(Path("site/index.html"), "#filter=data%3Dlasso&sort=verdict,desc")
    assert page.console == []
    assert page.data["errors"] == "0"
    assert [row[1:4] for row in page.rows(hidden=False)] == [["run", "lasso", "fedavg"], ["run", "lasso", "fedmid"]]
    assert page.column("verdict", hidden=False)[0] == "failed"
    assert page.column("verdict", hidden=False)[1].startswith("done; ")
    assert '<a href="b%20%231/report.html">b #1</a>' in page.text
    curves = RenderedPage(Path("site/b #1/report.html"))  # by a script that all pages share
    assert curves.console == []
    assert "plot-container" in curves.text
    assert "http" not in Path("site/index.html").read_text().replace("http://www.w3.org", "")
