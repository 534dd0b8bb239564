"""predictions.csv: held-out rows of records, and out-of-fold rows of selections."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import HETEROGENEOUS, fails
from run_studies import select

import fcorun
from fcorun import compose, run
from fcorun.data.tables.column_roles import ColumnRoles
from fcorun.interface.cli.commands import main
from fcorun.studies.selection.selection_result import SelectOptions

TABLE = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.keep=[record_no]"]
SOLVED = ["algo=centralized", "precision=float64", *TABLE]
pytestmark = pytest.mark.undrawn


def write_rows(target=lambda score: np.where(score > 0, "ill", "fit")):
    """Write rows.csv, whose numbers of records begin with zeros, and return the frame."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((60, 2))
    table = pd.DataFrame({"record_no": [f"{3 * i:04}" for i in range(60)], "u": x[:, 0], "v": x[:, 1]})
    table["site"] = np.tile(["b", "a"], 30)
    table["y"] = target(x @ [1.5, -0.5] + rng.standard_normal(60))
    table["part"] = np.where(rng.random(60) < 0.3, "validation", "train")
    table["fold"] = rng.integers(0, 3, 60).astype(str)
    table.to_csv("rows.csv", index=False)
    return table


@pytest.mark.slow
def test_rows_are_those_of_the_file():
    table = write_rows()
    record = run(compose([*SOLVED, "data.task=binary", "data.test=0.2", "data.ignore=[part,fold]"]))
    predictions = record.predictions
    columns = ["set", "client", "row", "record_no", "target", "prediction", "positive", "probability", "model"]
    assert list(predictions) == columns
    assert predictions["set"].value_counts().to_dict() == {"validation": 12, "test": 12}
    rows = table.iloc[predictions["row"] - 1].reset_index(drop=True)
    assert predictions["record_no"].tolist() == rows["record_no"].tolist()  # with its zeros
    assert predictions["client"].tolist() == rows["site"].tolist()
    assert predictions["target"].tolist() == rows["y"].tolist()
    model = record.estimator()
    assert list(model.feature_names_in_) == ["u", "v"]  # and not record_no
    probability = model.predict_proba(rows[["u", "v"]])[:, list(model.classes_).index("ill")]
    np.testing.assert_allclose(predictions["probability"], probability, rtol=1e-12)
    assert predictions["prediction"].tolist() == model.predict(rows[["u", "v"]]).tolist()
    text = (record.folder / "predictions.csv").read_text()
    assert repr(predictions["probability"].tolist()[0]) in text


@pytest.mark.slow
def test_regression_and_personal_models():
    table = write_rows(lambda score: score)
    overrides = [*TABLE, "algo=ditto", "rounds=2", "precision=float64", "data.ignore=[part,fold]"]
    record = run(compose(overrides))
    predictions = record.predictions
    assert predictions["model"].value_counts().to_dict() == {"shared": 12, "personal": 12}
    assert "positive" not in predictions
    for model, of_model in predictions.groupby("model"):
        rows = table.iloc[of_model["row"] - 1]
        assert of_model["target"].tolist() == rows["y"].tolist()  # read back exactly
        for (_, row), prediction in zip(rows.iterrows(), of_model["prediction"], strict=True):
            estimator = record.estimator(row["site"] if model == "personal" else None)
            expected = estimator.predict(pd.DataFrame([row[["u", "v"]].astype(float)]))[0]
            assert prediction == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_data_without_a_file():
    record = run(compose([*HETEROGENEOUS, "rounds=1", "data.classes=3"]))
    predictions = record.predictions
    assert predictions["row"].tolist() == list(range(1, 31))  # the validation rows in order
    probabilities = predictions[[name for name in predictions if name.startswith("probability_")]]
    assert probabilities.shape == (30, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.slow
def test_no_held_out_rows_no_file():
    write_rows()
    record = run(compose([*SOLVED, "data.task=binary", "data.validation=0", "data.ignore=[part,fold]"]))
    assert not (record.folder / "predictions.csv").exists()
    assert record.predictions.empty


@pytest.mark.slow
def test_out_of_fold_rows_are_those_of_runs_that_hold_the_fold_out():
    table = write_rows()
    overrides = [*SOLVED, "data.task=binary", "data.standardize=pooled", "data.validation=0"]
    study = [*overrides, "data.fold=fold", "data.ignore=[part]"]
    selection = select(compose(study), SelectOptions(points=3, range=[0.003, 0.03]), "chosen")
    predictions = pd.read_csv("chosen/predictions.csv", dtype={"record_no": str})
    assert predictions["row"].tolist() == list(range(1, 61))
    assert set(predictions["set"]) == {"out_of_fold"}
    assert predictions["fold"].tolist() == (table["fold"].astype(int) + 1).tolist()
    assert predictions["record_no"].tolist() == table["record_no"].tolist()
    strength = selection.path.values[selection.choice.chosen_index]
    for fold in range(3):
        held_out = table["fold"] == str(fold)
        table.assign(part=np.where(held_out, "validation", "train")).to_csv("rows.csv", index=False)
        options = ["data.split=part", "data.validation=null", "data.ignore=[fold]", f"reg.strength={strength}"]
        alone = run(compose([*overrides, *options])).predictions
        expected = predictions[held_out.to_numpy()]
        assert alone["row"].tolist() == expected["row"].tolist()
        np.testing.assert_allclose(alone["probability"], expected["probability"], rtol=1e-4)


@pytest.mark.slow
def test_fits_that_exist_give_the_same_predictions_and_personal_models_have_theirs():
    write_rows()
    config = compose([*TABLE, "algo=pfedmac_s", "rounds=3", "data.task=binary", "data.ignore=[part,fold]"])
    options = SelectOptions(points=2, folds=2)
    select(config, options, "chosen")
    first = Path("chosen/predictions.csv").read_text()
    models = pd.read_csv("chosen/predictions.csv")["model"].value_counts().to_dict()
    assert models == {"shared": 48, "personal": 48}  # all training rows
    Path("chosen/predictions.csv").unlink()
    lines: list[str] = []
    select(config, options, "chosen", log=lines.append)
    assert lines[0] == "3 of 3 fits exist: reused (force=true recomputes)"
    assert Path("chosen/predictions.csv").read_text() == first


def test_columns_that_cannot_be_kept():
    write_rows()
    with fails("data.keep: rows.csv has no column 'recordno'; did you mean 'record_no'?"):
        run(compose([*SOLVED, "data.keep=[recordno]"]))
    with fails("data.keep and data.only both name 'u'"):
        run(compose([*SOLVED, "data.keep=[u]", "data.only=[u,v]"]))
    with fails("is the name of a column that predictions have anyway"):
        run(compose([*SOLVED, "data.keep=[row]"]))
    for name in ("warnings", "scaling", "survival_at_5"):
        with fails(f"data.keep={name} is the name of a column"):
            ColumnRoles(keep=[name]).check()


@pytest.mark.slow
def test_a_kept_group_leaves_the_groups_as_they_are():
    write_rows()
    overrides = [*SOLVED, "data.task=binary", "data.group=record_no", "data.ignore=[part,fold]"]
    kept = run(compose(overrides)).predictions
    dropped = run(compose([*overrides, "data.keep=null"])).predictions
    assert kept["row"].tolist() == dropped["row"].tolist()


@pytest.mark.slow
def test_frames_and_new_rows(capsys):
    table = write_rows()
    data = fcorun.from_frame(
        table.drop(columns=["part", "fold"]),
        target="y",
        client="site",
        task="binary",
        positive="ill",
        keep=["record_no"],
    )
    record = fcorun.Experiment(algorithm=fcorun.Centralized(), data=data).run("here")
    assert set(record.predictions["record_no"]) <= set(table["record_no"])
    new = table.drop(columns=["site", "y", "part", "fold"]).head(3)
    assert record.predict(new)["record_no"].tolist() == ["0000", "0003", "0006"]
    new.assign(ward=["x", "y", ""]).to_csv("new.csv", index=False)
    assert main(["predict", "here", "new.csv", "--keep", "ward", "--keep", "record_no", "--keep", "u"]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header == "row,ward,record_no,u,prediction,probability_fit,probability_ill"
    assert first.startswith(f"1,x,0000,{table['u'].tolist()[0]!r},")
    assert main(["predict", "here", "new.csv", "--keep", "wards"]) == 2
    assert "--keep wards: there is no such column in new.csv; did you mean 'ward'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_probability_of_an_unknown_level_does_not_depend_on_the_solver(capsys):
    """Without a penalty only differences of levels follow from the training rows; the mean of the levels does, too."""
    table = write_rows(lambda score: (score > 0).astype(int)).drop(columns=["part", "fold", "record_no"])
    table["ward"] = np.resize(["er", "eye", "icu", "er", "icu"], len(table))
    table.loc[table.index % 6 == 0, ["site", "ward"]] = ["c", "attic"]
    table.to_csv("rows.csv", index=False)
    overrides = [*TABLE[:-1], "data.task=binary", "data.validation=[c]", "reg=none", "precision=float64"]
    solvers = {"centralized": [], "newton": ["rounds=30"], "fedgd": ["rounds=4000", "eval_every=4000"]}
    tables = [run(compose([*overrides, f"algo={name}", *more]), name).predictions for name, more in solvers.items()]
    for predictions in tables[1:]:
        np.testing.assert_allclose(predictions["probability"], tables[0]["probability"], rtol=0, atol=1e-8)
    remark = "ward 'attic' unknown: coded as the mean of its levels, with 1/3"
    assert tables[0]["warnings"].tolist() == [remark] * 10
    assert main(["scores", "newton"]) == 0
    assert "10 of 10 rows have a level that no training row has" in capsys.readouterr().out
