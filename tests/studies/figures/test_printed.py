"""Rows of claims.csv about the best rates that a paper prints."""

import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun.base.records.record import load_records
from fcorun.reports.build_table import build_table
from fcorun.studies.figures import claims
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.spec import Figure

BEST = (0.001, 0.3)


def check_rates(folder, points, wanted, name="fedmid"):
    """Return the row about printed rates, from fake records of a level for each (client_lr, server_lr, seed)."""
    (row,) = check_rates_by_problem(folder, [points], wanted, name)
    return row


def check_rates_by_problem(folder, points_of_data, wanted, name="fedmid"):
    """Return a row for each data set. A level of None stands for a run that diverged, of 0 for one that failed."""
    for data, points in enumerate(points_of_data):
        for i, ((client, server, seed), level) in enumerate(points.items()):
            settings = fake_config("fedmid", algo__client_lr=client, algo__server_lr=server, data__clients=data)
            status = "done" if level else "diverged" if level is None else "failed"
            fake_record(folder / f"{data}-{i}", settings | {"seed": seed}, fake_rows(support_f1=level or 0.0), status)
    records = load_records(folder)
    grid = build_table(records, root=folder)
    figure = Figure("t", printed={name: list(wanted)}, printed_note="known")
    return claims.check_published_rates("fig", FigureInputs(figure, "support_f1", grid, records, grid, records))


OTHERS = "distinguished by 0.1% of support_f1, our choice"
FORCED = f"{OTHERS}; all other client_lr diverged"
CASES = {
    "the best": ({BEST: 0.7, (0.01, 0.3): 0.6}, BEST, "yes", OTHERS, ""),
    "another": ({BEST: 0.7, (0.01, 0.3): 0.6}, (0.01, 0.3), "no", OTHERS, "known"),
    "not tried": ({BEST: 0.7, (0.01, 0.3): 0.6}, (0.01, 1), "not tried", OTHERS, ""),
    "tied": ({BEST: 0.7, (0.01, 0.3): 0.7}, (0.01, 0.3), "not distinguishable", OTHERS, ""),
    "close": ({BEST: 0.66715, (0.01, 0.3): 0.667}, (0.01, 0.3), "not distinguishable", OTHERS, ""),
    "close to the best": ({BEST: 0.66715, (0.01, 0.3): 0.667}, BEST, "not distinguishable", OTHERS, ""),
    "diverged": ({BEST: 0.7, (0.001, 1): 0.6, (0.01, 1): None}, (0.01, 1), "no",
                 f"{OTHERS}; the printed rates diverged; all other client_lr diverged", "known"),
    "forced": ({BEST: 0.7, (0.001, 1): 0.6, (0.01, 0.3): None}, BEST, "yes", FORCED, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rates_with_one_seed(case, tmp_path):
    points, wanted, holds, test, note = CASES[case]
    row = check_rates(tmp_path, {(*point, 0): level for point, level in points.items()}, wanted)
    assert (row["holds"], row["test"], row["note"]) == (holds, test, note)


def test_rates_with_several_seeds(tmp_path):
    """Points are compared by seed, like claims: any difference counts that has the same sign in each seed."""
    seeds, test = (0, 1, 2), "the same sign in each of 3 seeds of cohorts"
    close = {(*BEST, seed): 0.6 + seed / 10 for seed in seeds} | {(0.01, 0.3, s): 0.5999 + s / 10 for s in seeds}
    row = check_rates(tmp_path / "close", close, (0.01, 0.3))
    assert (row["holds"], row["test"]) == ("no", test)
    row = check_rates(tmp_path / "mixed", close | {(0.01, 0.3, 0): 0.65}, (0.01, 0.3))
    assert (row["holds"], row["test"]) == ("not distinguishable", test)
    assert row["measured"] == "support_f1 0.7 at (0.001, 0.3) or (0.01, 0.3)"
    # a point that lost a seed is not the best, nor is it distinguished from a worse one
    row = check_rates(tmp_path / "failed", close | {(*BEST, 0): 0}, (0.01, 0.3))
    test = "the same sign in each of the 2 common seeds of cohorts"
    assert (row["holds"], row["test"]) == ("not distinguishable", test)


@pytest.mark.parametrize(("path", "kind"), [(None, "seeds of data"), ("rows.csv", "divisions of the same rows")])
def test_a_claim_is_about_all_seeds_that_vary(tmp_path, path, kind):
    """The last seed alone would say yes: in two of three seeds of data the claim is wrong."""
    levels = {"fedavg": (0.5, 0.6, 0.9), "fedmid": (0.4, 0.7, 1.5)}
    for algo, values in levels.items():
        for seed, level in enumerate(values):
            settings = fake_config(algo, data__seed=seed) | {"seed": 0}
            settings["data"]["path"] = path
            fake_record(tmp_path / f"{algo}{seed}", settings, fake_rows(level))
    records = load_records(tmp_path)
    table = build_table(records, root=tmp_path)
    figure = Figure("t", claims=[{"says": "better", "algo": "fedavg", "metric": "val_loss", "below": ["fedmid"]}])
    measured = claims.collect_measurements(FigureInputs(figure, "val_loss", table, records, table, records))
    (row,) = claims.check_claims("fig", figure, measured)
    assert (row["holds"], row["test"]) == ("not distinguishable", f"the same sign in each of 3 {kind}")


def test_each_data_set_is_checked(tmp_path):
    points = {(*BEST, 0): 0.7, (0.01, 0.3, 0): 0.6}
    other = {(*BEST, 0): 0.6, (0.01, 0.3, 0): 0.7}
    rows = check_rates_by_problem(tmp_path, [other, points], BEST)
    assert [(row["says"], row["holds"]) for row in rows] == [
        ("best (client_lr, server_lr), data.clients=0", "no"),
        ("best (client_lr, server_lr), data.clients=1", "yes"),
    ]


def test_few_of_many_tied_points_are_listed(tmp_path):
    row = check_rates(tmp_path, {(0.001, server, 0): 0.7 for server in (1, 2, 3, 4, 5)}, (0.001, 4))
    assert row["measured"] == "support_f1 0.7 at (0.001, 1) or (0.001, 4) or (0.001, 2) or 2 others"
    assert row["wanted"] == "(0.001, 4), where it is 0.7"


def test_rates_of_an_algorithm_that_diverged(tmp_path):
    row = check_rates(tmp_path, {(*BEST, 0): None}, BEST)
    assert (row["holds"], row["measured"]) == ("not measured", "not measured")
