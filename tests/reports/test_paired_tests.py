"""Methods compared seed by seed."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_records import fake_config, fake_record, fake_rows
from helpers import not_none

from fcorun import load_records
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.reports.paired_tests import compare_pairs, sign_flip_test, smallest_p_value
from fcorun.reports.pictures.best_curves import collect_curves
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.run_table import describe_band


def seeded(algo, levels, client_lr=0.1, root="s", **more):
    """Write records of an algorithm, a seed for each level of its objective."""
    for seed, level in enumerate(levels):
        settings = fake_config(algo, seed=seed, algo__client_lr=client_lr, **more)
        fake_record(f"{root}/{algo}-{client_lr}-{seed}", settings, fake_rows(level))


def pairs(metric="objective"):
    return compare_pairs(build_table(load_records("s")), metric)


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 9, 14])
def test_all_signs_are_tried(n):
    rng = np.random.default_rng(n)
    signs = np.array(list(product([-1, 1], repeat=n)))
    for shift, digits in product((0.0, 0.5, 2.0), (1, 16)):  # with and without sums that are equal
        differences = (rng.standard_normal(n) + shift).round(digits)
        extreme = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9
        assert sign_flip_test(differences) == pytest.approx(extreme.mean(), rel=1e-12)
        assert sign_flip_test(1e-9 * differences) == sign_flip_test(differences)


def test_p_values_of_known_differences():
    assert sign_flip_test(np.full(6, 0.1)) == 2 / 2**6  # all on one side: the least that six can give
    assert sign_flip_test(np.zeros(7)) == 1
    assert sign_flip_test(np.array([0.1, 0.2, 0.3, -0.1, -0.2, -0.3])) == 1


@pytest.mark.slow
def test_many_seeds_are_sampled():
    differences = np.random.default_rng(0).standard_normal(24) + 0.4
    signs = np.random.default_rng(1).choice([-1, 1], (200_000, 24))
    extreme = np.abs(signs @ differences) >= abs(differences.sum())
    assert sign_flip_test(differences) == pytest.approx(extreme.mean(), abs=0.01)
    assert sign_flip_test(differences) == sign_flip_test(differences)  # seeded
    assert sign_flip_test(np.ones(24)) == 2 / (2**16 + 1)  # never none


def test_cohorts_on_the_same_data_are_no_repetitions_of_the_data(capsys):
    """Three seeds of cohorts on each of two data sets are two pairs of means, which no test can tell apart."""
    for algo, shift in (("fedmid", 1.0), ("feddualavg", 0.0)):
        for seed, data_seed in product(range(3), range(2)):
            settings = fake_config(algo, seed=seed, data__seed=data_seed)
            fake_record(f"s/{algo}-{seed}-{data_seed}", settings, fake_rows(shift + seed + 10 * data_seed))
    runs = build_table(load_records("s"))
    (pair,) = compare_pairs(runs, "train_loss")
    assert pair.p_value is None
    np.testing.assert_allclose(pair.differences, [-1, -1])
    points = runs.fold_seeds("train_loss").set_index("algo")
    assert points.loc["feddualavg", ["low", "metric", "high", "seeds", "done"]].tolist() == [1, 6, 11, 2, 6]
    assert describe_band([2], runs.seed_kind) == "range over 2 seeds of data, each the mean of 3 runs"
    assert main(["results", "s", "--paired", "--metric", "train_loss"]) == 0
    assert "\nseeds of data, each the mean of 3 runs\n" in capsys.readouterr().out
    view = ProblemView(runs, load_records("s"), "train_loss", curve_styles_of(runs))
    for curve in not_none(collect_curves(view)).curves:
        assert len(curve.runs) == 2


@pytest.mark.parametrize(("precision", "p_value"), [("float32", None), ("float64", 2 / 2**6)])
def test_gaps_below_the_rounding_of_the_objective_are_not_tested(precision, p_value, capsys):
    for algo, gap in (("newton", -6.3e-8), ("gram", 1.75e-7)):
        for seed in range(6):
            settings = fake_config(algo, seed=seed, precision=precision)
            rows = fake_rows(1 + seed, suboptimality=gap * (1 + 0.1 * seed))
            fake_record(f"s/{algo}-{seed}", settings, rows)
    (pair,) = pairs("suboptimality")
    assert pair.p_value == p_value
    assert main(["results", "s", "--paired", "--metric", "suboptimality"]) == 0
    out = capsys.readouterr().out
    is_rounding = precision == "float32"
    assert ("suboptimality below 6e-06 is rounding of the objective, which ranks nothing: " in out) == is_rounding
    assert ("no difference but rounding" in out) == is_rounding


def test_data_without_the_metric_are_compared_by_their_own(capsys):
    """Data without a known support have no support_f1, the default of the others. Means have parts, too."""
    for algo in ("fedmid", "feddualavg"):
        fake_record(f"s/{algo}-truth", fake_config(algo), fake_rows())
        rows = [{key: value for key, value in row.items() if key != "support_f1"} for row in fake_rows()]
        fake_record(f"s/{algo}-table", fake_config(algo, data__name="table"), rows)
    assert main(["results", "s", "--paired", "--out", "best.tex"]) == 0
    sentence = "table: support_f1 was not measured, so that nothing is compared there: metric=val_loss compares all"
    printed = capsys.readouterr().out
    latex = Path("best.tex").read_text()
    assert printed.index("lasso: by support_f1") < printed.index("difference of support_f1")
    assert printed.index("table: by val_loss") < printed.index("difference of val_loss")
    assert latex.count(r"\begin{tabular}") == 2
    assert latex.index("% lasso: by support_f1") < latex.index("% table: by val_loss")
    assert sentence not in printed + latex
    assert main(["results", "s", "--errors"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("lasso: by support_f1") < printed.index("best by the mean of support_f1")
    assert printed.index("table: by val_loss") < printed.index("best by the mean of val_loss")
    assert sentence not in printed
    assert main(["results", "s", "--paired", "--metric", "val_loss"]) == 0
    assert "was not measured" not in capsys.readouterr().out


def test_seeds_of_cohorts_alone_say_so(capsys):
    for algo in ("fedmid", "feddualavg"):
        seeded(algo, [1.0, 2.0])
    assert main(["results", "s", "--paired", "--metric", "objective"]) == 0
    assert "p is about other cohorts on the same data, not about other data" in capsys.readouterr().out


def test_best_points_are_compared_seed_by_seed():
    seeded("fedmid", [2.0, 2.2, 2.4, 2.6, 2.8, 3.0])
    seeded("fedmid", [9.0] * 6, client_lr=0.2)
    seeded("feddualavg", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    (pair,) = pairs()
    assert (pair.first, pair.second) == ("feddualavg", "fedmid")  # the better one first
    np.testing.assert_allclose(pair.differences, [-1.25 * (1 + 0.1 * k) for k in range(6)])
    assert pair.p_value == pair.adjusted_p_value == 2 / 2**6


def test_only_common_seeds_count_and_five_are_too_few():
    seeded("fedmid", [2.0] * 8)
    seeded("feddualavg", [1.0, 1.1, 1.2, 1.3, 1.4])
    (pair,) = pairs()
    assert len(pair.differences) == 5
    assert pair.p_value is None
    assert pair.adjusted_p_value is None


def test_seeds_that_change_nothing_are_no_test():
    seeded("fedmid", [2.0] * 8)
    seeded("feddualavg", [1.9] * 8)
    (pair,) = pairs()
    assert pair.are_constant
    assert pair.p_value is None


def test_the_p_of_several_pairs_is_of_all_of_them():
    seeded("fedavg", [3.0, 3.3, 3.6, 3.9, 4.2, 4.5])
    seeded("fedmid", [2.0, 2.1, 2.2, 2.3, 2.4, 2.5])
    seeded("feddualavg", [1.9, 2.2, 2.1, 2.2, 2.5, 2.4])
    first, *others = pairs()
    assert {first.first, first.second} == {"feddualavg", "fedmid"}
    assert [pair.p_value for pair in others] == [2 / 2**6] * 2
    assert [pair.adjusted_p_value for pair in others] == [pytest.approx(6 / 2**6)] * 2
    assert smallest_p_value([6, 6, 6]) == 6 / 2**6
    assert first.adjusted_p_value == first.p_value
    assert not_none(first.p_value) > 0.05


def test_data_sets_and_methods_without_points_are_in_no_pair():
    seeded("fedmid", [2.0, 2.1], data="lowrank")
    seeded("feddualavg", [1.0, 1.1])
    fake_record("s/bad", fake_config("fedavg", algo__client_lr=0.1), status="diverged")
    assert pairs() == []


def test_objectives_of_two_strengths_are_not_compared():
    for strength in (0.1, 0.2):
        seeded("fedmid", [2.0, 2.1], root=f"s/{strength}", reg__strength=strength)
    seeded("feddualavg", [1.0, 1.1], root="s/0.1")
    assert [(pair.problem, pair.first) for pair in pairs()] == [("lasso, reg.strength=0.1", "feddualavg")]


def test_runs_of_two_objectives_are_not_compared_by_a_loss():
    for name, level in (("huber", 1.0), ("least_squares", 2.0)):
        seeded("fedmid", [level, level + 0.1], root=f"s/{name}", objective={"name": name, "ridge": level})
    seeded("feddualavg", [1.5, 1.6], root="s/huber", objective={"name": "huber", "ridge": 1.0})
    assert [pair.problem for pair in pairs("val_loss")] == ["lasso, objective=huber"]
    assert [pair.problem for pair in pairs("support_f1")] == ["lasso"]


@pytest.mark.slow
def test_runs_of_different_length_have_a_warning(capsys):
    seeded("fedmid", [1.0] * 6, rounds=30)
    seeded("feddualavg", [2.0] * 6, rounds=300)
    fake_record("s/optimum", fake_config("centralized", rounds=7), fake_rows(0.5, rounds=700, silent=True))
    for data in ("a", "b"):  # of other data there is nothing to compare
        seeded("fedmid", [1.0], data=data, root=f"s/{data}", rounds=len(data) + ord(data))
    main(["results", "s", "--paired", "--out", "s.tex", "--metric", "objective"])
    warning = "runs of 30 and 300 rounds are compared"
    assert capsys.readouterr().out.count(warning) == 2  # below the table, and below the pairs
    assert f"% {warning}" in Path("s.tex").read_text().splitlines()
