"""fcorun report, and the page in a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest
from browser import Seen, needs_browser, screenshot
from fabricate import config, grid, record, rows
from sweeps import RATES, command

from fcorun.cli.commands import main
from fcorun.figures.reproduce import Made
from fcorun.metrics import Metric
from fcorun.records.formats import csv_text
from fcorun.records.sweeps import Asked, keep
from fcorun.reports.page.build import library

pytestmark = pytest.mark.skipif(library() is None, reason="plotly is not installed: pip install 'fcorun[report]'")
HIT = "document.documentElement.dataset.hit=1"
EVIL = f"<img src=x onerror={HIT}></script><script>{HIT}"


class Tags(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def report(capsys):
    """A function that makes a page: its text."""

    def make(*argv, out="page.html"):
        assert main(["report", *argv, "--out", out, "--force"]) == 0
        assert capsys.readouterr().err == ""
        return Path(out).read_text()

    return make


def evil(folder):
    """A record whose every name is an attempt to run a script."""
    settings = config(EVIL, EVIL, algo__title=EVIL, reg__name=EVIL, algo__client_lr=EVIL)
    own = Metric(EVIL, EVIL, higher=False, matters=0)
    name = EVIL.replace("/", "&")
    found = record(f"{folder}/{name}", settings, [row | {EVIL: 1.0} for row in rows()], reason=EVIL, metrics=[own])
    summary = json.loads((found.folder / "summary.json").read_text())
    summary |= {"versions": {EVIL: EVIL}, "git": EVIL, "device": EVIL, "platform": EVIL}
    (found.folder / "summary.json").write_text(json.dumps(summary))
    line = {"parameter": "weights", "feature": EVIL, "class": EVIL, "value": 1.0, "value_original": 2.0}
    (found.folder / "coefficients.csv").write_text(csv_text([line]))
    (found.folder / "scores.csv").write_text(csv_text([{"set": EVIL, "model": EVIL, "client": "", "n": 3}]))
    about = {"number": EVIL, "label": EVIL, "status": EVIL, "metric": EVIL, "remarks": [EVIL], "rule": EVIL, "by": EVIL}
    about |= {"threshold": EVIL}
    for kind, table in (("selection", "curve"), ("stability", "stability")):
        place = Path(folder, kind)
        place.mkdir()
        (place / f"{kind}.json").write_text(json.dumps(about))
        row = {"feature": EVIL, EVIL: 1.0, f"{EVIL}_mean": 1.0, "mark": EVIL, f"{EVIL}=0.1": 0.5, f"{EVIL}=0.2": 1.0}
        (place / f"{table}.csv").write_text(csv_text([row]))
    Path(folder, "figure").mkdir()
    Path(folder, "figure", "figure.png").write_bytes(b"\x89PNG")
    claim = dict.fromkeys(("figure", "algo", "says", "measured", "wanted", "holds", "test", "note"), EVIL)
    Path(folder, "figure", "claims.csv").write_text(csv_text([claim]))
    about = dict.fromkeys(("title", "about", "changed"), EVIL)
    Path(folder, "figure", "figure.json").write_text(json.dumps(about))


def test_names_are_text_wherever_they_stand(report):
    evil("s")
    text = report("s")
    tags = Tags(text).found
    assert [name for name, _ in tags].count("script") == 3
    assert not [of for _, of in tags if any(key.startswith("on") for key in of) or of.get("src") == "x"]
    assert text.count("&lt;img src=x") > 20  # they are there, as text
    assert "</script><script>doc" not in text


@needs_browser
def test_names_run_nothing_in_a_browser(report):
    evil("s")
    grid("s/more", seeds=(0,))
    report("s")
    seen = Seen(Path("page.html"))
    assert seen.console == []
    assert "hit" not in seen.data
    assert '<img src="x"' not in seen.text
    assert int(seen.data["ready"]) > 5


@needs_browser
def test_the_page_in_a_browser(report):
    """No error; it sorts, filters and switches axes by its address."""
    grid("s")
    report("s")
    page = Path("page.html")
    plain = Seen(page)
    assert plain.console == []
    assert (plain.data["errors"], plain.data["x"], plain.data["curves"]) == ("0", "rounds", "6")
    assert int(plain.data["ready"]) >= 6  # curves, two maps, structure
    assert 'aria-sort="ascending"' not in plain.text.partition("</table>")[0]

    seen = Seen(page, "#sort=objective,desc&x=bytes&xscale=log&show=all&metric=objective")
    assert seen.console == []
    assert (seen.data["x"], seen.data["curves"]) == ("bytes", "36")
    assert 'aria-sort="descending" data-key="objective"' in seen.text
    values = [float(cell) for cell in seen.column("objective") if cell]
    assert values == sorted(values, reverse=True) != [float(c) for c in plain.column("objective") if c]
    assert [bool(cell) for cell in seen.column("objective")] == [True] * 24 + [False] * 12  # diverged ones come last
    assert "communication, up and down (B)" in seen.text
    assert "communication round" not in seen.text.partition("<script")[0]

    seen = Seen(page, "#filter=algo%3Dfedmid+algo.client_lr%3D0.2&show=table")
    assert seen.data["curves"] == "6"
    assert set(seen.column("algo", hidden=False)) == {"fedmid"}
    assert len(seen.rows(hidden=False)) == 6 < len(seen.rows())


@needs_browser
def test_light_and_dark(report):
    grid("s", seeds=(0,))
    report("s")
    for dark, wanted in ((False, 1.0), (True, 0.1)):
        picture = matplotlib.image.imread(screenshot(Path("page.html"), Path("page.png").resolve(), dark=dark))
        assert abs(float(picture[2, 2, :3].mean()) - wanted) < 0.05
        text = picture[:200, :400, :3].mean(axis=2)
        assert abs(text.max() - text.min()) > 0.6  # it can be read on that


@needs_browser
def test_the_browser_hears_what_goes_wrong(report):
    grid("s", seeds=(0,))
    Path("page.html").write_text(report("s").replace('"arrays":', '"lost":'))
    seen = Seen(Path("page.html"))
    assert "ready" not in seen.data
    assert seen.data["errors"] != "0"
    assert seen.console


def test_it_needs_no_network(report):
    grid("s", seeds=(0,))
    tags = Tags(report("s")).found
    links = [link for _, of in tags for key in ("src", "href") if (link := of.get(key))]
    assert all(link.startswith(("data:", "#")) for link in links)


def test_a_single_run_says_what_is_known_of_it(report):
    found = record("one/run", config("feddualavg"), rows(), reason="not finished: <more> rounds may help")
    line = {"parameter": "weights", "feature": "age", "class": "", "value": 0.5, "value_original": 0.25}
    (found.folder / "coefficients.csv").write_text(csv_text([line, line | {"feature": "sex", "value": 0.0}]))
    text = report("one")
    assert "One run of feddualavg on lasso" in text
    assert "not finished: &lt;more&gt; rounds may help" in text
    assert "run: 1 of 2 coefficients exceed cutoff=0.0001" in text
    assert "the clients&#x27; learning rate" in text  # what configuration files say of a key
    assert "% fcorun, which made this record" in text


def test_a_sweep_that_is_not_over_is_shown_as_such(report):
    there = grid("s", algos=("fedmid",), seeds=(0,))
    record("s/late", config("fedmid", algo__client_lr=0.9), status="running")
    keep(Path("s"), Asked(runs=(*(r.folder.name for r in there), "late", "missing1", "missing2")))
    text = report("s")
    assert "Of 9 runs: 4 done, 2 diverged, 1 running, 2 not begun." in text.replace("interrupted", "running")
    assert "Not all have come to an end: this page shows what there was when it was made." in text
    keep(Path("s"), Asked(runs=tuple(r.folder.name for r in there)))
    main(["rm", "s", "--status", "running", "--status", "interrupted", "--yes"])
    assert "Not all have come to an end" not in report("s")


def test_problems_that_do_not_compare_stand_apart(report):
    for data in ("lasso", "lowrank"):
        for rate in (0.1, 0.2, 0.4):
            record(f"s/{data}{rate}", config(data=data, data__name=data, algo__client_lr=rate), rows(rate))
    text = report("s")
    about = re.findall(r'aria-label="(support_f1 against algo.client_lr[^"]*)"', text)
    assert about == [f"support_f1 against algo.client_lr, {data}; ring: best" for data in ("lasso", "lowrank")]


def data_of(text):
    """What the charts of a page are drawn from."""
    return json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])


def test_maps_hold_what_was_measured(report):
    there = grid("s", seeds=(0,))
    charts = [chart for chart in data_of(report("s"))["charts"] if chart["traces"][0]["type"] == "heatmap"]
    assert [chart["layout"]["title"]["text"] for chart in charts] == ["feddualavg", "fedmid"]
    for algo, chart in zip(("feddualavg", "fedmid"), charts, strict=True):
        of = {tuple(r.config["algo"][key] for key in ("client_lr", "server_lr")): r for r in there
              if r.config["algo"]["name"] == algo}  # fmt: skip
        cells, best, crosses = chart["traces"]
        assert (cells["x"], cells["y"]) == (["0.1", "0.2", "0.5"], ["0.3", "1"])
        for y, line in zip(cells["y"], cells["z"], strict=True):
            for x, value in zip(cells["x"], line, strict=True):
                found = of[float(x), float(y)]
                assert value == (None if x == "0.5" else found.summary["tail"]["support_f1"])
        assert (best["name"], best["x"], best["y"]) == ("best", ["0.2"], ["1"])
        assert (crosses["name"], set(crosses["x"])) == ("diverged", {"0.5"})


def test_a_selection_and_a_stability_selection(report):
    for kind in ("chosen", "stable"):
        Path(kind).mkdir()
    about = {"number": "strength", "label": "select algo=fedavg", "status": "running", "metric": "val_loss", "folds": 5}
    about |= {"rule": "min", "by": "rows", "chosen": 0.01, "remarks": ["the least is at the edge"]}
    Path("chosen/selection.json").write_text(json.dumps(about))
    marks = {0.1: "one standard error", 0.01: "minimum", 0.001: ""}
    curve = [{"strength": s, "val_loss_mean": 1 + s, "val_loss_standard_error": 0.1, "mark": mark,
              "chosen": mark == "minimum"} for s, mark in marks.items()]  # fmt: skip
    Path("chosen/curve.csv").write_text(csv_text(curve))
    path = {"parameter": "weights", "feature": "age", "class": "", "strength=0.1": 0.0, "strength=0.01": -0.5}
    Path("chosen/path.csv").write_text(csv_text([path, path | {"parameter": "bias", "strength=0.1": 9.0}]))
    about = {"number": "strength", "label": "stability", "status": "done", "threshold": 0.75, "stable": ["age"]}
    Path("stable/stability.json").write_text(json.dumps(about | {"features": 1, "region": [0.1, 0.01], "remarks": []}))
    row = {"feature": "age", "stable": True, "frequency": 0.9, "strength=0.1": 0.4, "strength=0.01": 0.9}
    Path("stable/stability.csv").write_text(csv_text([row]))
    text = report("chosen", "stable")
    assert "strength by val_loss over 5 folds of rows, chosen 0.01 by the rule min; it has not come to its end" in text
    assert "the least is at the edge" in text
    assert "1 of 1 features are stable, chosen on at least 0.75 of the halves." in text
    means, paths, halves = data_of(text)["charts"]
    assert means["traces"][0]["y"] == [1.1, 1.01, 1.001]
    assert [trace["name"] for trace in means["traces"][1:]] == ["one standard error", "minimum (chosen)"]
    assert [trace["y"] for trace in paths["traces"]] == [[0.0, -0.5]]  # no intercept
    assert [trace["y"] for trace in halves["traces"]] == [[0.4, 0.9]]


def test_studies_that_are_running_beside_runs(report):
    """Files that one before them has left are not theirs."""
    grid("s", seeds=(0,))
    for kind, table in (("selection", "curve"), ("stability", "stability")):
        Path("s", kind).mkdir()
        about = {"identity": "1", "label": f"{kind} algo=fedavg", "status": "running"}
        Path("s", kind, f"{kind}.json").write_text(json.dumps(about))
        Path("s", kind, f"{table}.csv").write_text(csv_text([{"strength": 0.1, "feature": "age"}]))
    text = report("s")
    for kind in ("selection", "stability"):
        assert f"{kind} algo=fedavg: running, and nothing has come of it yet." in text
        assert f"{kind.capitalize()} {kind}</h2>" not in text


def test_a_search_over_numbers_that_have_no_logarithm(report):
    """Its points, which are no grid, are where they are, those at 0 too."""
    for place in range(9):
        record(f"s/{place}", config(algo__client_lr=0.1 * 2**place, algo__server_lr=1.0 * place), rows())
    chart = next(c for c in data_of(report("s"))["charts"] if c["traces"][0].get("marker", {}).get("showscale"))
    assert 0 in chart["traces"][0]["y"]
    assert [chart["layout"][axis]["type"] for axis in ("xaxis", "yaxis")] == ["log", "linear"]


def test_curves_are_thinned_and_it_is_said(report, monkeypatch):
    monkeypatch.setattr("fcorun.reports.page.curves.NUMBERS", 1)
    record("s/long", table=rows(rounds=1000))
    text = report("s")
    assert "of up to 101 evaluations of a run 20 are drawn, evenly spaced" in text
    data = data_of(text)["curves"]
    rounds = data["arrays"][data["runs"][0]["columns"]["rounds"]]
    assert (len(rounds), rounds[0], rounds[-1]) == (20, 0, 1000)
    monkeypatch.setattr("fcorun.reports.page.curves.RUNS", 2)
    grid("s", algos=("fedmid",), seeds=(0,))
    assert "curves of 5 runs are left out, none of them a best point" in report("s")


def test_where_the_page_goes(capsys):
    grid("s", seeds=(0,))
    assert main(["report", "s"]) == 0
    assert Path("s/report.html").stat().st_size < 6e6
    assert main(["report", "s"]) == 0  # its own place is written anew
    Path("mine.html").write_text("mine")
    assert main(["report", "s", "--out", "mine.html"]) == 2
    assert "mine.html exists; give --force to replace it" in capsys.readouterr().err
    assert Path("mine.html").read_text() == "mine"
    assert main(["report", "s", "s"]) == 2
    assert "give --out FILE.html" in capsys.readouterr().err


def test_a_folder_that_cannot_be_shown_leaves_nothing(capsys, monkeypatch):
    Path("empty").mkdir()
    for argv, sentence in (
        (["nowhere"], "there is no folder nowhere; give one that holds records"),
        (["empty"], "empty holds no records; give a folder that fcorun has written, such as outputs"),
        (["empty", "--out", "a.pdf"], "--out a.pdf must end in .html or .htm"),
        (["empty", "--out", "no/a.html"], "--out no/a.html: there is no folder no; make it, or give another name"),
    ):
        assert main(["report", *argv]) == 2
        assert capsys.readouterr().err == f"fcorun: {sentence}\n"
    grid("s", seeds=(0,))
    assert main(["report", "s", "--metric", "nothing"]) == 2
    monkeypatch.setattr("fcorun.reports.page.build.find_spec", lambda name: None)
    assert main(["report", "s"]) == 2
    assert "pip install 'fcorun[report]'" in capsys.readouterr().err
    assert list(Path("empty").iterdir()) == []
    assert not Path("s/report.html").exists()


@pytest.mark.drawn
@pytest.mark.parametrize("without", [True, False])
def test_a_figure_leaves_its_page(capsys, monkeypatch, without):
    """Its claims, and the records that it was made from, wherever they lie."""
    claim = {"figure": "mine", "algo": "fedmid", "says": "it is the best", "measured": "1", "wanted": "2"}
    claim |= {"holds": "no", "test": "in each of 3 seeds", "note": ""}
    folder, records = Path("figures", "fco_fig3a"), grid("figures/shared/runs", seeds=(0,))

    def reproduce(*_):
        folder.mkdir()
        (folder / "figure.png").write_bytes(b"\x89PNG")
        (folder / "claims.csv").write_text(csv_text([claim]))
        about = {"title": "A title", "about": "What it is.", "changed": "with metric=a", "ours": True}
        (folder / "figure.json").write_text(json.dumps(about))
        return Made(folder, [claim], records=records, page=not without)

    monkeypatch.setattr("fcorun.cli.commands.figure.reproduce", reproduce)
    assert main(["figure", "fco_fig3a", "--out", "figures"]) == 0
    assert (folder / "report.html").exists() != without
    if not without:
        text = (folder / "report.html").read_text()
        assert "12 runs of feddualavg and fedmid on lasso" in text
        assert "Figure fco_fig3a: 1 claim (1 no)." in text
        assert "<h1>fco_fig3a: A title</h1>" in text
        assert "<p>What it is. This is not the figure as its file has it, but: with metric=a. Figure fco" in text
        assert "fcorun&#x27;s own choice" in text
        assert "<td>fedmid</td><td>no</td><td>it is the best</td>" in text  # the verdict is seen on a phone
        assert "report.html in figures/fco_fig3a/" in capsys.readouterr().out


@pytest.mark.drawn
def test_a_sweep_leaves_its_page(monkeypatch):
    monkeypatch.setattr("fcorun.reports.results.draw_sweep", lambda *_, **__: [])
    assert command(*RATES, "hydra.sweep.dir=s", "report=false") == 0
    assert not Path("s/report.html").exists()
    assert command(*RATES, "hydra.sweep.dir=s", "dry_run=true") == 0
    assert not Path("s/report.html").exists()
    assert command(*RATES, "hydra.sweep.dir=s") == 0
    assert "6 runs of FedDualAvg on lasso (6 clients, " in Path("s/report.html").read_text()
