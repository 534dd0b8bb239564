"""Conditions of a sweep: never chosen among, a row, a picture and a claim each."""

import json
import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun import load_records
from fcorun.base.records.sweep_settings import SweepSettings, load_settings, save_settings
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.reports.monte_carlo import estimate_methods, estimate_pairs
from fcorun.reports.page.build_page import collect_curves
from fcorun.reports.page.runs import describe_runs
from fcorun.reports.paired_tests import compare_pairs
from fcorun.reports.pictures.best_curves import collect_curves as collect_best_curves
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of, draw_sweep, group_by_problem
from fcorun.reports.run_table import find_grid_edges, format_number
from fcorun.reports.sweep_report import best_point_notes, build_best_table
from fcorun.runs.sweep import SweepOptions, claim
from fcorun.studies.figures.claims import check_claims, collect_measurements
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.spec import Claim, Figure

COHORT = "clients_per_round"
BEST_RATE = {4: 0.1, 8: 0.4}  # of each cohort; all runs of a cohort of 8 are better


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two methods over rates, seeds and the cohort; fedmid is better in cohorts of 8 alone."""
    for cohort, best_rate in BEST_RATE.items():
        for rate in (0.1, 0.2, 0.4):
            for seed in range(6):
                for algo, level in (("feddualavg", 1.0), ("fedmid", 1.3 if cohort == 4 else 0.7)):
                    level = (level + abs(rate - best_rate) + 0.01 * seed**2 * level) / cohort
                    settings = fake_config(algo, seed=seed, clients_per_round=cohort, algo__client_lr=rate)
                    fake_record(tmp_path / f"s/{algo}-{cohort}-{rate}-{seed}", settings, fake_rows(level))
    baseline = fake_config("centralized", clients_per_round=4)
    optimum = fake_record(tmp_path / "s/optimum", baseline, fake_rows(0.01, silent=True)).folder / "summary.json"
    optimum.write_text(json.dumps(json.loads(optimum.read_text()) | {"certificate": {"certified": True}}))
    save_settings(tmp_path / "s", SweepSettings(conditions=(COHORT,), metric="objective"))
    return tmp_path / "s"


def table_of(folder, **options):
    return build_table(load_records(folder), **options)


def test_each_condition_has_its_own_best_rate_and_no_advice_is_about_it(sweep, capsys):
    runs = table_of(sweep, conditions=load_settings(sweep).conditions)
    best = runs.best_points("objective")
    chosen = best[best["algo"] != "centralized"].set_index(["algo", COHORT])["algo.client_lr"].to_dict()
    assert chosen == {(algo, cohort): rate for algo in ("feddualavg", "fedmid") for cohort, rate in BEST_RATE.items()}
    assert {edge.key for edge in find_grid_edges(runs, "objective")} == {"algo.client_lr"}
    edges = {(str(edge).partition(":")[0], edge.is_largest) for edge in find_grid_edges(runs, "objective")}
    expected = [(algo, cohort) for algo in ("feddualavg", "fedmid") for cohort in BEST_RATE]
    assert edges == {(f"{algo} ({COHORT}={cohort})", cohort == 8) for algo, cohort in expected}
    view = ProblemView(runs, load_records(sweep), "objective", curve_styles_of(runs))
    curves = collect_best_curves(view)
    labels = [curve.label for curve in (curves.curves if curves else ()) if curve.label.startswith("fedmid")]
    assert [("uparrow" in label, "downarrow" in label) for label in labels] == [(False, True), (True, False)]
    assert any("clients_per_round: conditions, within each" in note for note in best_point_notes(runs, "objective"))
    chosen_among = table_of(sweep)  # as an axis of choice the cohort is advised on
    assert COHORT in {edge.key for edge in find_grid_edges(chosen_among, "objective")}
    main(["results", str(sweep), "--paired"])
    out = capsys.readouterr().out
    assert f"best {COHORT}=" not in out
    assert f"data=lasso {COHORT}=4\n" in out
    assert f"data=lasso {COHORT}=8\n" in out


def fake_private_record(folder, privacy, rows):
    """Write a record that says which fields of its mechanism are choices."""
    path = fake_record(folder, fake_config() | {"privacy": privacy}, rows).folder / "summary.json"
    summary = json.loads(path.read_text()) | {"privacy": {"choices": ["clip", "quantile", "bands"]}}
    path.write_text(json.dumps(summary))


def test_what_asks_for_privacy_is_a_condition_by_itself_and_the_clip_is_a_choice(tmp_path):
    for epsilon, clip in product((1, 2, 8), (0.1, 0.2)):
        privacy = {"name": "gaussian", "class": "fcorun.X", "epsilon": epsilon, "clip": clip}
        fake_private_record(tmp_path / f"{epsilon}-{clip}", privacy, fake_rows(clip / epsilon))
    runs = table_of(tmp_path)
    best = runs.best_points("objective").set_index("privacy.epsilon")["privacy.clip"].to_dict()
    assert best == {1: 0.1, 2: 0.1, 8: 0.1}
    assert {edge.key for edge in find_grid_edges(runs, "objective")} == {"privacy.clip"}
    assert any("privacy.epsilon: conditions, within each" in note for note in best_point_notes(runs, "objective"))


def test_the_quantile_of_a_clip_is_a_choice_and_bands_are_where_epsilon_is_given(tmp_path):
    """With noise that is given, more bands end at another epsilon."""
    for name, key, conditions in (("gaussian", "quantile", []), ("banded", "bands", []), ("given", "bands", ["bands"])):
        for value in (2, 4):
            privacy = {"name": name, "class": "fcorun.X", key: value}
            epsilon = value if conditions else 1.0
            fake_private_record(tmp_path / name / str(value), privacy, fake_rows(epsilon=epsilon))
        assert list(table_of(tmp_path / name).conditions) == [f"privacy.{key}" for key in conditions]


def test_what_changes_the_epsilon_at_the_end_is_a_condition_by_itself(tmp_path):
    """Cohorts by a probability cost less; rates that meet a target sooner cost less, too, and are choices."""
    for share, rate in product((0.1, 0.5), (0.1, 0.2)):
        config = fake_config(clients_per_round=f"poisson:{share}", algo__client_lr=rate)
        rows = fake_rows(rate / share, epsilon=rate * share)
        record = fake_record(tmp_path / f"{share}-{rate}", config | {"privacy": {"name": "gaussian"}}, rows)
        if rate == 0.1:
            summary = json.loads((record.folder / "summary.json").read_text())
            (record.folder / "summary.json").write_text(json.dumps(summary | {"stopped": True}))
    runs = table_of(tmp_path)
    assert list(runs.conditions) == [COHORT]
    assert len(runs.best_points("objective")) == 2
    notes = best_point_notes(runs, "objective")
    assert any("clients_per_round: conditions, within each" in note for note in notes)
    assert any("private runs of epsilon" in note and "are compared" in note for note in notes)
    assert any("epsilon counts a run alone" in note for note in notes)


def test_no_point_is_the_best_for_its_luck_with_a_clock(tmp_path):
    for seed, rate in product(range(3), (0.1, 0.2, 0.4)):
        config = fake_config(algo__client_lr=rate) | {"clock": {"name": "lognormal", "seed": seed}}
        fake_record(tmp_path / f"{seed}-{rate}", config, fake_rows(abs(rate - 0.2) + 0.1 * seed + 0.1))
    runs = table_of(tmp_path)
    best = runs.best_points("objective").set_index("clock.seed")["algo.client_lr"].to_dict()
    assert best == dict.fromkeys(range(3), 0.2)
    assert not find_grid_edges(runs, "objective")


def test_means_over_clients_of_another_weight_are_not_compared(tmp_path):
    for weighting in ("examples", "uniform"):
        fake_record(tmp_path / weighting, fake_config(client_weighting=weighting), fake_rows(1.0))
    runs = table_of(tmp_path)
    for metric in ("train_loss", "personal_train_loss"):
        assert runs.function_keys(metric) == ["client_weighting"]
    assert not runs.function_keys("val_loss")


def test_pairs_are_compared_within_each_condition(sweep):
    pairs = compare_pairs(table_of(sweep, conditions=[COHORT]), "objective")
    assert [(pair.problem, pair.first, pair.second) for pair in pairs] == [
        (f"lasso, {COHORT}=4", "centralized", "feddualavg"),  # the baseline is that of all cohorts
        (f"lasso, {COHORT}=4", "centralized", "fedmid"),
        (f"lasso, {COHORT}=4", "feddualavg", "fedmid"),
        (f"lasso, {COHORT}=8", "centralized", "fedmid"),
        (f"lasso, {COHORT}=8", "centralized", "feddualavg"),
        (f"lasso, {COHORT}=8", "fedmid", "feddualavg"),
    ]
    pairs = [pair for pair in pairs if pair.first != "centralized"]
    seeds = np.arange(6)
    tail = 1.25  # of fake_rows: the mean of the last two evaluations, of a level of 1
    np.testing.assert_allclose(pairs[0].differences, tail * -0.3 * (1 + 0.01 * seeds**2) / 4)
    np.testing.assert_allclose(pairs[1].differences, tail * -0.3 * (1 + 0.01 * seeds**2) / 8)


def test_a_baseline_that_no_cohort_changes_is_in_the_pictures_of_each(sweep):
    runs = table_of(sweep, conditions=[COHORT])
    baseline = runs.frame.index[runs.frame["algo"] == "centralized"][0]
    assert runs.frame[COHORT].isna().sum() == 1
    problems = group_by_problem(runs, "objective")
    assert list(problems) == [f"{COHORT}=4", f"{COHORT}=8"]
    assert [len(positions) for positions in problems.values()] == [37, 37]
    assert all(baseline in positions for positions in problems.values())
    assert runs.column("above")[baseline] != runs.column("above")[baseline]
    assert np.isfinite(np.delete(runs.column("above"), baseline)).all()  # its optimum is that of all cohorts


def test_a_baseline_is_in_the_comparisons_under_each_uplink():
    for kind in ("identity", "topk"):
        settings = fake_config() | {"uplink": {"name": kind, "class": "fcorun.X"}}
        fake_record(f"s/{kind}", settings, fake_rows(1.0 if kind == "topk" else 2.0))
    settings = fake_config("centralized") | {"uplink": {"name": "identity", "class": "fcorun.X"}}
    fake_record("s/baseline", settings, fake_rows(0.1, silent=True))
    runs = table_of(Path("s"), conditions=["uplink"])
    pairs = compare_pairs(runs, "objective")
    assert [(pair.problem, pair.first, pair.second) for pair in pairs] == [
        (f"lasso, uplink={kind}", "centralized", "feddualavg") for kind in ("identity", "topk")
    ]


def test_a_run_that_failed_without_a_configuration_is_of_no_condition_that_it_does_not_name():
    records = sweep_over(COHORT, (None, 4))
    for name, label in (("known", f"algo=fedmid data=lasso {COHORT}=4 seed=9"), ("unknown", "algo=fedmid data=lasso")):
        record = fake_record(f"s/{name}", status="failed")
        (record.folder / "config.yaml").unlink()
        status = json.loads((record.folder / "status.json").read_text())
        (record.folder / "status.json").write_text(json.dumps(status | {"label": label}))
    runs = build_table(load_records("s"), conditions=[COHORT])
    assert len(runs) == len(records) + 2
    methods = [m for m in estimate_methods(runs, "objective") if m.point["algo"] == "fedmid"]
    problems = runs.read_problems([COHORT], [method.point["runs"] for method in methods])
    lost = {problem: sum(map(len, m.lost.values())) for (problem,), m in zip(problems, methods, strict=True)}
    assert lost == {None: 0, 4: 1, "unknown": 1}


def test_a_condition_of_which_no_run_could_be_prepared_is_listed():
    fake_record("s/null", fake_config(clients_per_round=None))
    record = fake_record("s/many", status="failed")
    (record.folder / "config.yaml").unlink()
    label = {"status": "failed", "label": f"algo=feddualavg data=lasso {COHORT}=40"}
    (record.folder / "status.json").write_text(json.dumps(label))
    runs = build_table(load_records("s"), conditions=[COHORT])
    assert sorted(runs.read_problems([COHORT], [[0], [1]]), key=str) == [(40,), (None,)]


def test_a_claim_is_checked_under_each_condition(sweep):
    records = load_records(sweep)
    grid = build_table(records, conditions=[COHORT])
    best = [run for row in grid.best_points("objective").to_dict("records") for run in row["rows"]]
    largest = Claim("Large cohorts work", "fedmid", "objective", at={"largest": COHORT}, above=[1])
    figure = Figure("t", claims=[Claim("FedMiD is behind", "fedmid", "objective", above=["feddualavg"]), largest])
    inputs = FigureInputs(figure, "objective", grid, records, grid.take(best), [records[run] for run in best])
    rows = []
    for condition, part in inputs.split_by_condition():
        rows += check_claims("t", figure, collect_measurements(part), condition)
    assert [(row["says"], row["holds"]) for row in rows] == [
        (f"FedMiD is behind, {COHORT}=4", "yes"),
        (f"Large cohorts work, {COHORT}=4", "not comparable"),  # no value of a condition is chosen
        (f"FedMiD is behind, {COHORT}=8", "no"),
        (f"Large cohorts work, {COHORT}=8", "not comparable"),
    ]
    elsewhere = replace(part, tuned=part.tuned.take([0]), tuned_records=part.tuned_records[:1])
    (claim, _) = check_claims("t", figure, collect_measurements(elsewhere, {"feddualavg", "fedmid"}))
    assert claim["holds"] == "not comparable"
    assert "has runs under other conditions alone" in claim["note"]
    run = next(run for run in best if grid.frame["algo"].iloc[run] == "fedmid")
    lost = replace(inputs, seed_runs=[(run, fake_record("lost", status="failed"))])
    failed = {condition: dict(part.failed) for condition, part in lost.split_by_condition()}
    cohort = grid.frame[COHORT].iloc[run]
    assert {condition: counts for condition, counts in failed.items() if counts} == {
        f", {COHORT}={cohort:g}": {"fedmid": 1}
    }


def test_keys_of_data_are_conditions_of_claims_where_an_algorithm_has_several():
    """Algorithms that are named after their data, as in proxskip_race, are compared with each other."""
    for algo, spread, level in (("fedmid", 0.3, 2.0), ("fedmid", 1.0, 9.0), ("feddualavg", 0.3, 3.0)):
        fake_record(f"s/{algo}{spread}", fake_config(algo, data__mean_scale=spread), fake_rows(level))

    def check(records, **at):
        runs = build_table(records)
        figure = Figure("t", claims=[Claim("Behind", "feddualavg", "objective", above=["fedmid"], **at)])
        rows = []
        for condition, part in FigureInputs(figure, "objective", runs, records, runs, records).split_by_condition():
            rows += check_claims("t", figure, collect_measurements(part, {"feddualavg", "fedmid"}), condition)
        return [(row["says"], row["holds"]) for row in rows]

    records = load_records("s")
    others = ("Behind, data.mean_scale=1", "not comparable")
    assert sorted(check(records)) == [("Behind, data.mean_scale=0.3", "yes"), others]
    assert check([record for record in records if record.folder.name != "fedmid0.3"]) == [("Behind", "no")]
    largest = check(records, at={"largest": "data.mean_scale"})
    assert sorted(largest) == [("Behind, data.mean_scale=0.3", "not comparable"), others]


def sweep_over(key, values, with_baseline=False):
    """Return the records of two methods, six seeds each, for each value of a condition, the first of which is best."""
    for i, value in enumerate(values):
        for seed in range(6):
            for algo, level in (("feddualavg", 1.0), ("fedmid", 1.5)):
                settings = fake_config(algo, seed=seed, **{key.replace(".", "__"): value})
                fake_record(f"s/{algo}-{i}-{seed}", settings, fake_rows(level * (1 + i) + 0.01 * seed**2 * level))
    if with_baseline:
        fake_record("s/b", fake_config("centralized", clients_per_round=values[0]), fake_rows(0.1, silent=True))
    save_settings(Path("s"), SweepSettings(conditions=(key,), metric="objective"))
    return load_records("s")


@pytest.mark.parametrize("with_baseline", [False, True])
def test_null_is_a_condition_like_any_other(with_baseline, capsys):
    records = sweep_over(COHORT, (None, 4), with_baseline)
    runs = build_table(records, conditions=[COHORT])
    names = ["centralized"] * with_baseline + ["feddualavg", "fedmid"]
    expected = [(cohort, *pair) for cohort in ("null", "4") for pair in combinations(names, 2)]
    pairs = estimate_pairs(runs, "objective", estimate_methods(runs, "objective"))
    found = [(pair.problem[COHORT], pair.first.point["algo"], pair.second.point["algo"]) for pair in pairs]
    assert sorted(found) == sorted(expected)
    level = {"null": 1.0, "4": 2.0}
    for pair in [pair for pair in pairs if pair.first.point["algo"] == "feddualavg"]:
        assert pair.difference.mean == pytest.approx(-1.25 * 0.5 * (level[pair.problem[COHORT]] + 0.01 * 55 / 6))
    tests = compare_pairs(runs, "objective")
    assert sorted((test.problem.partition("=")[2], test.first, test.second) for test in tests) == sorted(expected)
    problems = group_by_problem(runs, "objective")
    assert {name: len(positions) for name, positions in problems.items()} == {
        f"{COHORT}=null": 12 + with_baseline,
        f"{COHORT}=4": 12 + with_baseline,
    }
    figure = Figure("t", claims=[Claim("Good", "feddualavg", "objective", below=[2])])
    inputs = FigureInputs(figure, "objective", runs, records, runs, records)
    rows = []
    for condition, part in inputs.split_by_condition():
        rows += check_claims("t", figure, collect_measurements(part), condition)
    assert {row["says"]: row["holds"] for row in rows} == {f"Good, {COHORT}=null": "yes", f"Good, {COHORT}=4": "no"}
    assert main(["results", "s"]) == 0
    tables = capsys.readouterr().out.split("data=lasso ")
    assert sorted(table.split()[0] for table in tables[1:]) == [f"{COHORT}=4", f"{COHORT}=null"]
    assert [("centralized" in table) for table in tables[1:]] == [with_baseline] * 2
    assert main(["results", "s", "--errors"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    for cohort, *_ in expected:
        assert [cohort, "feddualavg"] in lines


def test_the_best_points_say_null_and_leave_the_cell_of_a_baseline_empty(capsys):
    sweep_over(COHORT, (None, 4), with_baseline=True)
    assert main(["results", "s", "--out", "t.tex"]) == 0
    rows = [line.split(" & ")[:2] for line in Path("t.tex").read_text().splitlines() if line.startswith("fed")]
    assert sorted(rows) == [[algo, cohort] for algo in ("feddualavg", "fedmid") for cohort in ("4", "null")]
    (baseline,) = [line for line in Path("t.tex").read_text().splitlines() if line.startswith("centralized")]
    assert baseline.split(" & ")[1].strip() == ""
    table, _ = build_best_table(build_table(load_records("s"), conditions=[COHORT]), "objective")
    assert sorted(table.columns[1].cells) == ["", "4", "4", "null", "null"]


def test_tables_in_files_and_the_page_tell_null_from_a_condition_that_does_not_matter():
    records = sweep_over(COHORT, (None, 4), with_baseline=True)
    runs = build_table(records, conditions=[COHORT])
    for table in (["s", "--out", "t.csv"], ["s", "--curves", "--out", "t.csv", "--force"]):
        assert main(["results", *table]) == 0
        cells = pd.read_csv("t.csv", keep_default_na=False, dtype=str)[["algo", COHORT]].drop_duplicates()
        assert sorted(map(tuple, cells.to_numpy())) == [
            *[("centralized", ""), *((algo, cohort) for algo in ("feddualavg", "fedmid") for cohort in ("4", "null"))]
        ]
    problems = group_by_problem(runs, "objective")
    curves = collect_curves(records, runs, problems, curve_styles_of(runs), metric="objective", best=[])
    baseline = next(curve for curve in curves["runs"] if curve["algo"] == "centralized")
    assert baseline["problems"] == [0, 1]
    assert {re.sub("seed=., ", "", curve["name"]) for curve in curves["runs"]} >= {f"feddualavg, {COHORT}=null"}


def test_a_picture_and_notes_name_the_condition_null():
    records = sweep_over(COHORT, (None, 4))
    optimum = fake_record("s/b", fake_config("centralized"), fake_rows(0.1, silent=True)).folder / "summary.json"
    optimum.write_text(json.dumps(json.loads(optimum.read_text()) | {"certificate": {"certified": True}}))
    records = load_records("s")
    runs = build_table(records, conditions=[COHORT])
    curves = collect_best_curves(ProblemView(runs, records, "objective", curve_styles_of(runs)))
    assert curves is not None
    labels = [curve.label for curve in curves.curves if curve.label.startswith("feddualavg")]
    assert sorted(labels) == ["feddualavg: clients_per_round = 4", "feddualavg: clients_per_round = null"]
    (note,) = [note for note in curves.notes if note.startswith("ended above the optimum")]
    for cohort in ("null", "4"):
        assert f"feddualavg ({COHORT}={cohort}) " in note


def test_pictures_of_conditions_go_with_them():
    """A picture of the user's stays, whatever its name."""
    records = sweep_over(COHORT, (4, 8, 2))
    Path("s/best-of-mine.png").touch()
    expected = {(COHORT,): [f"best-{COHORT}={cohort}.png" for cohort in (2, 4, 8)], (): ["best.png"]}
    for conditions in [(COHORT,), (), (COHORT,)]:
        draw_sweep(Path("s"), records, build_table(records, conditions=conditions), "objective")
        found = sorted(path.name for path in Path("s").glob("best*.png"))
        assert found == sorted([*expected[conditions], "best-of-mine.png"])
    two = [record for record in records if record.flat_config[COHORT] != 2]
    draw_sweep(Path("s"), two, build_table(two, conditions=[COHORT]), "objective")
    assert not Path("s/best-clients_per_round=2.png").exists()


def test_problems_are_named_by_whole_keys_where_their_last_parts_are_the_same():
    for liars in (0.0, 0.2):
        for bound in (1, 2):
            sections = {"faults": {"name": "f", "liars": liars}, "aggregate": {"name": "krum", "liars": bound}}
            fake_record(f"s/{liars}-{bound}", fake_config(**sections), fake_rows(1.0))
    runs = build_table(load_records("s"), conditions=["faults.liars", "aggregate.liars"])
    assert "faults.liars=0.2 aggregate.liars=1" in group_by_problem(runs, "objective")


def test_the_page_varies_no_cohort_that_nobody_ran():
    records = sweep_over(COHORT, (4, 8), with_baseline=True)
    assert f", {COHORT} (4, 8)." in describe_runs(records, build_table(records, conditions=[COHORT]))


def test_problems_that_differ_in_the_fifth_digit_are_not_compared(capsys):
    """The values of problems tell them apart, and not their texts."""
    strengths = (0.12341, 0.12344)
    runs = build_table(sweep_over("reg.strength", strengths))
    expected = [(f"lasso, reg.strength={strength}", "feddualavg", "fedmid") for strength in strengths]
    tests = compare_pairs(runs, "objective")
    assert [(test.problem, test.first, test.second) for test in tests] == expected
    means = estimate_pairs(runs, "objective", estimate_methods(runs, "objective"))
    assert [(pair.problem["reg.strength"], pair.first.point["algo"]) for pair in means] == [
        (str(strength), "feddualavg") for strength in strengths
    ]
    main(["results", "s", "--errors", "--metric", "objective"])
    out = capsys.readouterr().out
    rows = [line.split()[:2] for line in out.splitlines()]
    assert all([str(strength), "feddualavg"] in rows for strength in strengths)


def test_an_empty_cell_of_integers_has_an_empty_text():
    assert [format_number(value) for value in (pd.NA, None, np.nan, 4, 0.5)] == ["", "", "", "4", "0.5"]


def test_a_folder_remembers_conditions_until_a_sweep_forgets_them(tmp_path):
    remembered = []
    for given in ([COHORT], None, ["data.noise"], []):
        claim(tmp_path / "a/s", [], SweepOptions(conditions=given))
        remembered.append(load_settings(tmp_path / "a").conditions)  # of the folder above, too
        assert load_settings(tmp_path / "a/s/fedavg-1").conditions == remembered[-1]  # and of one record
    assert remembered == [(COHORT,), (COHORT,), (COHORT, "data.noise"), ()]
