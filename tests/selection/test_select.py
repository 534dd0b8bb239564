"""fcorun select: against scikit-learn, and what it leaves behind."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from drawn import printed
from helpers import composed, fails, given, matrices_only, names, plugin_class, small_for, traits_of

from fcorun import Record, load_records, run
from fcorun.cli.commands import main
from fcorun.datasets.base import stream
from fcorun.datasets.table import Table
from fcorun.experiment.build import load
from fcorun.experiment.prepare import prepare
from fcorun.experiment.verdict import Verdict
from fcorun.records.formats import read_rows
from fcorun.reports.pictures.style import STYLES
from fcorun.selection import picture
from fcorun.selection.choice import choose, of_unfinished
from fcorun.selection.folds import folds_of, halves
from fcorun.selection.report import tell_selection
from fcorun.selection.select import plan, select
from fcorun.selection.selected import Options
from fcorun.selection.stability.asked import Options as Halves
from fcorun.selection.stability.select import plan as plan_stable

sklearn_linear: Any = sklearn.linear_model  # whose types are not known well
RNG = np.random.default_rng(5)


OWNER = np.repeat(["a", "b", "c", "d"], [12, 20, 15, 13])
X = RNG.standard_normal((60, 8)) * [1, 2, 1, 1, 0.5, 1, 1, 1]
SCORE = X @ [1.5, -0.5, 0, 0, 1.0, 0, 0, 0] + 0.7 + 0.7 * RNG.standard_normal(60)
NAMES = ["age", "dose", *(f"x{j}" for j in range(6))]


def table(task="regression"):
    frame = pd.DataFrame(X, columns=NAMES).assign(
        site=OWNER, y=SCORE if task == "regression" else (SCORE > 0.5).astype(int)
    )
    frame.to_csv("rows.csv", index=False)


def config(*overrides, task="regression"):
    table(task)
    own = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", f"data.task={task}")
    return composed(*own, "data.validation=0", *overrides)


def fold_of(config, options):
    data = load(prepare(config))
    fold = folds_of(data, options.folds, options.by, stream(config["seed"], "select", "folds"))
    return data, [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(options.folds)]


def scores(found):
    rows: Any = pd.read_csv(found.folder / "selection.csv")
    return (
        rows[rows["fold"] != "all"]
        .pivot(index="strength", columns="fold", values=found.metric)
        .sort_index(ascending=False)
    )


@pytest.mark.parametrize("by", ["rows", "clients"])
def test_as_lasso_cv(by):
    settings, options = config("algo=centralized", "algo.tolerance=1e-12"), Options(folds=4, points=12, by=by)
    found = select(settings, options, "out")
    data, splits = fold_of(settings, options)
    alphas = found.path.values / 2
    theirs = sklearn_linear.LassoCV(alphas=alphas, cv=splits, tol=1e-12, max_iter=100_000).fit(data.x, data.y)
    np.testing.assert_allclose(scores(found).to_numpy(), theirs.mse_path_, rtol=1e-5)
    assert found.path.values[found.choice.best] == pytest.approx(2 * theirs.alpha_)
    np.testing.assert_allclose(given(found.record).solution["weights"], theirs.coef_, atol=1e-5)
    assert given(found.record).solution["bias"] == pytest.approx(theirs.intercept_, abs=1e-5)
    x, y = data.x - data.x.mean(axis=0), data.y - data.y.mean()
    path = sklearn_linear.lasso_path(x, y, alphas=alphas, tol=1e-12)[1]
    np.testing.assert_allclose(found.fitted["all"].solution["weights"], path.T, atol=1e-5)
    assert alphas[0] == pytest.approx(np.abs(x.T @ y).max() / 60)


@pytest.mark.parametrize(("metric", "scoring"), [("val_loss", "neg_log_loss"), ("val_accuracy", "accuracy")])
def test_as_logistic_regression_cv(metric, scoring):
    settings = config("algo=centralized", "algo.tolerance=1e-12", f"metric={metric}", task="binary")
    options = Options(folds=3, points=6, range=[0.01, 0.1])
    found = select(settings, options, "out")
    data, splits = fold_of(settings, options)
    for k, (train, test) in enumerate(splits):  # C is of a sum of losses, so that it goes with the rows of the fold
        for p, strength in enumerate(found.path.values):
            with_c = sklearn_linear.LogisticRegressionCV(
                Cs=[1 / (strength * len(train))], cv=[(train, test)], solver="saga", l1_ratios=(1.0,), tol=1e-10,
                max_iter=200_000, scoring=scoring, refit=False, use_legacy_attributes=True,
            )  # fmt: skip
            theirs = with_c.fit(data.x, data.y).scores_[1].item()
            ours = scores(found).iloc[p, k]
            assert ours == pytest.approx(-theirs if metric == "val_loss" else theirs, abs=1e-5)


@pytest.mark.drawn
def test_what_it_leaves(monkeypatch):
    settings = config("algo=fedmid", "rounds=30", "data.standardize=pooled")
    told = []
    found = select(settings, Options(folds=3, points=5), "out", tell=told.append)
    there = {
        "selection.csv",
        "curve.csv",
        "path.csv",
        "selection.png",
        "selection.pdf",
        "selection.json",
        "fits",
        "refit",
    }
    assert {path.name for path in Path("out").iterdir()} == there
    assert printed("out/selection.pdf") == pytest.approx(STYLES["paper"].page, rel=0.02)
    assert len(pd.read_csv("out/selection.csv")) == 4 * 5
    path: Any = pd.read_csv("out/path.csv")
    assert set(path["feature"].dropna()) <= set(NAMES)
    assert list(path["parameter"].tail(1)) == ["bias"]
    curve: Any = pd.read_csv("out/curve.csv")
    assert curve["chosen"].sum() == 1
    assert curve["nonzeros"].iloc[0] == 0
    kept = json.loads(Path("out/selection.json").read_text())
    assert (kept["status"], kept["cost"]["runs"]) == ("done", 20)
    assert kept["cost"]["rounds"] == 20 * 30
    assert kept["rows"] == {"training": 60, "validation": 0, "test": 0}
    # the refit is the ordinary run
    value = float(found.path.values[found.choice.chosen])
    assert kept["chosen"] == value
    ordinary = run(settings | {"reg": settings["reg"] | {"strength": value}}, "ordinary")
    assert given(found.record).status["identity"] == ordinary.status["identity"]
    assert kept["cost"]["bytes_up"] == 20 * read_rows(Path("ordinary"))[-1]["bytes_up"]

    # again: nothing is computed; another rule takes another strength
    monkeypatch.setattr("fcorun.selection.fitting.Fitter.fit", lambda *_: pytest.fail("computed again"))
    again = select(settings | {"style": "slides"}, Options(folds=3, points=5, rule="one_se"), "out")
    assert printed("out/selection.pdf") == pytest.approx(STYLES["slides"].page, rel=0.02)
    assert again.choice.mean.tolist() == found.choice.mean.tolist()
    assert again.choice.chosen == again.choice.simplest
    with fails("out=out", "another study"):
        select(settings, Options(folds=3, points=6), "out")


def test_what_was_interrupted_goes_on():
    settings, options = config("algo=fedmid", "rounds=4"), Options(folds=2, points=2)
    whole = select(settings, options, "whole")

    def stops(line):
        if line.startswith("2 of 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(settings, options, "broken", tell=stops)
    assert not Path("broken/refit").exists()
    told = []
    found = select(settings, options, "broken", tell=told.append)
    assert any("fits are there: reused" in line for line in told)
    assert Path("broken/selection.csv").read_text() == Path("whole/selection.csv").read_text()
    assert found.choice.chosen == whole.choice.chosen


def test_radii_grow():
    found = select(config("algo=centralized", "reg=l1_ball"), Options(folds=2, points=4), "out")
    assert found.path.number == "radius"
    assert (np.diff(found.path.values) > 0).all()
    assert "without constraint" in found.path.said
    data = load(prepare(config("algo=centralized", "reg=l1_ball")))
    free = np.linalg.lstsq(np.c_[data.x, np.ones(60)], data.y)[0][:-1]
    assert found.path.values[-1] == pytest.approx(np.abs(free).sum(), rel=0.01)
    sizes = np.abs(found.fitted["all"].solution["weights"]).sum(axis=1)
    np.testing.assert_allclose(sizes[:-1], found.path.values[:-1], rtol=1e-4)


def test_what_is_amiss_is_said():
    short = config("algo=fedmid", "rounds=20", "eval_every=1", "algo.client_lr=1e-3", "algo.server_lr=1")
    found = select(short, Options(folds=2, points=3), "short")
    told = "\n".join(tell_selection(found))
    assert "the choice is of unfinished runs: " in told
    assert "of the refit, not finished: over the last 2 evaluations" in told
    assert found.refit[0] in json.loads(Path("short/selection.json").read_text())["remarks"]
    said = " ".join(found.remarks)
    assert "falling: " in said
    assert "the minimum lies at the end of the path" in said
    wild = config("algo=fedmid", "rounds=300", "algo.client_lr=10", "algo.server_lr=1")
    with fails("diverged"):
        select(wild, Options(folds=2, points=3), "wild")
    noise = config("algo=centralized")
    found = select(noise, Options(folds=3, points=3, range=[50, 100]), "noise")
    assert any("beginning of the path" in line for line in found.remarks)


def test_the_rows_are_counted():
    table()
    of = ("algo=fedmid", "data=table", "data.path=rows.csv", "data.target=y", "data.client=site")
    default = "of 49 training rows; 11 rows (data.validation=0.2 by default) are left aside and score the refit"
    for more, words in (
        ((), default),
        (("data.validation=[d]",), "of 47 training rows; 13 rows (data.validation=[d]) are left aside"),
        (("data.validation=0", "data.test=[d]"), "of 47 training rows; 13 rows (data.test=[d]) are left aside"),
        (("data.validation=0",), "5 folds by rows of 60 training rows"),
    ):
        (said,) = [line for line in plan(composed(*of, *more), Options(), "out").said if "training rows" in line]
        assert words in said
    assert said.endswith(words)
    assert "are left aside and take no part" in plan_stable(composed(*of), Halves(), "out").said[0]


def test_a_refit_above_the_optimum_makes_the_choice_one_of_unfinished_runs():
    experiment = prepare(config("algo=fedmid"))
    data, certificate = load(experiment), {"kind": "gap", "value": 1.0, "above": 0.12, "left": 0.3, "sure": True}
    certificate |= {"certified": True, "near": False}
    (said,) = of_unfinished(experiment, data, {"certificate": certificate})
    assert "the choice is of unfinished runs: " in said
    own = Verdict(**certificate).sentence(experiment, data)
    assert said.endswith(f"of the refit, {own}")
    assert "12 % above the optimum: " in own
    assert of_unfinished(experiment, data, {"certificate": certificate | {"near": True}}) == []


def test_the_choice_by_hand():
    found = choose(np.array([[3.0, 1.2, 1.0, 2.0], [3.0, 1.2, 1.4, 2.0]]), "one_se", higher=False)
    assert (found.best, found.simplest, found.chosen) == (1, 1, 1)  # the simplest of those that are tied
    found = choose(np.array([[3.0, 1.1, 0.8, 2.0], [3.0, 1.3, 1.4, np.nan]]), "min", higher=False)
    assert (found.best, found.simplest, found.chosen) == (2, 1, 2)
    assert found.error[2] == pytest.approx(0.3)
    assert choose(np.array([[0.1, 0.9], [0.1, 0.9]]), "min", higher=True).best == 1


def test_folds_and_halves():
    data = load(prepare(config("algo=fedmid", task="binary")))
    rng = np.random.default_rng(0)
    fold = folds_of(data, 5, "rows", rng)
    assert np.ptp(np.bincount(fold)) == 0
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        assert np.ptp(np.bincount(fold[start:stop], minlength=5)) <= 1
    by_class = np.array([np.bincount(fold[data.y == c], minlength=5) for c in (0, 1)])
    assert np.ptp(by_class, axis=1).max() <= 4
    whole = folds_of(data, 3, "clients", rng)
    assert all(len(set(whole[a:b])) == 1 for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True))
    for first, second in zip(*[iter(halves(data, 20, "rows", rng))] * 2, strict=True):
        assert not (first & second).any()
        for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
            assert first[start:stop].sum() == second[start:stop].sum() == (stop - start) // 2


@pytest.mark.parametrize("algo", ["local", "ditto"])
def test_own_models_are_judged_by_their_own_rows(algo):
    settings = config(f"algo={algo}", "rounds=10")
    if algo == "ditto":
        with fails("algo=ditto", "leaves psi out"):
            select(settings, Options(folds=2, points=3), "out")
        return
    found = select(settings, Options(folds=2, points=3), "out")
    assert found.metric == "personal_val_loss"
    assert Record(Path("out/refit")).status["status"] == "done"


def test_classes_that_a_fold_would_lack():
    settings = config("algo=fedmid", task="binary")
    frame = pd.read_csv("rows.csv")
    frame["y"] = np.where(frame["site"] == "b", "sick", "well")
    frame.to_csv("rows.csv", index=False)
    with fails("class 'sick'", "fold"):
        select(settings, Options(folds=4, by="clients"), "out")
    assert not Path("out").exists()


def test_folds_by_clients_are_no_more_than_there_are():
    assert plan(config("algo=fedmid"), Options(by="clients"), "out").options.folds == 4
    assert plan(config("algo=fedmid"), Options(), "out").options.folds == 5
    with fails("folds=5 is more than the 4 clients", "at most 4"):
        plan(config("algo=fedmid"), Options(by="clients", folds=5), "out")
    with fails("by=clients", "one only: give by=rows"):
        Options(by="clients").settled(1)


def test_clients_that_a_fold_holds_out_are_named():
    settings = config("algo=centralized")
    found = select(settings, Options(folds=3, points=2, by="clients"), "out")
    held = json.loads(Path("out/selection.json").read_text())["held_out"]
    assert sorted(name for names in held.values() for name in names) == ["a", "b", "c", "d"]
    _, splits = fold_of(settings, Options(folds=3, by="clients"))
    for k, (_, test) in enumerate(splits):
        assert held[f"fold{k + 1}"] == sorted(set(OWNER[test]))
    said = "\n".join(tell_selection(found))
    assert f"held out: fold1 {', '.join(held['fold1'])}; fold2 " in said
    assert "3 folds, each of which counts alike" in said


def test_a_metric_is_called_without_its_part():
    settings = config("algo=fedmid", task="binary")
    assert plan(settings | {"metric": "accuracy"}, Options(), "out").metric == "val_accuracy"
    with fails("metric=acuracy is not a choice", "'accuracy'? (valid: accuracy, loss)"):
        plan(settings | {"metric": "acuracy"}, Options(), "out")
    with fails("metric=test_loss is refused"):
        plan(settings | {"metric": "test_loss"}, Options(), "out")


def test_a_path_may_begin_with_features_that_are_free():
    (said,) = plan(config("algo=fedmid", "reg.factors={age:0}"), Options(), "out").said
    assert "the smallest strength at which all penalised coefficients are 0" in said


def test_numbers_of_each_client_are_not_chosen():
    with fails("reg.per_client.strength"):
        select(config("algo=fedmid", "reg.per_client={strength:[1,1,1,1]}"), Options(), "out")


def test_three_classes(monkeypatch):
    settings = config("algo=centralized", "data.task=multiclass")
    frame = pd.read_csv("rows.csv")
    frame["y"] = np.array(["low", "middle", "high"])[np.digitize(SCORE, [-0.5, 1.5])]
    frame.to_csv("rows.csv", index=False)
    found = select(settings | {"metric": "val_accuracy"}, Options(folds=3, points=3), "out")
    path: Any = pd.read_csv("out/path.csv")
    assert set(path["class"]) == {"low", "middle", "high"}
    assert found.choice.higher
    assert "maximum: strength=" in "\n".join(tell_selection(found))
    figures: list[Any] = []
    monkeypatch.setattr(picture, "content", lambda figure, format: figures.append(figure) or b"")
    picture.draw(found, None)
    (ax,) = figures[0].axes
    assert {text.get_text() for text in ax.texts} & {"max", "max = 1 SE"}
    error_bars, marks = ax.collections[0], [line for line in ax.lines if line.get_alpha()]
    assert marks
    assert all(line.get_zorder() < error_bars.get_zorder() for line in marks)
    title = figures[0].get_suptitle().replace("\n", " ")
    assert title == "Centralized on rows, l1 penalty: 3-fold cross-validation by rows"
    column = f"strength={found.path.values[2]:.6g}"
    age = path[(path["feature"] == "age") & (path["class"] == "high")][column]
    weights = found.fitted["all"].solution["weights"][2]
    assert float(age.iloc[0]) == weights[NAMES.index("age"), ["high", "low", "middle"].index("high")]


# Every algorithm that applies psi, every penalty with a strength and every ball goes through a small path.
ALGORITHMS = [name for name in names("algo") if traits_of(name).sides or "central" in name or name == "one_client"]
PENALTIES = [name for name in names("reg") if hasattr(plugin_class("reg", name), "strength_max") or "ball" in name]


@pytest.fixture
def no_refit(monkeypatch):
    """The refit, an ordinary run, is only prepared."""

    def prepared(config, *_):
        prepare(config)
        return SimpleNamespace(status={})

    monkeypatch.setattr("fcorun.selection.select.run", prepared)


@pytest.mark.slow
@pytest.mark.usefixtures("no_refit")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_each_algorithm(algo):
    found = select(small_for(algo), Options(folds=2, points=2), "out")
    assert np.isfinite(found.choice.mean).all()
    assert found.cost["runs"] == 6


@pytest.mark.slow
@pytest.mark.usefixtures("no_refit")
@pytest.mark.parametrize("reg", PENALTIES)
def test_each_penalty(reg):
    matrix = ("data=lowrank", "data.clients=4", "data.samples=8", "data.rows=4", "data.columns=3", "data.rank=1")
    more = ("algo=fedmid", "clients_per_round=null", "batch_size=5", "rounds=4", "eval_every=2")
    settings = composed(*matrix, *more, f"reg={reg}") if matrices_only(reg) else small_for("fedmid", f"reg={reg}")
    found = select(settings, Options(folds=2, points=3), "out")
    assert np.isfinite(found.choice.mean).all()
    assert np.ptp(found.choice.mean) > 0


def command(capsys, *arguments) -> tuple[int, str, str]:
    """The command in this process: its exit code, and what it printed."""
    code = main(["select", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_command(capsys, monkeypatch):
    table()
    monkeypatch.setattr(Table, "within", "rows follow each other")
    asked = ("algo=fedmid", "data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "rounds=5")
    asked += ("folds=2", "points=3", "metric=loss", "rule=one_se")
    code, out, err = command(capsys, *asked, "dry_run=true")
    assert (code, err) == (0, "")
    assert "rows follow each other" in out
    assert "0 of 3 fits are there, 3 to run" in out
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]
    code, out, err = command(capsys, *asked)
    assert (code, err) == (0, "")
    assert "* one standard error: strength=" in out
    assert "the choice cost 9 runs, 45 rounds" in out
    assert "fewer than 10 evaluations" in out
    (folder,) = Path("outputs/table").glob("select-fedmid-*")
    assert load_records("outputs")[0].folder == folder / "refit"
    assert "3 of 3 fits are there: reused" in command(capsys, *asked)[1]
    assert "reused" not in command(capsys, *asked, "force=true")[1]
    assert command(capsys, *asked, "verbose=false")[1] == ""
    assert "rows follow each other" not in command(capsys, *asked, "by=clients", "dry_run=true")[1]
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    code, _, err = command(capsys, *asked, "out=taken")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "notes.txt" in err
    assert [path.name for path in Path("taken").iterdir()] == ["notes.txt"]
