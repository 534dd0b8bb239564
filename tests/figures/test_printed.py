"""Whether printed rates are the best of those that were tried: a row of claims each."""

import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun.figures import published_rates
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.spec import Figure
from fcorun.records.record import load_records
from fcorun.reports.build_table import build_table

TWO = (0.001, 0.3)


def judged(folder, points, wanted, name="fedmid"):
    """The row about printed rates of runs by hand: the level of each (client_lr, server_lr, seed), None: diverged."""
    for i, ((client, server, seed), level) in enumerate(points.items()):
        settings = fake_config("fedmid", algo__client_lr=client, algo__server_lr=server) | {"seed": seed}
        fake_record(folder / str(i), settings, fake_rows(support_f1=level or 0.0), "done" if level else "diverged")
    records = load_records(folder)
    grid = build_table(records, root=folder)
    figure = Figure("t", printed={name: list(wanted)}, printed_note="known")
    (row,) = published_rates.check_published_rates(
        "fig", FigureInputs(figure, "support_f1", grid, records, grid, records)
    )
    return row


OTHERS = "told apart by 0.1% of support_f1, our choice"
FORCED = f"{OTHERS}; all other client_lr diverged"
CASES = {
    "the best": ({TWO: 0.7, (0.01, 0.3): 0.6}, TWO, "yes", OTHERS, ""),
    "another": ({TWO: 0.7, (0.01, 0.3): 0.6}, (0.01, 0.3), "no", OTHERS, "known"),
    "not tried": ({TWO: 0.7, (0.01, 0.3): 0.6}, (0.01, 1), "not tried", OTHERS, ""),
    "tied": ({TWO: 0.7, (0.01, 0.3): 0.7}, (0.01, 0.3), "not distinguishable", OTHERS, ""),
    "close": ({TWO: 0.66715, (0.01, 0.3): 0.667}, (0.01, 0.3), "not distinguishable", OTHERS, ""),
    "close to the best": ({TWO: 0.66715, (0.01, 0.3): 0.667}, TWO, "not distinguishable", OTHERS, ""),
    "diverged": ({TWO: 0.7, (0.001, 1): 0.6, (0.01, 1): None}, (0.01, 1), "no",
                 f"{OTHERS}; the printed rates diverged; all other client_lr diverged", "known"),
    "forced": ({TWO: 0.7, (0.001, 1): 0.6, (0.01, 0.3): None}, TWO, "yes", FORCED, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_of_one_seed(case, tmp_path):
    points, wanted, holds, test, note = CASES[case]
    row = judged(tmp_path, {(*point, 0): level for point, level in points.items()}, wanted)
    assert (row["holds"], row["test"], row["note"]) == (holds, test, note)


def test_of_several_seeds_by_these(tmp_path):
    """As claims are; a difference of any size that is there in each seed is one."""
    seeds, test = (0, 1, 2), "the same sign in each of 3 seeds of cohorts"
    close = {(*TWO, seed): 0.6 + seed / 10 for seed in seeds} | {(0.01, 0.3, s): 0.5999 + s / 10 for s in seeds}
    row = judged(tmp_path / "close", close, (0.01, 0.3))
    assert (row["holds"], row["test"]) == ("no", test)
    row = judged(tmp_path / "mixed", close | {(0.01, 0.3, 0): 0.65}, (0.01, 0.3))
    assert (row["holds"], row["test"]) == ("not distinguishable", test)
    assert row["measured"] == "support_f1 0.7 at (0.001, 0.3) or (0.01, 0.3)"


def test_of_many_that_are_alike_some_are_told(tmp_path):
    row = judged(tmp_path, {(0.001, server, 0): 0.7 for server in (1, 2, 3, 4, 5)}, (0.001, 4))
    assert row["measured"] == "support_f1 0.7 at (0.001, 1) or (0.001, 4) or (0.001, 2) or 2 others"
    assert row["wanted"] == "(0.001, 4), where it is 0.7"


def test_of_an_algorithm_that_did_not_come_to_an_end(tmp_path):
    row = judged(tmp_path, {(*TWO, 0): None}, TWO)
    assert (row["holds"], row["measured"]) == ("not measured", "not measured")
