"""Arguments of wrong types, sweeps by axes, names of features, short texts of objects, and saved figures."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails

import fcorun
from fcorun import L1, Experiment, FedDualAvg, FedProx, Lasso, from_arrays, from_frame
from fcorun.base.errors import UserError
from fcorun.experiment.configuration.compose import compose
from fcorun.studies.figures.reproduce import FigureResult

SMALL = Lasso(clients=10, samples=8, features=6, nonzeros=2, validation_samples=2)
EXPERIMENT = Experiment(algorithm=FedDualAvg(), data=SMALL, rounds=2)
X = np.random.default_rng(0).standard_normal((60, 3))
CLIENTS = np.repeat(["a", "b", "c"], 20)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    data = from_arrays(X, X[:, 0], CLIENTS, feature_names=["age", "bmi", "crp"])
    experiment = Experiment(algorithm=FedDualAvg(), data=data, rounds=2)
    return experiment.run(tmp_path_factory.mktemp("arguments") / "record", pictures=False)


def test_the_order_of_axes_does_not_matter():
    axes = {"algorithm.mu": [0.1, 0.2], "algorithm": [FedProx(), FedDualAvg()]}
    one = EXPERIMENT.combinations(axes)
    assert [text for text, _ in one] == [text for text, _ in EXPERIMENT.combinations(dict(reversed(axes.items())))]
    assert len(one) == 3


@pytest.mark.parametrize("mask", [list, np.array, pd.Series, lambda values: np.array(values, object)])
def test_a_mask_may_be_a_column_or_of_objects(mask):
    held_out = [True, False, False] * 20
    data = from_arrays(X, np.array([*range(60)], object), CLIENTS, validation=mask(held_out))
    assert data.rows.values["validation"].tolist() == held_out


def test_a_target_may_be_numbers_of_numpy_among_objects():
    y = np.empty(60, object)
    y[:] = [np.int64(value) for value in range(60)]
    assert from_arrays(X, y, CLIENTS).task == "regression"
    assert from_frame(pd.DataFrame({"y": y}), "y").task == "regression"


def test_names_that_are_equal_as_text_are_refused():
    with pytest.raises(UserError, match="one name twice"):
        from_frame(pd.DataFrame(X, columns=[1, "1", "y"]), "y")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_an_argument_of_a_wrong_type_is_one_sentence(record):
    wrong: Any = 5
    frame = pd.DataFrame(X, columns=["p", "q", "r"])
    cases = {
        "config is of type int": lambda: fcorun.run(wrong),
        "config is None": lambda: fcorun.run(None),  # pyright: ignore[reportArgumentType]
        r"axes\['seed'\] is of type int": lambda: EXPERIMENT.sweep(axes={"seed": wrong}),
        r"axes\['seed'\] has no values": lambda: EXPERIMENT.sweep(axes={"seed": []}),
        "overrides is 'algo=fedavg'": lambda: compose("algo=fedavg"),
        "overrides has 5": lambda: fcorun.figure("fco_fig3a", overrides=[wrong]),
        "config_dir is of type int": lambda: compose([], config_dir=wrong),
        "a folder is of type list": lambda: fcorun.load_records(["outputs"]),  # pyright: ignore[reportArgumentType]
        "the folder of a record is of type int": lambda: fcorun.Record(wrong),
        "the rows are of type int": lambda: record.predict(wrong),
        "the rows are of type str": lambda: record.encode("rows.csv"),
        "the rows are of type ndarray": lambda: record.predict(X[0]),
        "one name twice": lambda: record.predict(pd.DataFrame(X, columns=["a", "a", "b"])),
        "file is of type int": lambda: record.report(wrong),
        "folder is of type int": lambda: EXPERIMENT.run(wrong),
        "watch is of type int": lambda: EXPERIMENT.run("run", watch=wrong),
        "derived from fcorun.SweepWatcher": lambda: EXPERIMENT.sweep(watch=fcorun.Watcher()),  # pyright: ignore
        'metric="loss" is not a choice': lambda: EXPERIMENT.sweep(metric="loss"),
        "range=5 must be a list": lambda: EXPERIMENT.select(range=wrong),
        "rounds has no values": lambda: Experiment(algorithm=FedDualAvg(), data=SMALL, rounds=[]).sweep(),
        "a target is of type complex": lambda: from_arrays(X, X[:, 0] * 1j),
        "a target is of type datetime64": lambda: from_arrays(X, np.full(60, "2020-01-01", "datetime64[D]")),
        "y has rows of several lengths": lambda: from_arrays(X, [[1], [2, 3]]),
        "name=5 cannot be": lambda: from_arrays(X, X[:, 0], name=wrong),
        "target is None": lambda: from_frame(frame, None),  # pyright: ignore[reportArgumentType]
        'target="y": the frame has no such column': lambda: from_frame(frame, "y"),
        "X has masked entries": lambda: from_arrays(np.ma.masked_greater(X, 0), X[:, 0]),
        "y has masked entries": lambda: from_arrays(X, np.ma.masked_greater(X[:, 0], 0)),
        "feature_names is no list": lambda: from_arrays(X, X[:, 0], feature_names="age"),
        "feature_names has 1 names and X has 3": lambda: from_arrays(X, X[:, 0], feature_names=["age"]),
        "feature_names has 'b' twice": lambda: from_arrays(X, X[:, 0], feature_names=["a", "b", "b"]),
        r"feature_names\[0\] is 1": lambda: from_arrays(X, X[:, 0], feature_names=[1, 2, 3]),  # pyright: ignore
        'tol="a" must be a number': lambda: fcorun.FederatedRegressor(tol="a").fit(X, X[:, 0]),  # pyright: ignore
    }
    for message, call in cases.items():
        with pytest.raises(UserError, match=message):
            call()
    assert not list(Path.cwd().glob("outputs"))


@pytest.mark.slow
def test_names_of_features_are_those_of_coefficients_and_predictions(record):
    assert list(record.coefficients["feature"].fillna("")) == ["age", "bmi", "crp", ""]
    frame = pd.DataFrame(X[:5, ::-1], columns=["crp", "bmi", "age"])
    pd.testing.assert_frame_equal(
        record.predict(frame), record.predict(pd.DataFrame(X[:5], columns=["age", "bmi", "crp"]))
    )
    other = from_arrays(X, X[:, 0], CLIENTS, feature_names=["age", "bmi", "iron"])
    identity = Experiment(algorithm=FedDualAvg(), data=other, rounds=2).identity
    assert identity != record.status["identity"]  # the record has other names


@pytest.mark.slow
def test_a_record_takes_rows_as_arrays(record):
    path: Any = str(record.folder)
    with pytest.warns(fcorun.ExperimentWarning, match="columns are taken in their order"):  # as by predict
        assert record.encode(X[:2]).to_numpy() == pytest.approx(X[:2])
    assert fcorun.Record(path).status == record.status


@pytest.mark.slow
def test_columns_with_numbers_as_names_are_found_by_name(tmp_path):
    frame: Any = pd.DataFrame({0: X[:, 0], 1: X[:, 1], 2: CLIENTS, 3: X[:, 0]})
    experiment = Experiment(algorithm=FedDualAvg(), data=from_frame(frame, "3", "2"), rounds=2)
    record = experiment.run(tmp_path / "record", pictures=False)
    frame = frame[:20]
    predictions = record.predict(frame[[0, 1]])
    pd.testing.assert_frame_equal(record.predict(frame[[1, 0]]), predictions)
    assert record.predict(frame[[2, 1, 0]])["client"].tolist() == ["a"] * 20
    assert record.encode(frame[[1, 0]])["1"].tolist() == frame[1].tolist()
    with pytest.warns(match="columns are taken in their order"):  # others than those of the record
        pd.testing.assert_frame_equal(record.predict(pd.DataFrame(X[:20, :2], columns=[7, 8])), predictions)


@pytest.mark.slow
def test_links_and_damaged_files_of_a_record_are_not_read(record, tmp_path):
    copy = fcorun.Record(shutil.copytree(record.folder, tmp_path / "copy"))
    (tmp_path / "secret").write_bytes(b"\x89PNG")
    (copy.folder / "curves.png").symlink_to(tmp_path / "secret")
    assert "base64" not in copy._repr_html_()
    file = copy.folder / "coefficients.csv"
    for content in (b"", b"a\n1\n1,2\n", b"a\n\xff\n"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"coefficients\.csv is damaged"):
            _ = copy.coefficients
    file.unlink()
    file.symlink_to(record.folder / "coefficients.csv")
    with pytest.raises(UserError, match=r"coefficients\.csv is damaged .*link"):
        _ = copy.coefficients


@pytest.mark.slow
def test_axes_are_those_of_lists():
    axes = {"algorithm.client_lr": [1e-3, 2e-3], "seed": range(2), "regularizer.strength": np.array([0.1, 0.2])}
    lists: Any = {"algorithm": FedDualAvg(client_lr=[1e-3, 2e-3]), "regularizer": L1([0.1, 0.2])}  # pyright: ignore
    by_lists = Experiment(data=SMALL, seed=[0, 1], **lists)
    by_axes = Experiment(algorithm=FedDualAvg(), data=SMALL, regularizer=L1())
    expected = {text: experiment.identity for text, experiment in by_lists.combinations()}
    assert {text: experiment.identity for text, experiment in by_axes.combinations(axes)} == expected
    assert len(expected) == 8
    pair = Experiment(algorithm=[FedDualAvg(), fcorun.ProxSkip()], data=SMALL)
    assert len(pair.combinations({"algorithm.client_lr": [1e-3, 2e-3]})) == 3  # ProxSkip has no client_lr
    for message, wrong in {
        "no argument 'algo': did you mean 'algorithm'": {"algo.client_lr": [1]},
        "no argument 'client_lr': did you mean 'algorithm.client_lr'": {"client_lr": [1]},
        "algorithm has no field 'client_rate'": {"algorithm.client_rate": [1]},
        "regularizer has no object": {"regularizer.strength": [1]},
        "seed is no object with fields": {"seed.x": [1]},
    }.items():
        with pytest.raises(UserError, match=message):
            EXPERIMENT.sweep(axes=wrong)


@pytest.mark.slow
def test_a_baseline_is_run_once_for_all_faults_and_uplinks():
    """As by the command; alone with a single one it is refused."""
    choices: Any = {
        "algorithm": [FedDualAvg(client_lr=1e-3), fcorun.Centralized()],
        "faults": [fcorun.FlippedUploads(liars=0.0), fcorun.FlippedUploads(liars=0.2)],
        "uplink": [None, fcorun.TopK()],
    }
    sweep = Experiment(data=SMALL, rounds=1, **choices).sweep("sweep")
    assert sorted(sweep.table["algo"]) == ["centralized"] + 4 * ["feddualavg"]
    with pytest.raises(UserError, match="leave faults out"):
        Experiment(algorithm=fcorun.Centralized(), data=SMALL, faults=choices["faults"][1]).sweep("alone")


@pytest.mark.slow
def test_texts_and_constants_are_axes():
    experiment = Experiment(
        algorithm=fcorun.FedOpt(optimizer=["adam", "yogi"]),  # pyright: ignore[reportArgumentType]
        data=SMALL,
        precision=["float32", "float64"],
        reference=[True, False],
        rounds=1,
    )
    combinations = experiment.combinations()
    assert len({variant.identity for _, variant in combinations}) == 8
    assert combinations[0][0] == "algo.optimizer=adam precision=float32 reference=True"
    blocks = [from_arrays(X, X[:, 0], CLIENTS, standardize=mode) for mode in ("none", "pooled")]
    sweep = Experiment(algorithm=FedDualAvg(), data=blocks, rounds=1).sweep("sweep")
    assert len(sweep.records) == 2


@pytest.mark.slow
def test_texts_of_objects_are_short(record):
    y = X[:, 0]
    frame = pd.DataFrame(X, columns=["p", "q", "r"]).assign(y=y, site=CLIENTS)
    arrays = from_arrays(X, y, CLIENTS, standardize="pooled", name="masses")
    assert repr(arrays) == "InMemoryTable('masses', 60 rows, 3 features, standardize='pooled')"
    assert repr(from_frame(frame, "y", "site")).startswith("InMemoryTable('frame', 60 rows, 5 columns, target='y'")
    rows: Any = [{"says": "a claim"}] * 50
    assert repr(FigureResult(Path("figures/a"), rows)) == "FigureResult('figures/a', 50 claims, 0 runs)"
    assert repr(fcorun.Sweep(Path("sweep"), [Path("a")] * 50)) == "Sweep('sweep', 50 runs)"
    assert len(repr(arrays.load())) < 200
    assert len(repr(arrays.load().train)) < 100


@pytest.mark.slow
@pytest.mark.parametrize("x", ["rounds", "grad_evals"])
def test_a_saved_figure_shows_all_labels(record, x):
    figure = record.plot(x)
    figure.savefig("curves.png")
    content, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert content.x0 >= 0
    assert content.y0 >= 0
    assert content.x1 <= width
    assert content.y1 <= height


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_label_is_refused(missing):
    with fails("y[2] is", "leave the row out"):
        fcorun.from_arrays(np.zeros((3, 1)), np.array(["a", "b", missing], dtype=object), ["h"] * 3)
