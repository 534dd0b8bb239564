"""Pictures with the labels of columns and the title: of a run, drawn again from its record, and of a selection."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_studies import select

from fcorun import Record, compose
from fcorun.interface.cli.commands import main
from fcorun.reports.pictures import selection_picture as picture
from fcorun.results.models.coefficients import load_coefficients
from fcorun.runs.job import Job
from fcorun.studies.selection.selection_result import SelectOptions

LABELS = "column,label,unit,role\nstay,length of stay,days,target\nage,age,years,\nsmokes,smoker,,\n"


@pytest.fixture
def selection(tmp_path, monkeypatch):
    """A selection of a strength on a table with labels, and its refit in out/refit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 60), "smokes": rng.choice(["no", "yes"], 60)})
    frame["stay"] = 0.3 * frame["age"] + 2 * (frame["smokes"] == "yes") + rng.normal(size=60)
    frame.assign(site=np.repeat(["a", "b"], 30)).to_csv("t.csv", index=False)
    Path("labels.csv").write_text(LABELS)
    config = compose(["algo=newton", "data=table", "data.path=t.csv", "data.labels=labels.csv", "data.client=site",
                      "data.standardize=pooled", "rounds=2", "title=How long"])  # fmt: skip
    return select(config, SelectOptions(folds=2, points=3), "out")


@pytest.mark.parametrize(("title", "target", "heading"), [
    ("", "stay", "length of stay"),
    ("", "age", "age"),
    ("How long", "stay", "How long"),
    ("", None, "algo=newton"),
])  # fmt: skip
def test_pictures_of_held_out_rows_are_titled_by_the_target(title, target, heading):
    experiment = SimpleNamespace(settings=SimpleNamespace(title=title), data=SimpleNamespace(target=target))
    job: Any = SimpleNamespace(experiment=experiment, picture_title=title or "algo=newton")
    labels = {"stay": {"label": "length of stay", "unit": "days"}}
    data: Any = SimpleNamespace(features=SimpleNamespace(labels=labels))
    assert Job.title_held_out_rows(job, data) == heading


@pytest.mark.slow
def test_pictures_have_labels_and_the_title(selection, monkeypatch):
    named = []
    monkeypatch.setattr(picture, "label_curve_ends", lambda _, labels: named.extend(name for *_, name in labels))
    picture.PICTURE.render(selection.view)
    assert {"age (years)", "smoker: yes"} <= set(named)
    record = Record(Path("out/refit"))
    assert record.picture_title == "How long"
    assert load_coefficients(record).display_names == selection.coefficients.display_names
    drawn = (record.folder / "coefficients.png").read_bytes()
    (record.folder / "coefficients.png").unlink()
    assert main(["weights", "out/refit"]) == 0
    assert (record.folder / "coefficients.png").read_bytes() == drawn
