"""fcorun predict: predictions for new rows, warnings, and refused input."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from helpers import fails

from fcorun import Record, compose, run
from fcorun.base.errors import find_spelling
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.commands.predict_command import _round_for_screen
from fcorun.results.models.predict import predict

SITES = np.repeat(["a", "b", "c"], 30)
pytestmark = pytest.mark.undrawn


@pytest.fixture
def run_predict(capsys):
    """A function that runs fcorun predict, and returns its exit code, output and warnings."""

    def call(*argv):
        capsys.readouterr()
        code = main(["predict", *map(str, argv)])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return call


def train(folder, *overrides, algo="centralized", sites=SITES):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 2)) * [10, 0.1] + [50, 1]
    label = np.where((x - [50, 1]) @ [0.1, 10] + rng.standard_normal(90) > 0, "yes", "no")
    pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "site": sites, "y": label}).to_csv("rows.csv", index=False)
    table = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.task=binary"]
    rounds = ["rounds=2"] if algo != "centralized" else []
    return run(compose([f"algo={algo}", *table, *rounds, "precision=float64", *overrides]), folder)


def test_a_terminal_shows_six_digits_of_what_the_model_computed():
    kept = {"row": [1], "dose": [0.123456789], "prediction_time": [123456789.5]}
    frame = pd.DataFrame(kept | {"prediction": ["yes"], "probability_yes": [0.123456789]})
    assert _round_for_screen(frame).loc[0].tolist() == [1, 0.123456789, 123456789.5, "yes", 0.123457]


def test_names_that_differ_in_capitals_or_spaces_are_found():
    assert find_spelling(" st.gallen", ["Basel", "St. Gallen"]) == "St. Gallen"
    assert find_spelling("Sankt Gallen", ["Basel", "St. Gallen"]) is None


@pytest.mark.slow
def test_columns_are_matched_by_name(run_predict):
    record = train("here", "data.standardize=pooled")
    Path("new.csv").write_text("note,v,u,y\nx,1.1,55,yes\ny,0.9,41.5,no\n")
    code, out, warnings = run_predict("here", "new.csv")
    assert code == 0
    assert warnings == ["fcorun: column 'y' is the outcome: ignored",
                    "fcorun: ignored, for the record has no such features: 'note'"]  # fmt: skip
    predictions = pd.read_csv(io.StringIO(out))
    assert list(predictions) == ["row", "prediction", "probability_no", "probability_yes"]
    told = record.summary["data"]["standardized"]
    z = (np.array([[55, 1.1], [41.5, 0.9]]) - told["mean_"]) / told["scale_"]
    eta = z @ record.solution["weights"] + record.solution["bias"]
    np.testing.assert_allclose(predictions["probability_yes"], 1 / (1 + np.exp(-eta)), rtol=1e-9)
    assert predictions["prediction"].tolist() == ["yes", "no"]
    Path("new.csv").write_text("v;u\n1,1;55\n0,9;41,5\n")
    _, out, (warning,) = run_predict("here", "new.csv")
    assert warning.startswith("fcorun: new.csv: commas in 'v', 'u' are read as decimal commas")
    assert pd.read_csv(io.StringIO(out)).equals(predictions)


@pytest.mark.slow
def test_rows_unlike_training_are_flagged(run_predict):
    train("here", "data.standardize=pooled")
    rows = pd.read_csv("rows.csv")["u"]
    span = f"(training: {rows.min():.6g} to {rows.max():.6g})"
    Path("new.csv").write_text("u,v,site\n55,1, A\n")
    assert "row 1 of 1 is of clients that training did not have (' A')" in run_predict("here", "new.csv")[2][0]
    Path("new.csv").write_text("u,v,site\n55,1,a\n0.5,1,north\n700,1,north\n")
    _, out, warnings = run_predict("here", "new.csv")
    assert warnings == [
        f"fcorun: far outside of what training had, where a model only extrapolates: 'u' 0.5 in row 2, and others in "
        f"row 3 {span}; are they in the same units?",
        "fcorun: 2 rows (2, 3) of 3 are of clients that training did not have ('north'): how well the model predicts "
        "for these is not known",
    ]
    predictions = pd.read_csv(io.StringIO(out), keep_default_na=False)
    limits = f"outside of {rows.min():.6g} to {rows.max():.6g}; client 'north' not in training"
    assert predictions["warnings"].tolist() == ["", f"u 0.5 {limits}", f"u 700 {limits}"]
    assert list(predictions)[-1] == "warnings"
    most = rows.max() + 0.05 * np.ptp(rows)
    Path("new.csv").write_text(f"u,v\n{most},1\n")
    _, out, warnings = run_predict("here", "new.csv")
    assert warnings == []
    assert "warnings" not in out


@pytest.mark.slow
def test_one_row_is_written_to_a_file(run_predict):
    train("here")
    Path("new.csv").write_text("u,v\n55,1.1\n")
    code, out, warnings = run_predict("here", "new.csv", "--out", "out.parquet")
    assert (code, out, warnings) == (0, "", ["fcorun: out.parquet: 1 predictions"])
    assert pd.read_parquet("out.parquet").shape == (1, 4)
    code, _, warnings = run_predict("here", "new.csv", "--out", "out.parquet")
    assert (code, warnings) == (2, ["fcorun: --out out.parquet exists; give --force to replace it, or another name"])
    assert run_predict("here", "new.csv", "--out", "out.parquet", "--force")[0] == 0


@pytest.mark.slow
def test_clients_use_their_own_models_and_scalings(run_predict):
    record = train("here", "data.standardize=per_client", algo="local")
    Path("new.csv").write_text("site,u,v\nb,55,1.1\nz,55,1.1\n,55,1.1\na,55,1.1\n")
    _, out, warnings = run_predict("here", "new.csv")
    predictions = pd.read_csv(io.StringIO(out))
    assert predictions["model"].tolist() == ["personal", "shared", "shared", "personal"]
    assert predictions["scaling"].tolist() == ["client", "mean", "mean", "client"]
    assert predictions["client"].fillna("").tolist() == ["b", "z", "", "a"]
    assert predictions["warnings"].fillna("").tolist() == ["", "client 'z' not in training", "no client", ""]
    assert warnings[0] == (
        "fcorun: 2 rows (2, 3) of 4 are of clients that the record does not know ('z') and get the shared model and "
        "the means and deviations of all clients, which may be far from their own"
    )
    for place, site in ((0, "b"), (3, "a")):
        model = record.estimator(site)
        expected = model.predict_proba(pd.DataFrame({"u": [55], "v": [1.1]}))[0]
        np.testing.assert_allclose(predictions.iloc[place, 3:5].astype(float), expected, rtol=1e-12)
    Path("other.csv").write_text("where,u,v\nb,55,1.1\n")
    code, out, warnings = run_predict("here", "other.csv", "--client", "where")
    assert (code, warnings) == (0, [])
    assert out.splitlines()[1].startswith("1,b,")


def test_a_client_whose_name_is_a_number_is_known_from_every_format(run_predict):
    """A gap makes real numbers of the names, which pandas writes as 1.0 to a CSV; an older record has such a name."""
    record = train("here", "data.standardize=per_client", algo="local", sites=np.repeat([1.0, 2.0, 3.0], 30))
    new = pd.DataFrame({"site": [2.0, np.nan, 1.0], "u": 55.0, "v": 1.1})
    new.to_csv("new.csv", index=False)
    new.to_parquet("new.parquet")
    outputs = [run_predict("here", name)[1] for name in ("new.csv", "new.parquet")]
    predictions = pd.read_csv(io.StringIO(outputs[0]), dtype={"client": str})
    assert outputs[0] == outputs[1]
    assert predictions["client"].fillna("").tolist() == ["2", "", "1"]
    assert predictions["model"].tolist() == ["personal", "shared", "personal"]
    assert predictions["scaling"].tolist() == ["client", "mean", "client"]
    with fails("client=2.0: the record has no such client: did you mean '2'?"):
        record.estimator("2.0")
    coefficients = record.estimator("1").coef_
    older_names = ["1.0", "2.0", "3.0"]
    for name in ("personal.npz", "scaling.npz"):
        arrays: dict[str, Any] = dict(np.load(record.folder / name)) | {"client": np.array(older_names)}
        np.savez(record.folder / name, **arrays)
    summary = json.loads((record.folder / "summary.json").read_text())
    summary["data"]["client_names"] = older_names
    (record.folder / "summary.json").write_text(json.dumps(summary))
    assert run_predict("here", "new.csv")[1] == outputs[0].replace("1,2,", "1,2.0,").replace("3,1,", "3,1.0,")
    for name in ("1", "1.0"):
        np.testing.assert_array_equal(Record(record.folder).estimator(name).coef_, coefficients)


@pytest.mark.slow
def test_missing_personal_models_are_reported(run_predict):
    train("here", "save_personal=false", algo="ditto")
    Path("new.csv").write_text("u,v\n55,1.1\n")
    code, out, warnings = run_predict("here", "new.csv")
    assert code == 0
    assert "model" not in out.splitlines()[0]
    assert warnings[0].startswith("fcorun: personal models were not saved (save_personal=false)")


@pytest.mark.slow
def test_files_without_names_are_read_by_position(run_predict):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((30, 3)).round(3)
    np.savez("rows.npz", X=x, y=x @ [1.0, 2, 3])
    record = run(compose(["data=table", "data.path=rows.npz", "data.clients=3", "algo=centralized"]), "here")
    np.savez("new.npz", X=x[:2])
    expected = x[:2] @ record.solution["weights"] + record.solution["bias"]
    code, out, warnings = run_predict("here", "new.npz")
    np.testing.assert_allclose(pd.read_csv(io.StringIO(out))["prediction"], expected, rtol=1e-5)
    assert warnings == []
    with h5py.File("new.h5", "w") as file:
        file["X"] = x[:2]
    assert run_predict("here", "new.h5") == (code, out, warnings)
    Path("new.svm").write_text("0 1:0.5\n0 2:1\n")  # what is left out is 0, also at the end
    expected = [[0.5, 0, 0], [0, 1, 0]] @ record.solution["weights"] + record.solution["bias"]
    predictions = pd.read_csv(io.StringIO(run_predict("here", "new.svm")[1]))
    np.testing.assert_allclose(predictions["prediction"], expected, rtol=1e-5)
    np.savez("new.npz", X=x[:, :2])
    code, _, warnings = run_predict("here", "new.npz")
    assert (code, warnings) == (2, ["fcorun: new.npz has 2 columns of features, and the record has 3: give as many"])


@pytest.mark.slow
def test_indices_of_libsvm_count_as_in_the_file_of_the_record(run_predict):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((30, 3)).round(3)
    for first in (0, 1):
        lines = [" ".join([str(row.sum()), *(f"{first + j}:{v}" for j, v in enumerate(row))]) for row in x]
        Path("rows.svm").write_text("\n".join(lines))
        record = run(compose(["data=table", "data.path=rows.svm", "data.clients=3", "algo=centralized"]), f"{first}")
        Path("new.svm").write_text("0 1:0.5\n")
        code, out, _ = run_predict(f"{first}", "new.svm")
        expected = 0.5 * record.solution["weights"][1 - first] + record.solution["bias"]
        assert (code, pd.read_csv(io.StringIO(out))["prediction"][0]) == (0, pytest.approx(expected, rel=1e-5))
    Path("new.svm").write_text("0 0:0.5\n")
    code, _, messages = run_predict("1", "new.svm")
    assert (code, len(messages)) == (2, 1)
    assert "new.svm has an index 0, and the indices of the record's file count from 1" in messages[0]


BAD = [
    ("here new.csv --client who",
     "fcorun: --client who: there is no such column in new.csv; leave it out, or give another"),
    ("here new.csv --out x.txt", "fcorun: --out x.txt must end in .csv or .parquet"),
    ("here new.csv --out no/x.csv", "fcorun: --out no/x.csv: there is no folder no; make it, or give another name"),
    ("here nw.csv", "fcorun: nw.csv: there is no such file; did you mean 'new.csv'?"),
    ("here new.xyz", "fcorun: new.xyz: unknown ending '.xyz'; give one of .csv, .tsv, .parquet, .xlsx, .npz, .h5, "
     ".hdf5, .libsvm, .svm, .svmlight, .txt (.gz or .bz2 may follow .csv, .tsv, .libsvm, .svm, .svmlight, .txt)"),
    ("here few.csv", "fcorun: few.csv lacks 'v': give all features of the record, by name, in any order"),
    ("here gap.csv", "fcorun: gap.csv: column 'u' is missing in row 2, and the record has no value for gaps, "
     "since training had data.missing=refuse: fill it in or drop the row"),
    ("here text.csv", "fcorun: text.csv: column 'u' holds 'old' in row 1: make it a number"),
    ("here none.csv", "fcorun: none.csv: the file has no rows; give one with data"),
    ("here empty.csv", "fcorun: empty.csv: the file is empty; give one with data"),
    ("here matrix.npz", "fcorun: matrix.npz: there is no array 'X'; (valid: x)"),
    ("nowhere new.csv", "fcorun: there is no folder nowhere; give that of a run that is done"),
    (". new.csv", "fcorun: . is no record of a run; give one of the 2 below it, such as here"),
    ("bare new.csv", "fcorun: bare is no record of a run; give the folder of one that is done"),
    ("scans new.csv", "fcorun: scans is a model of images: give an .npz whose X has a row an image, of the voxels of "
     "its mask.nii.gz in nilearn's order (NiftiMasker), not standardized"),
    ("here", "fcorun: the following arguments are required: NEW; fcorun predict --help shows the options"),
]  # fmt: skip


@pytest.mark.slow
def test_bad_input_is_refused_in_one_line(run_predict):
    train("here")
    Path("bare").mkdir()
    shutil.copytree("here", "scans")
    Path("scans/mask.nii.gz").write_bytes(b"")
    np.savez("matrix.npz", x=np.ones((2, 2)))
    files = {"new.csv": "u,v\n1,2\n", "new.xyz": "u,v\n1,2\n", "few.csv": "u\n1\n", "gap.csv": "u,v\n1,2\n,2\n"}
    files |= {"text.csv": "u,v\nold,2\n", "none.csv": "u,v\n", "empty.csv": ""}
    for name, text in files.items():
        Path(name).write_text(text)
    before = sorted(map(str, Path().rglob("*")))
    for arguments, sentence in BAD:
        code, out, warnings = run_predict(*arguments.split())
        assert (arguments, code, out, warnings) == (arguments, 2, "", [sentence])
    assert sorted(map(str, Path().rglob("*"))) == before


@pytest.mark.slow
def test_predict_from_python():
    record = train("here")
    predictions, warnings = predict(record, pd.DataFrame({"v": [1.0], "u": [50]}))
    assert predictions.shape == (1, 4)
    assert warnings == []
    with fails("the frame lacks 'u'"):
        predict(record, pd.DataFrame({"v": [1.0]}))


@pytest.mark.slow
def test_misspelt_names_and_empty_columns_are_explained(run_predict):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 9, 40), "sex": np.resize(["f", "m"], 40), "bmi": rng.normal(26, 4, 40),
                          "site": np.resize(["a", "b", "c", "d"], 40), "y": rng.normal(size=40)})  # fmt: skip
    table.loc[3, "bmi"] = None
    table.to_csv("rows.csv", index=False)
    overrides = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "algo=centralized"]
    run(compose([*overrides, "data.missing=median"]), "here")
    Path("new.csv").write_text("age,sex,bmi\n50,M,NA\n40,x,25\n")
    code, out, warnings = run_predict("here", "new.csv")
    assert code == 0
    assert any(line.startswith("fcorun: gaps are filled: 'bmi' by") and line.endswith("in row 1") for line in warnings)
    assert any("'M' in row 1 (did you mean 'm'?), 'x' in row 2: they are coded" in line for line in warnings)
    warnings = pd.read_csv(io.StringIO(out))["warnings"].tolist()
    coding = "coded as the mean of its levels, with 1/2"
    assert f"sex 'M' unknown (did you mean 'm'?): {coding}; bmi empty: filled by" in warnings[0]
    assert warnings[1] == f"sex 'x' unknown: {coding}"
    Path("new.csv").write_text("Age,sex\n50,m\n")
    lacks = "fcorun: new.csv lacks 'age', 'bmi': give all features of the record, by name, in any order"
    assert run_predict("here", "new.csv")[2] == [f"{lacks}; did you mean 'Age' for 'age'?"]
    Path("new.csv").write_text("age,sex,bmi\n50,m,\n")
    assert run_predict("here", "new.csv")[0] == 0


def test_new_rows_of_triples_have_the_rows_clients_and_offsets_of_their_table(run_predict):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((90, 4)) < 0.5, rng.standard_normal((90, 4)), 0)
    x[[40, 88, 89]] = 0
    row, column = np.nonzero(x)
    pd.DataFrame({"row": row, "column": column, "value": x[row, column]}).to_parquet("x.parquet")
    table = pd.DataFrame({"y": x[:, 0] + rng.standard_normal(90), "site": SITES, "e": np.arange(90) / 100, "id": SITES})
    table.to_csv("rows.csv", index=False)
    data = ["data=table", "data.path=rows.csv", "data.triples=x.parquet", "data.target=y", "data.client=site"]
    local = ["algo=ditto", "algo.client_lr=0.1", "algo.personal_lr=0.1", "data.offset=e", "rounds=2"]
    record = run(compose([*data, *local, "precision=float64"]), "here")
    code, out, warnings = run_predict("here", "rows.csv", "data.triples=x.parquet", "--keep", "id")
    assert code == 0, warnings
    predictions = pd.read_csv(io.StringIO(out))
    assert predictions["client"].tolist() == predictions["id"].tolist() == SITES.tolist()
    expected = np.empty(90)
    for client in "abc":
        rows = table["site"] == client
        expected[rows] = record.estimator(client).predict(x[rows])
    np.testing.assert_allclose(predictions["prediction"], expected + table["e"], rtol=1e-12)
    table.drop(columns="e").to_csv("new.csv", index=False)
    np.savez("new.npz", X=x)
    refused = {
        ("new.npz", "data.triples=x.parquet"): "the features of a table with named columns: give NEW, one of .csv",
        ("rows.csv",): "give the file of their triples, too, data.triples=FILE",
        ("x.parquet",): "a table with a line for each row",
        ("new.csv", "data.triples=x.parquet"): "new.csv with data.triples=x.parquet lacks 'e', the offset",
        ("rows.csv", "data.triples=x.parquet", "--keep", "age"): "--keep age: there is no such column",
    }
    for arguments, words in refused.items():
        code, _, (message,) = run_predict("here", *arguments)
        assert code == 2
        assert words in message
