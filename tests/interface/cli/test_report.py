"""fcorun report: the content of the page."""

import json
import re
from pathlib import Path

import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows

from fcorun.base.records.formats import csv_text
from fcorun.base.records.sweep_settings import SweepSettings, save_settings
from fcorun.interface.cli.commands import main


@pytest.mark.slow
def test_a_single_run_shows_its_reason_metrics_and_coefficients(report):
    record = fake_record(
        "one/run", fake_config("feddualavg"), fake_rows(), reason="not finished: <more> rounds may help"
    )
    line = {"parameter": "weights", "feature": "age", "class": "", "value": 0.5, "value_original": 0.25}
    (record.folder / "coefficients.csv").write_text(csv_text([line, line | {"feature": "sex", "value": 0.0}]))
    text = report("one")
    assert "One run of feddualavg on lasso" in text
    assert "not finished: &lt;more&gt; rounds may help" in text
    assert "run: the coefficients as a table" in text
    assert '<td>objective</td><td class="number" data-v>1</td>' in text  # each metric at the end
    assert "the clients&#39; learning rate" in text  # what configuration files say of a key
    assert "% fcorun, which made this record" in text


@pytest.mark.slow
def test_a_sweep_that_is_not_over_is_shown_as_such(report):
    records = fake_grid("s", algos=("fedmid",), seeds=(0,))
    fake_record("s/late", fake_config("fedmid", algo__client_lr=0.9), status="running")
    save_settings(Path("s"), SweepSettings(runs=(*(r.folder.name for r in records), "late", "missing1", "missing2")))
    Path("s/missing1").mkdir()  # without a record
    text = report("s")
    assert "Of 9 runs: 4 done, 2 diverged, 1 running, 2 not started." in text.replace("interrupted", "running")
    assert "Some runs have not ended: this page shows the records at the time it was written." in text
    save_settings(Path("s"), SweepSettings(runs=tuple(r.folder.name for r in records)))
    main(["rm", "s", "--status", "running", "--status", "interrupted", "--yes"])
    assert "Some runs have not ended" not in report("s")


@pytest.mark.slow
def test_problems_that_do_not_compare_are_shown_separately(report):
    for data in ("lasso", "lowrank"):
        for rate in (0.1, 0.2, 0.4):
            fake_record(
                f"s/{data}{rate}", fake_config(data=data, data__name=data, algo__client_lr=rate), fake_rows(rate)
            )
    text = report("s")
    drawings = re.findall(r'aria-label="The metric over the numbers that vary\..*?<svg(.*?)</svg>', text, re.DOTALL)
    assert [re.findall(">(lasso|lowrank)</text>", drawing) for drawing in drawings] == [["lasso"], ["lowrank"]]


def data_of(text):
    """Return the data of the charts of a page."""
    return json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])


@pytest.mark.slow
def test_maps_are_drawings_with_texts(report):
    fake_grid("s", seeds=(0,))
    text = report("s")
    captions = re.findall(r'<figure class="drawn(?: wide)?"><div role="img" aria-label="(.*?)">\s*<svg', text)
    assert [caption.partition(".")[0] for caption in captions] == [
        "The metric over the numbers that vary",
        "A mark for each point that is done; rings mark the best",
    ]
    drawing = text.partition("<svg")[2].partition("</svg>")[0]
    assert re.findall(r">(feddualavg|fedmid)</text>", drawing) == ["feddualavg", "fedmid"]
    assert re.findall(r">([\d.]+)</text>", drawing)[:5] == ["0.1", "0.2", "0.5", "0.3", "1"]
    assert report("s").partition("<svg")[2].partition("</svg>")[0] == drawing  # the same each time


def test_a_selection_and_a_stability_selection_are_shown(report):
    for kind in ("chosen", "stable"):
        Path(kind).mkdir()
    about = {"param_name": "strength", "label": "select algo=fedavg", "status": "running", "metric": "val_loss"}
    about |= {"folds": 5, "rule": "min", "by": "rows", "chosen": 0.01, "warnings": ["the least is at the edge"]}
    Path("chosen/selection.json").write_text(json.dumps(about))
    marks = {0.1: "one standard error", 0.01: "minimum", 0.001: ""}
    curve = [{"strength": s, "val_loss_mean": 1 + s, "val_loss_standard_error": 0.1, "mark": mark,
              "chosen": mark == "minimum"} for s, mark in marks.items()]  # fmt: skip
    Path("chosen/curve.csv").write_text(csv_text(curve))
    path = {"parameter": "weights", "feature": "age", "class": "", "strength=0.1": 0.0, "strength=0.01": -0.5}
    Path("chosen/path.csv").write_text(csv_text([path, path | {"parameter": "bias", "strength=0.1": 9.0}]))
    about = {"param_name": "strength", "label": "stability", "status": "done", "threshold": 0.75, "stable": ["age"]}
    Path("stable/stability.json").write_text(json.dumps(about | {"features": 1, "region": [0.1, 0.01], "warnings": []}))
    row = {"feature": "age", "stable": True, "frequency": 0.9, "strength=0.1": 0.4, "strength=0.01": 0.9}
    Path("stable/stability.csv").write_text(csv_text([row]))
    for folder, name in (("chosen", "selection"), ("stable", "stability")):
        Path(folder, f"{name}.png").write_bytes(b"\x89PNG")
    text = report("chosen", "stable")
    assert "strength by val_loss over 5 folds of rows, chosen 0.01 by the rule min; it has not ended" in text
    assert "the least is at the edge" in text
    assert "1 of 1 features are stable, chosen on at least 0.75 of the halves." in text
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert captions[0].startswith("The mean of val_loss over 5 folds, with its standard error.")
    assert captions[1].startswith("The share of the halves that choose each feature, against the strength")
    assert "<td>minimum</td><td>True</td>" in text  # the scores as a table


def test_a_permutation_test_is_shown(report):
    Path("tested").mkdir()
    statement = ["accuracy 0.9; permuted 0.5 (95 % within 0.4 to 0.6); p = 0.01", "strength=0.1 is that of the command"]
    about = {"label": "permute algo=centralized", "status": "done", "n": 99, "statement": statement}
    about["warnings"] = ["accuracy misleads here"]
    Path("tested/permutation.json").write_text(json.dumps(about))
    Path("tested/permutation.png").write_bytes(b"\x89PNG")
    text = report("tested")
    assert f"permute algo=centralized: {statement[0]}; accuracy misleads here" in text
    assert "<li>strength=0.1 is that of the command" in text
    assert "Each score of 99 permutations of the targets, and of the targets as they are (the line)." in text


@pytest.mark.slow
def test_running_studies_beside_runs_are_named(report):
    """Files that an earlier study has left in their folder are ignored."""
    fake_grid("s", seeds=(0,))
    for kind, table in (("selection", "curve"), ("stability", "stability"), ("permutation", "permutations")):
        Path("s", kind).mkdir()
        about = {"identity": "1", "label": f"{kind} algo=fedavg", "status": "running"}
        Path("s", kind, f"{kind}.json").write_text(json.dumps(about))
        Path("s", kind, f"{table}.csv").write_text(csv_text([{"strength": 0.1, "feature": "age"}]))
    text = report("s")
    for kind in ("selection", "stability", "permutation"):
        assert f"{kind} algo=fedavg: running, and has no results yet." in text
        assert f"{kind.capitalize()} {kind}</h2>" not in text


@pytest.mark.slow
def test_curves_are_thinned_with_a_note(report, monkeypatch):
    monkeypatch.setattr("fcorun.reports.page.build_page.MAX_NUMBERS", 1)
    fake_record("s/long", table=fake_rows(rounds=1000))
    text = report("s")
    assert "of up to 101 evaluations of a run 20 are drawn, evenly spaced" in text
    data = data_of(text)["curves"]
    rounds = data["arrays"][data["runs"][0]["columns"]["rounds"]]
    assert (len(rounds), rounds[0], rounds[-1]) == (20, 0, 1000)
    monkeypatch.setattr("fcorun.reports.page.build_page.MAX_RUNS", 2)
    fake_grid("s", algos=("fedmid",), seeds=(0,))
    assert "curves of 5 runs are left out, none of them a best point" in report("s")
