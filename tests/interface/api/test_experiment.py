"""Experiments of objects: the same experiment as the command's, arrays and frames, sweeps, refusals."""

import dataclasses
import re
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest

import fcorun
from fcorun import (
    L1,
    Experiment,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedOpt,
    FlippedUploads,
    Lasso,
    Logistic,
    from_arrays,
    from_frame,
)
from fcorun.base.config import AUTO, SECTIONS, Settings, build, build_plugin, check_plugin
from fcorun.base.errors import UserError
from fcorun.base.records.sweep_settings import load_settings
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.objects import compose_for_objects
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.experiment.prepare import prepare
from fcorun.interface.api.progress import WarningWatcher
from fcorun.interface.api.python_words import SECTION_OF_ARGUMENT

SMALL = Lasso(clients=10, samples=8, features=6, nonzeros=2, validation_samples=2)
SMALL_KEYS = ["clients=10", "samples=8", "features=6", "nonzeros=2", "validation_samples=2"]


def draw_rows(n=60):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3))
    y = x @ [1.0, -1.0, 0.0] + 0.1 * rng.standard_normal(n)
    return x, y, np.repeat(["a", "b", "c"], n // 3)


@pytest.mark.slow
@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "data"])
def test_a_class_without_arguments_has_the_values_of_its_choice(section):
    for name in find_choices(section).keys() - {"by_task"}:
        needed = ["clock.path=speeds.csv"] if name == "trace" else []
        values = compose([f"{section}={name}", *needed])[section]
        plugin = build_plugin(section, values)
        given = {}
        for field in dataclasses.fields(plugin):
            value = getattr(plugin, field.name)
            tells_choices_apart = isinstance(value, str) and value != AUTO
            if tells_choices_apart or field.default is field.default_factory is dataclasses.MISSING:
                given[field.name] = value
        bare = type(plugin)(**given)
        defaults = compose_for_objects({"data": Lasso(), section: bare})[section]
        if section != "objective":  # by_task and softmax have the class and the values of other choices
            assert defaults["name"] == values["name"]
        assert check_plugin(bare, defaults, section) == plugin, name


@dataclasses.dataclass(frozen=True)
class MarkedPlugin:
    """A plug-in with a mark of another library, and with a mark that fcorun does not know."""

    rate: Annotated[float, 3, ["unhashable"], "positive"] = 1.0
    size: Annotated[float, "postive"] = 1.0


def test_marks_of_other_libraries_are_ignored_and_unknown_texts_are_refused():
    assert build(MarkedPlugin, {"rate": 2.0}, "algo").rate == 2.0
    with pytest.raises(UserError, match=r"algo\.rate=-1.0 must be positive"):
        build(MarkedPlugin, {"rate": -1.0}, "algo")
    message = r"algo\.size: leave the text 'postive' out of its Annotated type, .*; did you mean 'positive'"
    with pytest.raises(UserError, match=message):
        build(MarkedPlugin, {"size": 1.0}, "algo")
    with pytest.raises(UserError, match=message):
        check_plugin(MarkedPlugin(), {}, "algo")


@pytest.mark.parametrize(
    ("algorithm", "algo"),
    [(FedDualAvg(), "feddualavg"), (FedOpt(optimizer="yogi"), "fedyogi"), (fcorun.Centralized(), "centralized")],
)
def test_the_identity_is_that_of_the_command(algorithm, algo):
    config = compose([f"algo={algo}", "data=lasso", "seed=3", *(f"data.{key}" for key in SMALL_KEYS)])
    experiment = Experiment(algorithm=algorithm, data=SMALL, seed=3)
    assert experiment.identity == prepare(config).identity
    assert experiment.prepared.config == prepare(config).config
    other = Experiment(algorithm=algorithm, data=SMALL, seed=3, regularizer=L1(0.25))
    assert other.identity == prepare(config | {"reg": config["reg"] | {"strength": 0.25}}).identity


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=fedadam", "algo.optimizer=adagrad", "algo.title=Mine", "data=lasso_8", "data.nonzeros=16"],
        ["algo=dane", "algo.name=mine", "data=lasso", "clients_per_round=null", "dry_run=true", "report=false"],
        ["algo=diana", "data=lasso", "algo.step=auto", "reg.relative=0.1", "uplink=qsgd", "stop={objective:1}"],
    ],
)
def test_a_configuration_and_its_experiment_are_the_same(overrides):
    config = compose(overrides)
    expected, experiment = prepare(config), Experiment.from_config(config)
    assert experiment.prepared.config == expected.config  # with names, titles and keys of the command
    assert experiment.identity == expected.identity
    config |= {"seed": 7}
    assert dataclasses.replace(experiment, seed=7).prepared.config == prepare(config).config


def test_axes_of_a_configuration_leave_its_other_values():
    config = compose(["algo=feddualavg", "data=lasso", "algo.client_lr=auto", "algo.server_lr=0.25", "algo.title=Mine"])
    axes = {"algorithm.server_lr": [0.25, 0.5]}
    (_, first), (_, second) = Experiment.from_config(config).combinations(axes)
    assert first.prepared.config == prepare(config).config
    assert second.prepared.config == prepare(config | {"algo": config["algo"] | {"server_lr": 0.5}}).config


def test_errors_of_a_configuration_name_its_keys():
    config = compose(["algo=feddualavg", "data=lasso"])
    for key, value in {"client_lr": None, "no_such_key": 1}.items():
        with pytest.raises(UserError, match=rf"algo\.{key}"):
            Experiment.from_config(config | {"algo": config["algo"] | {key: value}})
    with pytest.raises(UserError, match=r"^config is of type list: give a mapping"):
        Experiment.from_config([])  # pyright: ignore[reportArgumentType]
    misfit = Experiment.from_config(config | {"gap": True, "objective": compose(["objective=mlp"])["objective"]})
    with pytest.raises(UserError, match="objective=mlp"):
        misfit.run("misfit")


def test_constructors_name_a_field_of_a_wrong_type_and_leave_several_values_to_the_sweep():
    with pytest.raises(UserError, match=r"^Lasso\.condition=x must be a number$"):
        Lasso(condition="x")  # pyright: ignore[reportArgumentType]
    for condition in ([1.0, 4.0], np.array([1.0, 4.0])):
        data: Any = Lasso(condition=condition)  # pyright: ignore[reportArgumentType]
        experiment = Experiment(algorithm=FedDualAvg(), data=data)
        assert [other.data for _, other in experiment.combinations()] == [Lasso(condition=1.0), Lasso(condition=4.0)]
        with pytest.raises(UserError, match="2 combinations of values"):
            experiment.run()
    with pytest.raises(UserError, match=r"data\.condition=0\.5 is less than 1"):
        Experiment(algorithm=FedDualAvg(), data=Lasso(condition=[1, 0.5])).combinations()  # pyright: ignore


def test_every_setting_is_a_field():
    names = {field.name for field in dataclasses.fields(Experiment)}
    assert {field.name for field in dataclasses.fields(Settings)} - names == {
        "hosts", "verbose", "dry_run", "fail_fast", "report"}  # of a command  # fmt: skip
    assert names - {field.name for field in dataclasses.fields(Settings)} - {*SECTION_OF_ARGUMENT} == {"defaults"}


@pytest.mark.slow
def test_public_names_exist_and_cover_the_plugins():
    for name in dir(fcorun):
        assert getattr(fcorun, name) is not None
    for section in SECTIONS:
        for choice in find_choices(section).keys() - {"by_task"}:
            values = compose([f"{section}={choice}"])[section]
            assert values["class"].rpartition(".")[2] in dir(fcorun), values["class"]
    with pytest.raises(AttributeError):
        fcorun.no_such_name  # noqa: B018


def test_arrays_give_the_rows_of_the_file(tmp_path):
    x, y, clients = draw_rows()
    np.savez("rows.npz", X=x, y=y, client=clients)
    from_file = load_data(prepare(compose(["data=table", "data.path=rows.npz"])))
    from_memory = load_data(Experiment(algorithm=FedDualAvg(), data=from_arrays(x, y, clients)).prepared)
    for split in ("train", "validation"):
        for column in ("x", "y", "client", "row"):
            expected = getattr(from_file.splits[split], column)
            np.testing.assert_array_equal(expected, getattr(from_memory.splits[split], column))
    assert from_memory.clients == ("a", "b", "c")


def test_a_frame_gives_the_rows_of_the_file(tmp_path):
    x, y, clients = draw_rows()
    frame = pd.DataFrame(x, columns=["age", "bmi", "crp"]).assign(ward=np.tile(["A", "B", "C"], 20), site=clients, y=y)
    frame.loc[3, "bmi"] = np.nan
    frame.to_csv("rows.csv", index=False)
    keys = ["data.path=rows.csv", "data.target=y", "data.client=site", "data.missing=mean", "data.standardize=pooled"]
    from_file = load_data(prepare(compose(["data=table", *keys])))
    data = from_frame(frame, "y", "site", missing="mean", standardize="pooled")
    from_memory = load_data(Experiment(algorithm=FedDualAvg(), data=data).prepared)
    assert from_memory.features.names == from_file.features.names
    assert np.allclose(from_memory.train.x, from_file.train.x, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(from_memory.client_of_row("train"), from_file.client_of_row("train"))


@pytest.mark.slow
def test_a_run_of_arrays_and_its_record():
    x, y, clients = draw_rows(120)
    data = from_arrays(x, (y > 0).astype(int), clients, name="sites")
    experiment = Experiment(algorithm=FedDualAvg(client_lr=0.1), data=data, regularizer=L1(0.01), rounds=3)
    record = experiment.run("mine")
    assert record.status["status"] == "done"
    assert record.status["identity"] == experiment.identity
    assert record.config["objective"]["name"] == "logistic"
    assert record.config["data"]["task"] == "binary"
    assert list(record.metrics["round"]) == [0, 3]
    rows = pd.DataFrame(x[:4], index=[7, 3, 5, 1])
    assert record.predict(rows).index.tolist() == [7, 3, 5, 1]
    with pytest.raises(UserError, match="clients has shape"):
        record.predict(x[:4], ["a"])
    assert "done" in record._repr_html_()
    assert record.plot().axes
    assert record.report().name == "report.html"
    assert experiment.run("mine").folder == record.folder  # computes nothing
    with pytest.raises(UserError, match="given to a Python program"):
        fcorun.run(record.config, "again")


@pytest.mark.slow
def test_a_sweep_runs_all_combinations_of_numbers():
    rates: Any = np.array([1e-3, 2e-3])
    strengths: Any = [0.1, 0.2, 0.3]
    experiment = Experiment(algorithm=FedDualAvg(client_lr=rates), data=SMALL, regularizer=L1(strengths), rounds=2)
    sweep = experiment.sweep("sweep")
    assert len(sweep.records) == 6
    assert sorted(set(sweep.table["reg.strength"])) == [0.1, 0.2, 0.3]
    assert sweep.best.folder in [record.folder for record in sweep.records]
    pair = Experiment(algorithm=[FedDualAvg(client_lr=1e-3), FedDualAvg(client_lr=2e-3)], data=SMALL)
    assert [variant.algorithm for _, variant in pair.combinations()] == pair.algorithm
    alone = Experiment(algorithm=FedDualAvg(client_lr=2e-3), data=SMALL, regularizer=L1(0.3), rounds=2)
    assert alone.identity in [record.status["identity"] for record in sweep.records]
    with pytest.raises(UserError, match="6 combinations of values"):
        experiment.run()


def test_a_sweep_chooses_no_point_among_conditions():
    experiment = Experiment(algorithm=FedDualAvg(client_lr=1e-3), data=SMALL, rounds=2)
    axes = {"regularizer.strength": [0.1, 0.2], "clients_per_round": [2, 5]}
    experiment = dataclasses.replace(experiment, regularizer=L1(0.1))
    sweep = experiment.sweep("sweep", axes=axes, conditions=["clients_per_round"])
    assert load_settings("sweep").conditions == ("clients_per_round",)
    with pytest.raises(UserError, match="runs that differ in clients_per_round do not compare by val_loss"):
        dataclasses.replace(sweep, metric="val_loss").best  # noqa: B018
    for name, reason in (
        ("seed", "makes replicates"),
        ("algorithm.client_lr", "within each"),
        ("data.noise", "no axis"),
    ):
        with pytest.raises(UserError, match=f"^conditions: {re.escape(name)} .*{reason}"):
            experiment.sweep("sweep", axes=axes, conditions=[name])
    with pytest.raises(UserError, match=r"^conditions is of type str"):
        experiment.sweep("sweep", axes=axes, conditions="seed")


@pytest.mark.parametrize(
    ("arguments", "axes", "condition"),
    [
        ({"faults": FlippedUploads(liars=0)}, {"faults.liars": [[0, 1], [0, 2]]}, "faults.liars"),
        ({"faults": [FlippedUploads(liars=share) for share in (0.0, 0.25)]}, {}, "faults.liars"),
        ({"data": [dataclasses.replace(SMALL, nonzeros=count) for count in (2, 3)]}, {}, "data.nonzeros"),
        ({"data": [dataclasses.replace(SMALL, nonzeros=count) for count in (2, 3)]}, {}, "data"),
    ],
)
def test_a_condition_varies_by_the_values_of_the_runs(arguments, axes, condition, monkeypatch):
    """Axes may be lists, or fields of objects of one class."""
    monkeypatch.setattr("fcorun.runs.sweep.run_sweep", lambda *_, **__: None)
    experiment = Experiment(**{"algorithm": FedDualAvg(), "data": SMALL, **arguments})
    assert len(experiment.sweep("sweep", axes=axes, conditions=[condition]).record_folders) == 2
    with pytest.raises(UserError, match="no axis"):
        experiment.sweep("sweep", axes=axes, conditions=["clients_per_round"])


def test_the_folder_of_a_sweep_stays_with_more_values_on_an_axis(monkeypatch):
    monkeypatch.setattr("fcorun.runs.sweep.run_sweep", lambda *_, **__: None)

    def folder_of(algorithm: Any = None, **axes: Any):
        return Experiment(algorithm=algorithm or FedDualAvg(), data=SMALL, style="paper").sweep(axes=axes).folder

    assert folder_of(seed=[0, 1]) == folder_of(seed=[0, 1, 2])
    rates: list[Any] = [FedDualAvg(client_lr=rate) for rate in (0.1, 0.2, 0.3)]
    assert folder_of(rates[:2]) == folder_of(rates)
    assert folder_of([FedDualAvg(), FedMiD()]) == folder_of([FedDualAvg(), FedMiD(), FedAvg()])
    others = [folder_of(seed=[0, 1]), folder_of(FedMiD(), seed=[0, 1]), folder_of(rounds=[5, 6]), folder_of(rates)]
    assert len(set(others)) == 4


def test_rows_of_one_name_are_not_swept_together(monkeypatch):
    """Records name the rows of a program alone, so that tables would mix up the runs on both."""
    x, y, clients = draw_rows()
    monkeypatch.setattr("fcorun.runs.sweep.run_sweep", lambda *_, **__: None)
    first, second, named = (from_arrays(x, y + 5 * i, clients, name=f"rows{i // 2}") for i in range(3))
    with pytest.raises(UserError, match="several data sets named 'rows0': give each a name of its own"):
        Experiment(algorithm=FedDualAvg(), data=[first, second]).sweep("sweep")
    other_options = dataclasses.replace(second, validation=0.5)  # a column of tables
    sweep = Experiment(algorithm=FedDualAvg(), data=[first, named, other_options]).sweep("sweep")
    assert len(sweep.record_folders) == 3


def test_a_warning_is_shown_once():
    watcher = WarningWatcher()
    with pytest.warns(fcorun.ExperimentWarning, match="^a gap$"):
        watcher.warn(["a gap", ""])
    with pytest.warns(fcorun.ExperimentWarning, match="another") as shown:
        watcher.warn(["a gap", "another one"])
    assert len(shown) == 1


@pytest.mark.slow
def test_a_selection_shows_a_warning_on_its_data_once():
    x, y, clients = draw_rows()
    frame = pd.DataFrame(x, columns=list("abc")).assign(y=y, clinic=clients, d=1.0)
    data = from_frame(frame, "y", client="clinic")
    experiment = Experiment(algorithm=FedDualAvg(), data=data, regularizer=L1(0.1), rounds=2)
    for study in (experiment.select, experiment.stability):
        options: Any = {"folds": 2} if study == experiment.select else {"subsamples": 2, "refit": True}
        with pytest.warns(fcorun.ExperimentWarning) as shown:
            study(study.__name__, points=3, **options)
        sentences = [str(warning.message) for warning in shown]
        assert sum("one value in all training rows" in sentence for sentence in sentences) == 1


@pytest.mark.slow
def test_a_selection_and_its_refit():
    x, y, clients = draw_rows()
    experiment = Experiment(algorithm=fcorun.Centralized(), data=from_arrays(x, y, clients))
    with pytest.warns(fcorun.ExperimentWarning):
        selection = experiment.select("selection", points=3, folds=2)
    assert selection.record is not None
    assert selection.record.status["status"] == "done"
    assert repr(selection) == "Selection('selection')"
    strength = selection.path.values[selection.choice.chosen_index]
    assert selection.record.config["reg"]["strength"] == strength


def test_refusals():
    x, y, clients = draw_rows()

    misspelled: Any = {"standardise": "pooled"}
    only: Any = {"only": ["x1"]}

    def make(**changes):
        return Experiment(**{"algorithm": FedDualAvg(), "data": SMALL, **changes})

    cases = {
        "clients has 59 rows and y has 60": lambda: from_arrays(x, y, clients[:-1]),
        "client of row 3 is missing": lambda: from_arrays(x, y, np.array(["a", "b", None, *clients[3:]], object)),
        "unknown option 'standardise'": lambda: from_arrays(x, y, clients, **misspelled),
        r"X\[0, 1\] is nan": lambda: from_arrays(np.where(np.eye(60, 3, 1), np.nan, x), y, clients),
        "X has shape": lambda: from_arrays(x[:, 0], y, clients),
        "the frame has no such column": lambda: from_frame(pd.DataFrame(x), target="y"),
        "give it with its target to from_frame": lambda: from_arrays(pd.DataFrame(x), y),
        "divides rows that have no clients": lambda: from_arrays(x, y, clients, n_clients=2),
        "must be positive": lambda: make(algorithm=FedDualAvg(client_lr=-1)).prepared,
        "algorithm is of type int, and no Algorithm or Baseline": lambda: make(algorithm=3).prepared,
        "data is of type DataFrame, and no Dataset: from_frame makes one": lambda: make(data=pd.DataFrame()).prepared,
        "algorithm is None, and no": lambda: make(algorithm=None).prepared,
        "regularizer is the class L1": lambda: make(regularizer=L1).prepared,
        "relative sets the strength": lambda: make(regularizer=L1(0.1, relative=0.1)).prepared,
        "unknown option 'only'": lambda: from_arrays(x, y, clients, **only),
        "cannot be in a folder's name": lambda: from_arrays(x, y, clients, name="../up"),
        "text that looks like numbers": lambda: from_arrays(x, y.round(2).astype(str), clients),
        "one name twice": lambda: from_frame(pd.DataFrame(x, columns=["a", "a", "y"]), "y"),
        "logistic is for binary": lambda: load_data(make(objective=Logistic()).prepared),
    }
    for message, call in cases.items():
        with pytest.raises(UserError, match=message):
            call()
    data = from_arrays(x, y, clients)
    x[0, 0] += 1
    with pytest.raises(UserError, match="have changed since"):
        Experiment(algorithm=FedDualAvg(), data=data).run("changed")
