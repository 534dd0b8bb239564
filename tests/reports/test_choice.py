"""The choice of best points: the same everywhere, with ties, edges of the grid, and problems that do not compare."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fake_records import captured_output, fake_config, fake_grid, fake_record, fake_rows, show_best_points
from figure_checks import draw_checked_view, legend_of

from fcorun import load_records
from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import (
    SETTINGS_FILE,
    SweepSettings,
    list_missing_runs,
    load_settings,
    save_settings,
)
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.pictures import best_curves, rates
from fcorun.reports.pictures.layout import curve_style
from fcorun.reports.pictures.problem_view import curve_styles_of, draw_sweep
from fcorun.reports.run_table import align_seeds, describe_band, find_grid_edges, seed_band, seeds_agree
from fcorun.reports.sweep_report import best_point_notes, write_sweep_report
from fcorun.studies.figures.papers.races import median_curve

# ---------------------------------------------------------------- the edge of the grid


def write_line(levels: dict, key="algo__client_lr", root="s", **more):
    """Write a record for each value of a key, whose objective ends at a level; a level of None diverges."""
    for value, level in levels.items():
        status = "done" if level else "diverged"
        fake_record(f"{root}/{value}", fake_config(**{key: value}, **more), fake_rows(level or 1.0), status)
    return load_records(root)


@pytest.mark.undrawn
@pytest.mark.parametrize(
    ("levels", "sentences"),
    [
        ({0.1: 3.0, 0.2: 2.0, 0.4: 1.0}, ["fedmid: best algo.client_lr=0.4 is the largest tried: try larger"]),
        ({0.1: 1.0, 0.2: 2.0, 0.4: 3.0}, ["fedmid: best algo.client_lr=0.1 is the smallest tried: try smaller"]),
        ({0.1: 2.0, 0.2: 1.0, 0.4: 3.0}, []),
        ({0.1: 3.0, 0.2: 1.0, 0.4: None}, []),  # the edge of what converges
        ({0.1: 1.0, 0.2: 2.0}, ["fedmid: best algo.client_lr=0.1 is the smallest tried: try smaller"]),
        ({0.1: 1.0, 0.2: 1.0}, []),  # tied
        ({0.1: 2.0, 0.2: 1.0, 0.4: 1.0}, []),  # tied with one inside
        ({0.0: 1.0, 0.2: 2.0, 0.4: 3.0}, []),  # nothing is less
    ],
)
def test_a_best_point_at_the_edge_says_so(levels, sentences):
    runs = build_table(write_line(levels, algo="fedmid"))
    assert [str(edge) for edge in find_grid_edges(runs, "objective")] == sentences
    text, _ = captured_output(write_sweep_report, Path("s"), load_records("s"), metric="objective")
    assert [" ".join(text.split()).count(sentence) for sentence in sentences] == [1] * len(sentences)
    assert ("tried" in text) == bool(sentences)


def test_one_step_is_no_edge_of_a_count_that_another_algorithm_lacks():
    write_line({1: 1.0, 2: 2.0}, "algo__steps", algo="fedgd")
    fake_record("s/fedmid", fake_config("fedmid"))
    assert find_grid_edges(build_table(load_records("s")), "objective") == []
    write_line({1.0: 1.0, 2.0: 2.0}, "algo__penalty", "t", algo="fedgd")  # 1 is no bound of a real number
    (edge,) = find_grid_edges(build_table(load_records("t")), "objective")
    assert (edge.value, edge.is_largest) == (1.0, False)


def test_the_default_of_another_choice_is_not_a_number_that_was_tried():
    for name, iterations, level in (("clipped_mean", 3, 1.0), ("geometric_median", 32, 2.0)):
        fake_record(f"s/{name}", fake_config(aggregate={"name": name, "iterations": iterations}), fake_rows(level))
    assert find_grid_edges(build_table(load_records("s")), "objective") == []
    fake_record("s/more", fake_config(aggregate={"name": "clipped_mean", "iterations": 9}), fake_rows(3.0))
    (edge,) = find_grid_edges(build_table(load_records("s")), "objective")
    assert (edge.key, edge.value, edge.is_largest) == ("aggregate.iterations", 3, False)


@pytest.mark.slow
def test_pictures_say_what_is_at_the_edge():
    records = write_line({0.1: 3.0, 0.2: 2.0, 0.4: 1.0})
    assert legend_of(draw_checked_view(best_curves.PICTURE, records)) == [
        "feddualavg: $\\eta_c$ = 0.4$\\uparrow$",
        "$\\uparrow$, $\\downarrow$: largest, smallest tried: try beyond",
    ]


def test_the_command_says_it_too(capsys):
    write_line({0.1: 3.0, 0.2: 2.0, 0.4: 1.0})
    assert main(["results", "s"]) == 0
    assert "best algo.client_lr=0.4 is the largest tried: try larger" in capsys.readouterr().out


# ---------------------------------------------------------------- ties


def write_tied_points():
    """Write three tied points, the second with the lowest objective, and a worse one."""
    for rate, level, objective in ((0.1, 1.0, 3.0), (0.2, 1.0, 1.0), (0.4, 1.0, 2.0), (0.8, 4.0, 0.5)):
        fake_record(
            f"s/{rate}", fake_config(algo__client_lr=rate), [r | {"objective": objective} for r in fake_rows(level)]
        )
    return load_records("s")


@pytest.mark.slow
def test_ties_are_counted_and_the_ring_is_at_the_point_of_the_table():
    records = write_tied_points()
    (row,) = build_table(records).best_points("support_f1").to_dict("records")
    assert (row["algo.client_lr"], sorted(row["tied"])) == (0.2, [[0], [2]])
    text, _ = captured_output(show_best_points, build_table(records), None)
    assert "tied with" in " ".join(text.split())
    for ordered in (records, records[::-1]):  # in whatever order they come
        figure = draw_checked_view(rates.PICTURE, ordered)
        assert max((mark.get_markersize(), mark.get_xdata()[0]) for mark in figure.axes[0].lines)[1] == 0.2
        assert "tied with it" in legend_of(figure)
        assert legend_of(draw_checked_view(best_curves.PICTURE, ordered))[0].endswith("(tied with 2)")


def test_gaps_are_tied_to_the_rounding_of_the_objective():
    """A gap is the difference of two objectives of 50, which float32 resolves to 5e-6."""
    for rate, gap in ((0.1, 4e-7), (0.2, -2e-6), (0.4, 1e-3)):
        fake_record(f"s/{rate}", fake_config(algo__client_lr=rate), fake_rows(50.0, suboptimality=gap))
    (best,) = build_table(load_records("s")).best_points("suboptimality").to_dict("records")
    assert len(best["tied"]) == 1


def test_no_tie_no_word():
    text, _ = captured_output(show_best_points, build_table(fake_grid("s")), None)
    assert "tied" not in text


# ---------------------------------------------------------------- objectives of different strengths


def strengths(**metrics):
    for strength in (0.1, 0.2):
        for rate, level in ((0.1, 2.0), (0.2, 1.0)):
            settings = fake_config(reg__strength=strength, algo__client_lr=rate)
            fake_record(f"s/{strength}-{rate}", settings, [row | metrics for row in fake_rows(level * strength)])
    return load_records("s")


@pytest.mark.slow
def test_objectives_of_two_strengths_are_not_compared():
    runs = build_table(strengths())
    best = runs.best_points("objective")
    assert best["reg.strength"].tolist() == [0.1, 0.2]
    assert best["algo.client_lr"].tolist() == [0.2, 0.2]
    assert len(runs.best_points("val_loss")) == 1
    text, _ = captured_output(show_best_points, runs, "objective")
    assert "points are compared within one reg.strength only" in text
    written = draw_sweep(Path("s"), load_records("s"), runs, "objective")
    assert [path.name for path in written] == [
        *("rates-strength=0.1.png", "best-strength=0.1.png", "structure-strength=0.1.png"),
        *("rates-strength=0.2.png", "best-strength=0.2.png", "structure-strength=0.2.png"),
    ]


@pytest.mark.slow
def test_they_are_not_drawn_on_one_axis():
    for algo, strength in (("feddualavg", 0.1), ("fedmid", 0.2)):
        fake_record(f"s/{algo}", fake_config(algo, reg__strength=strength))
    labels = [ax.get_ylabel() for ax in draw_checked_view(best_curves.PICTURE, load_records("s")).axes]
    assert labels[:2] == ["training loss", "validation loss"]


def test_they_judge_by_default_only_where_nothing_else_does():
    plain = [{k: v for k, v in row.items() if k in ("round", "seconds", "bytes_up", "bytes_down", "objective")}
             for row in fake_rows()]  # fmt: skip
    more = [row | {"suboptimality": 1.0, "recovery_error": 2.0} for row in plain]
    for strength in (0.1, 0.2):
        fake_record(f"a/{strength}", fake_config(reg__strength=strength), plain)
        fake_record(f"b/{strength}", fake_config(reg__strength=strength), more)
    assert build_table(load_records("a")).resolve_metric(None) == "objective"
    assert build_table(load_records("b")).resolve_metric(None) == "recovery_error"


def test_data_that_differ_are_problems_of_their_own():
    for nonzeros in (8, 16):
        fake_record(f"s/{nonzeros}", fake_config(data__nonzeros=nonzeros), fake_rows(nonzeros))
    assert build_table(load_records("s")).best_points()["data.nonzeros"].tolist() == [16, 8]  # as the records come


# ---------------------------------------------------------------- bands


def test_few_seeds_have_a_range_and_many_a_band():
    few, many = np.arange(3.0), np.arange(11.0)
    assert seed_band(few) == (0, 1, 2)
    assert seed_band(many) == (1, 5, 9)
    assert (describe_band([3]), describe_band([3, 5]), describe_band([12])) == (
        *("range over 3 seeds", "range over 3 or 5 seeds", "10-90 % over 12 seeds"),
    )
    assert seeds_agree([1.0, 1.0 + 1e-9])
    assert not seeds_agree([1.0])
    assert not seeds_agree([1.0, 1.01])


@pytest.mark.slow
def test_seeds_that_agree_have_no_band():
    for seed in range(3):
        fake_record(f"s/{seed}", fake_config(seed=seed))
    text, _ = captured_output(show_best_points, build_table(load_records("s")), None)
    assert "seeds agree" in text
    figure = draw_checked_view(best_curves.PICTURE, load_records("s"))
    assert not figure.axes[0].collections
    assert legend_of(figure)[-1] == "no band: seeds agree"


# ---------------------------------------------------------------- what a folder remembers


def test_a_folder_keeps_the_settings_of_its_sweep():
    assert load_settings("nowhere") == SweepSettings()
    Path("s").mkdir()
    (Path("s") / SETTINGS_FILE).touch()  # empty
    assert load_settings("s") == SweepSettings()
    settings = SweepSettings("val_loss", 20, "bytes", ("fedmid", "feddualavg"), ("a", "b"))
    save_settings(Path("s"), settings)
    assert load_settings("s") == settings
    assert load_settings("s").with_overrides(metric="objective", x=None).metric == "objective"
    Path("t").mkdir()
    assert load_settings("s", "t") == settings  # t is of no sweep
    (Path("t") / SETTINGS_FILE).touch()
    assert load_settings("s", "t").metric is None  # they do not agree
    (Path("t") / SETTINGS_FILE).write_text("{metric: [a], tail_rounds: x, algos: 3, runs: [v]}")  # damaged
    assert load_settings("t") == SweepSettings()
    (Path("t") / SETTINGS_FILE).write_text("{runs: [../u, v]}")
    assert load_settings("t") == SweepSettings(runs=("v",))


@pytest.mark.slow
def test_results_and_plot_use_it(capsys, monkeypatch):
    monkeypatch.setattr(
        "fcorun.interface.cli.commands.plot_command._draw_record", lambda *_: True
    )  # curves of each record are not looked at
    fake_grid("s", seeds=(0,))
    save_settings(Path("s"), SweepSettings("val_loss", 10, "bytes", ("fedmid",)))
    assert main(["results", "s"]) == 0
    assert "best point of each algorithm by val_loss; mean over the last 10 rounds" in capsys.readouterr().out
    assert main(["plot", "s"]) == 0
    drawn = Path("s/best.png").read_bytes()
    assert main(["plot", "s", "--metric", "val_loss", "--tail-rounds", "10", "--x", "bytes"]) == 0
    assert Path("s/best.png").read_bytes() == drawn
    assert main(["plot", "s", "--x", "rounds"]) == 0
    assert Path("s/best.png").read_bytes() != drawn


def test_curve_styles_stay_when_a_folder_grows():
    fake_grid("s", algos=("fedmid", "feddualavg"), seeds=(0,))
    runs = build_table(load_records("s"))
    assert curve_styles_of(runs, ("fedavg", "fedmid", "feddualavg")) == {
        "fedmid": curve_style(1),
        "feddualavg": curve_style(2),
    }
    assert curve_styles_of(runs, ("fedmid",)) == {"fedmid": curve_style(0), "feddualavg": curve_style(1)}


def test_records_are_in_the_order_of_what_was_varied():
    for name, algo, rate in (("a", "fedmid", 0.1), ("b", "feddualavg", 10.0), ("c", "feddualavg", 2.0)):
        fake_record(f"s/{name}", fake_config(algo, algo__client_lr=rate))
    names = [record.folder.name for record in sort_records(load_records("s"))]
    assert names == ["c", "b", "a"]
    assert [record.folder.name for record in sort_records(load_records("s"), ["fedmid"])] == ["a", "c", "b"]
    again = fake_record("s/d", fake_config("fedmid", algo__client_lr=0.1))  # computed again by another version
    latest, note = drop_superseded(load_records("s"))
    assert [record.folder.name for record in sort_records(latest)] == ["c", "b", "d"]
    assert note.startswith("1 of 4 records have the configuration of a run that was finished or asked for later")
    assert drop_superseded(latest) == (latest, "")
    assert again == Record(Path("s/d"))
    shutil.copytree("s/c", "t/c")
    twice, note = drop_superseded([*latest, *load_records("t")])
    assert twice == latest
    assert note == "1 of 4 records are of a run that another folder holds too: left out"


@pytest.mark.slow
def test_each_data_set_is_a_table_of_its_own_judged_by_what_it_has(capsys):
    rows_without_f1 = [{k: v for k, v in row.items() if k != "support_f1"} for row in fake_rows(val_accuracy=0.5)]
    personal_rows = [row | {"personal_val_accuracy": 0.9} for row in rows_without_f1]
    fake_record("s/a", fake_config("pfedme", data="heterogeneous"), personal_rows)
    fake_record("s/b", fake_config("fedavg", data="heterogeneous"), rows_without_f1)
    for rate in (0.1, 0.2):
        fake_record(f"s/{rate}", fake_config(algo__client_lr=rate))  # as good as each other
    assert main(["results", "s"]) == 0
    out = capsys.readouterr().out
    assert out.index("by support_f1, = those tied with it;") > 0
    lines = {line.split()[-1]: line.split() for line in out.splitlines() if "done" in line}
    assert [lines[name][0] for name in ("a", "b", "0.1", "0.2")] == ["*", "*", "*", "="]
    assert "0.9" in lines["a"]
    assert "0.5" in lines["b"]  # that of its global model, by which the two compare
    assert "0.1" not in lines["a"]  # the lasso's rates are no column here
    assert main(["results", "s", "--metric", "val_accuracy"]) == 0
    out = capsys.readouterr().out
    assert "by val_accuracy;" in out
    assert "by support_f1" in out  # which the lasso has


@pytest.mark.slow
def test_a_single_run_is_drawn_in_another_format():
    fake_record("s/a")
    assert main(["plot", "s/a", "--format", "pdf"]) == 0
    assert Path("s/a/curves.pdf").read_bytes().startswith(b"%PDF")


def test_two_tables_of_ones_own_are_two_data_sets(capsys):
    for path, level in (("cost.csv", 1.0), ("stay.csv", 2.0)):
        fake_record(f"s/{path}", fake_config(data="table", data__path=path), fake_rows(level))
    assert main(["results", "s"]) == 0
    out = capsys.readouterr().out
    assert out.index("data=table data.path=cost.csv") < out.index("data=table data.path=stay.csv")
    assert sum(line.startswith("*") and "done" in line for line in out.splitlines()) == 2


@pytest.mark.undrawn
def test_points_within_the_noise_of_the_best_are_counted():
    for rate, level in ((0.1, 1.0), (0.2, 1.05), (0.4, 3.0)):
        for seed in (0, 1, 2):
            settings = fake_config("fedmid", seed=seed, algo__client_lr=rate)
            fake_record(f"s/{rate}-{seed}", settings, fake_rows(level + 0.1 * seed))
    line = "other points with medians within the best one's band over seeds, so that noise may decide: 1 of fedmid"
    assert line in best_point_notes(build_table(load_records("s")), "objective")
    assert not any("noise" in note for note in best_point_notes(build_table(load_records("s")[::3]), "objective"))


def test_a_seed_that_met_its_target_stays_where_it_ended():
    """A curve over seeds goes on to the end of the last one, and is no curve of the fastest alone."""
    fast = [{"round": r, "bytes_up": r, "objective": 1.0} for r in (0, 10)]
    slow = [{"round": r, "bytes_up": r, "objective": 9.0 - r / 10} for r in (0, 10, 20, 30)]
    aligned = align_seeds([fast, slow])
    assert [[row["round"] for row in rows] for rows in aligned] == [[0, 10, 20, 30]] * 2
    assert [row["objective"] for row in aligned[0]] == [1, 1, 1, 1]
    # a later round is where the seeds that go on are: 15 bytes, the median with an ended one, no seed has sent
    assert median_curve([fast, slow])["bytes"].tolist() == [10, 20, 30]
    uneven = [{"round": r, "objective": 0.0} for r in (0, 20, 30)]
    assert [row["round"] for row in align_seeds([slow, uneven])[0]] == [0, 20, 30]


def test_a_figure_has_the_settings_of_its_runs():
    """For the report, fcorun watch and fcorun results, which are given the folder of the figure."""
    Path("fig/runs").mkdir(parents=True)
    save_settings(Path("fig/runs"), SweepSettings(metric="val_loss", runs=("a", "../b"), conditions=("rounds",)))
    settings = load_settings("fig")
    assert (settings.metric, settings.runs, settings.conditions) == ("val_loss", ("runs/a",), ("rounds",))
    assert list_missing_runs(settings, [Path("fig")]) == ["runs/a"]
    fake_record("fig/runs/a")
    assert list_missing_runs(settings, [Path("fig")]) == []
    assert load_settings("fig", "fig/runs/a").metric == "val_loss"  # a run has no say
