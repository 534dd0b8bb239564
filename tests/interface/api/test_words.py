"""Messages for a Python program name its arguments and objects."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fcorun
from fcorun import L1, Experiment, FedDualAvg, Lasso, from_arrays, from_frame
from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError, word, words_of, words_of_command
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.objects import find_choice, find_expression
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.api.python_words import PythonNames

OBJECTS, ARRAYS, FRAME = PythonNames(), PythonNames("arrays"), PythonNames("frame")
CONFIGURATION = PythonNames(has_sections=True)
SMALL = Lasso(clients=10, samples=8, features=6, nonzeros=2, validation_samples=2)


@pytest.mark.parametrize(
    ("names", "sentence", "worded"),
    [
        (OBJECTS, "`algo.client_lr=-1.0` must be positive", "algorithm.client_lr=-1.0 must be positive"),
        (OBJECTS, "`reg.factors` leaves nothing: give `reg=none` instead",
         "regularizer.factors leaves nothing: give regularizer=NoRegularizer() instead"),
        (OBJECTS, "choose `reg=nonneg, l1_nonneg or simplex`",
         "choose regularizer=Nonneg(), L1Nonneg() or Simplex()"),
        (OBJECTS, "`algo=fedyogi`, `data=lasso`", 'algorithm=FedOpt(optimizer="yogi"), data=Lasso()'),
        (OBJECTS, "`out=my runs` holds another run; choose another folder, or `force=true` to replace it",
         'folder="my runs" holds another run; choose another folder, or force=True to replace it'),
        (OBJECTS, "give `local_epochs=null local_steps=5`", "give local_epochs=None, local_steps=5"),
        (OBJECTS, "give `stop={change:1e-5}`, or `null`", 'give stop={"change": 1e-5}, or None'),
        (OBJECTS, "`stop.val_loss` is not measured", 'stop["val_loss"] is not measured'),
        (OBJECTS, "`reg.per_client.strength` has 2 values", 'regularizer.per_client["strength"] has 2 values'),
        (OBJECTS, "`'reg.factors={ward:0}'` is of all levels", 'regularizer.factors={"ward": 0} is of all levels'),
        (OBJECTS, "choose an `algo` that has: `fcorun list algo` shows which have",
         "choose an algorithm that has: the command fcorun list algo shows which have"),
        (OBJECTS, "`data.standardize=pooled` of a.csv", 'data.standardize="pooled" of a.csv'),
        (OBJECTS, "give the folder, as `trust=DIR or --trust DIR`", "give the folder, as trust=DIR"),
        (OBJECTS, "`FedAvg.client_lr=a` must be a number", 'FedAvg.client_lr="a" must be a number'),
        (ARRAYS, "`data.path=four clinics`: column 'x' of `data=four clinics`",
         'name="four clinics": column \'x\' of data "four clinics"'),
        (ARRAYS, "`data.weight=weight`, `data.clients=9` and `data.test`", "sample_weight, n_clients=9 and test"),
        (OBJECTS, "`rule=1se` is not a choice: `points=1e-5`", 'rule="1se" is not a choice: points=1e-5'),
        (ARRAYS, "draw from data.key", "draw from data.key"),
        (OBJECTS, "algo.py line 6, reg.py, stop.csv, data.json", "algo.py line 6, reg.py, stop.csv, data.json"),
        (FRAME, "`data.weight=w`: give `data.ignore=[age,crp]`", 'weight="w": give ignore=["age", "crp"]'),
        (CONFIGURATION, "`algo.client_lr=null`, `reg=none`, `reg`", "algo.client_lr=None, reg=none, reg"),
    ],
)  # fmt: skip
def test_a_door_words_options(names, sentence, worded):
    assert word(sentence) == sentence.replace("`", "")
    with words_of_command():
        assert word(sentence) == sentence.replace("`", "")
    with words_of(names.word):
        assert word(sentence) == str(UserError(sentence)) == worded
        assert word(worded) == worded  # a sentence that is worded already


def test_an_expression_makes_the_choice():
    for section in SECTIONS:
        for choice in find_choices(section).keys() - {"by_task", "softmax"}:
            expression = find_expression(section, choice)
            assert expression is not None
            plugin = eval(f"fcorun.{expression.replace('...', repr('a path'))}", {"fcorun": fcorun})
            assert find_choice(section, plugin) == choice
    assert find_expression("algo", "no_such_choice") is None


def test_the_guide_shows_the_choices_with_other_names():
    rows = []
    for section in SECTIONS:
        for choice in find_choices(section):
            expression = find_expression(section, choice)
            if expression and expression.lower() != choice.replace("_", "") + "()":
                rows.append(f"| `{section}={choice}` | `{expression}` |")
    guide = Path(__file__).resolve().parents[3] / "docs" / "guide" / "python.md"
    table = re.findall(r"^\| `\w+=.*", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert table == rows


@pytest.mark.slow
def test_errors_name_arguments_wherever_they_leave(tmp_path):
    rng = np.random.default_rng(0)
    x, clients = rng.standard_normal((60, 3)), np.repeat(["a", "b", "c"], 20)
    frame = pd.DataFrame(x, columns=["p", "q", "r"]).assign(y=x[:, 0], site=clients)
    gaps = from_frame(frame.assign(q=frame["q"].where(frame["q"] > 0)), "y", "site", name="masses")
    experiment = Experiment(algorithm=FedDualAvg(), data=SMALL, rounds=2)
    record = experiment.run("run", pictures=False)
    config = compose(["data=lasso_16", "rounds=2"])
    cases = {
        r'name="masses": column \'q\' is missing .* give missing="mean"': lambda: Experiment(
            algorithm=FedDualAvg(), data=gaps
        ).run("gaps"),
        'folder="run" holds another run .*force=True': lambda: Experiment(
            algorithm=FedDualAvg(), data=SMALL, rounds=3
        ).run("run"),
        'folder="run" holds another run .*algo=feddualavg .*force=True': lambda: fcorun.run(config, "run"),
        "set one of them to None": lambda: Experiment(
            algorithm=FedDualAvg(), data=SMALL, local_epochs=2, local_steps=2
        ).identity,
        r"algorithm=FedAvg\(\) ignores": lambda: Experiment(algorithm=fcorun.FedAvg(), data=SMALL).select("s"),
        'by="sites" is not a choice': lambda: experiment.stability("s", by="sites"),  # pyright: ignore[reportArgumentType]
        "such as algorithm.client_lr=0.001": lambda: Experiment(
            algorithm=FedDualAvg(client_lr=[1e-3, 1e-2]), data=SMALL  # pyright: ignore[reportArgumentType]
        ).run("s"),
        'standardize="row" is not a choice': lambda: from_arrays(x, x[:, 0], clients, standardize="row"),  # pyright: ignore[reportArgumentType]
        'x="miles" was not counted': lambda: record.plot("miles"),  # pyright: ignore[reportArgumentType]
        "algorithm.client_lr=-1": lambda: fcorun.FederatedRegressor(FedDualAvg(client_lr=-1)).fit(x, x[:, 0]),
    }  # fmt: skip
    for message, call in cases.items():
        with pytest.raises(UserError, match=message):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["arrays", "frame", "file"])
def test_a_target_of_few_whole_numbers_warns(source):
    rng = np.random.default_rng(0)
    x, y, clients = rng.standard_normal((60, 2)), np.arange(60) % 3, np.repeat(["a", "b"], 30)
    frame = pd.DataFrame(x, columns=["p", "q"]).assign(y=y, site=clients)
    frame.to_csv("rows.csv", index=False)
    makers = {
        "arrays": lambda: from_arrays(x, y, clients),
        "frame": lambda: from_frame(frame, "y", "site"),
        "file": lambda: fcorun.Table(path="rows.csv", target="y", client="site"),
    }
    experiment = Experiment(algorithm=fcorun.Centralized(), data=makers[source]())
    sentence = r'3 values only, all whole numbers \(0, 1, 2\).* give (data\.)?task="multiclass"'
    with pytest.warns(fcorun.ExperimentWarning, match=sentence):
        record = experiment.run("numbers", pictures=False)
    assert re.search(sentence, record.warnings[0])


@pytest.mark.slow
@pytest.mark.parametrize("named", [{"task": "regression"}, {"objective": fcorun.LeastSquares()}])
def test_a_named_task_does_not_warn(named):
    x, y = np.random.default_rng(0).standard_normal((60, 2)), np.arange(60) % 3
    data = {key: value for key, value in named.items() if key == "task"}
    objective = {key: value for key, value in named.items() if key == "objective"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiment = Experiment(algorithm=fcorun.Centralized(), data=from_arrays(x, y, **data), **objective)
        record = experiment.run("named", pictures=False)
        guessed = Experiment(algorithm=fcorun.Centralized(), data=from_arrays(x, y))
        with pytest.warns(fcorun.ExperimentWarning, match="3 values only"):
            guessed.run("guessed", pictures=False)
        again = experiment.run("guessed", pictures=False)  # the record of the guess
    assert not record.warnings
    assert again.warnings


@pytest.mark.slow
def test_warnings_of_a_study_name_arguments():
    x = np.random.default_rng(0).standard_normal((60, 3))
    data = from_arrays(x, np.where(x[:, 0] > 0, "yes", "no"), np.repeat(["a", "b", "c"], 20))
    experiment = Experiment(algorithm=FedDualAvg(), data=data, regularizer=L1(), rounds=2)
    with pytest.warns(fcorun.ExperimentWarning) as caught:
        experiment.stability("study", subsamples=4, points=2)
    assert str(caught[0].message).startswith('name="arrays": of the classes')
    assert 'positive="no" makes' in str(caught[0].message)
