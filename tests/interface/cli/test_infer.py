"""fcorun infer: its files, its text and its refusals."""

import csv
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from helpers import fails

from fcorun import Record, compose, run


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("infer")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3))
    died = np.where(x[:, 0] + rng.logistic(size=120) > 0, "yes", "no")
    frame = pd.DataFrame(x, columns=["[age]", "dose", "noise"]).assign(site=np.repeat([*"abc"], 40), died=died)
    frame.to_csv(folder / "rows.csv", index=False)
    table = [f"data.path={folder / 'rows.csv'}", "data.target=died", "data.client=site", "data.task=binary"]
    config = compose(["algo=newton", "data=table", *table, "reg=l1", "reg.strength=0.02", "rounds=5", "verbose=false"])
    return run(config, folder / "run").folder


def path_of(record):
    """Return the option that names the rows of the record."""
    return f"data.path={record.parent / 'rows.csv'}"


@pytest.mark.slow
def test_files_are_opened_that_the_command_line_names(record, call, monkeypatch, tmp_path):
    config = yaml.safe_load((record / "config.yaml").read_text())
    foreign = tmp_path / "foreign"
    shutil.copytree(record, foreign)
    (foreign / "config.yaml").write_text(yaml.safe_dump(config | {"start": "../../etc"}))
    monkeypatch.setattr("fcorun.results.models.inference.infer", lambda *_: pytest.fail("something is opened"))
    code, _, err = call("infer", foreign, "level=0.9")
    assert code == 2
    words = ["fcorun", "infer", str(foreign), "level=0.9", "start=../../etc", path_of(record)]
    assert err.strip().endswith(f"and fcorun infer opens those alone that you name: {shlex.join(words)}")
    monkeypatch.undo()
    _, _, err = call("infer", record, "level=0.9")
    assert call(*shlex.split(err.rpartition(": ")[2])[1:])[0] == 0


@pytest.mark.slow
def test_classes_are_imported_from_the_folder_that_the_user_trusts(record, call, monkeypatch, tmp_path):
    config = yaml.safe_load((record / "config.yaml").read_text())
    config["algo"]["class"] = "own_newton.Own"
    shutil.copytree(record, tmp_path / "own")
    (tmp_path / "own/config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/own_newton.py").write_text("from fcorun import Newton\n\n\nclass Own(Newton):\n    pass\n")
    code, _, err = call("infer", tmp_path / "own", path_of(record))
    assert (code, "algo.class=own_newton.Own is not imported" in err, "--trust DIR" in err) == (2, True, True)
    with fails('own_newton.Own" is not imported', "as trust=DIR"):
        Record(tmp_path / "own").infer()
    assert len(Record(tmp_path / "own").infer(trust=tmp_path / "code").frame)
    monkeypatch.delitem(sys.modules, "own_newton")
    command = shlex.split(call("infer", tmp_path / "own", "--trust", tmp_path / "code")[2].rpartition(": ")[2])
    assert call(*command[1:])[0] == 0


@pytest.mark.slow
def test_a_record_gets_a_table_and_a_forest_plot(record, call):
    code, out, err = call("infer", record, path_of(record))
    assert (code, err) == (0, "")
    assert "debiased lasso, 95 % intervals" in out
    assert "duality gap" in out
    assert "van de Geer et al. (2014)" in out
    assert "[age]" in out
    assert "rows are held out (data.validation" in out
    assert f"fcorun report {record} puts them on the page" in " ".join(out.split())
    rows = list(csv.DictReader((record / "inference.csv").read_text(encoding="utf-8").splitlines()))
    assert "odds ratio per unit" in out
    assert f"{float(rows[0]['ratio']):.2f} ({float(rows[0]['ratio_low']):.2f} to" in out
    assert [row["feature"] for row in rows] == ["[age]", "dose", "noise", "(intercept)"]
    assert float(rows[0]["low"]) < float(rows[0]["estimate"]) < float(rows[0]["high"])
    assert (record / "inference.png").read_bytes()[:4] == b"\x89PNG"
    assert (record / "inference.pdf").read_bytes()[:4] == b"%PDF"


@pytest.mark.slow
def test_another_folder_and_other_options(record, call, tmp_path):
    code, out, _ = call(
        "infer", record, path_of(record), f"out={tmp_path / 'split'}", "method=split", "level=0.9", "seed=3"
    )
    assert code == 0
    assert "90 % intervals" in out
    assert "with p below 0.1" in out
    assert "fcorun report" not in out
    rows = csv.DictReader((tmp_path / "split/inference.csv").read_text(encoding="utf-8").splitlines())
    assert {row["level"] for row in rows} == {"0.9"}
    names = {path.name for path in Path(tmp_path, "split").iterdir()}
    assert names == {f"inference.{ending}" for ending in ("csv", "txt", "png", "pdf")}


@pytest.mark.slow
def test_a_failed_call_leaves_the_files_of_an_earlier_one_and_says_so(record, call, tmp_path):
    _, _, err = call("infer", record, path_of(record), "method=wald", f"out={tmp_path / 'new'}")
    assert "earlier call" not in err
    assert not (tmp_path / "new").exists()
    call("infer", record, path_of(record))
    before = (record / "inference.csv").read_bytes()
    code, _, err = call("infer", record, path_of(record), "method=wald")
    assert code == 2
    assert f"the inference files in {record} stay" in err
    assert (record / "inference.csv").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["method=bootstrap"], ["method=bootstrap", "debiased"]),
        (["levels=0.9"], ["levels=0.9", "level"]),
        (["level=95"], ["level=95", "0.95"]),
        (["cluster=group"], ["cluster=group", "data.group"]),
    ],
)
def test_wrong_options_are_one_sentence(record, call, options, words):
    code, _, err = call("infer", record, path_of(record), *options)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words)


def test_a_folder_without_a_record_is_refused(call, tmp_path):
    assert call("infer", tmp_path)[0] == 2


@pytest.mark.slow
def test_the_page_of_a_record_shows_its_forest_plot(record, call, report, tmp_path, monkeypatch):
    call("infer", record, path_of(record))
    monkeypatch.chdir(tmp_path)
    page = report(str(record))
    assert "Forest plot: the estimates and intervals of the table." in page
    assert "at the certified solution" in page


@pytest.mark.slow
def test_the_bibliography_has_the_sources_of_intervals(record, call):
    call("infer", record, path_of(record))
    _, out, _ = call("cite", record)
    assert "vandegeer2014" in out
    assert "fcorun infer" in out
