"""The choice of best points: the same everywhere, with ties, edges of the grid, and problems that do not compare."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from drawn import figure, legend_of
from fabricate import config, grid, record, rows, show, shown

from fcorun import load_records
from fcorun.cli.commands import main
from fcorun.records.record import Record
from fcorun.records.sweeps import MARK, Asked, keep, kept
from fcorun.reports.collect import latest, ordered, table
from fcorun.reports.edges import edges
from fcorun.reports.pictures import best, rates
from fcorun.reports.pictures.draw import draw_sweep
from fcorun.reports.pictures.page import look
from fcorun.reports.pictures.view import looks_of
from fcorun.reports.results import report
from fcorun.reports.spread import agree, band, over

# ---------------------------------------------------------------- the edge of the grid


def line(levels: dict, key="algo__client_lr", root="s", **more):
    """A record for each value of a key, whose objective comes to a level; one of level None diverged."""
    for value, level in levels.items():
        status = "done" if level else "diverged"
        record(f"{root}/{value}", config(**{key: value}, **more), rows(level or 1.0), status)
    return load_records(root)


@pytest.mark.undrawn
@pytest.mark.parametrize(
    ("levels", "said"),
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
def test_a_best_point_at_the_edge_says_so(levels, said):
    runs = table(line(levels, algo="fedmid"))
    assert [str(edge) for edge in edges(runs, "objective")] == said
    text, _ = shown(report, Path("s"), load_records("s"), metric="objective")
    assert [" ".join(text.split()).count(sentence) for sentence in said] == [1] * len(said)
    assert ("tried" in text) == bool(said)


def test_pictures_say_what_is_at_the_edge():
    there = line({0.1: 3.0, 0.2: 2.0, 0.4: 1.0})
    assert legend_of(figure(rates.draw, there))[-1] == "best is the largest $\\eta_c$, try larger: feddualavg"
    assert legend_of(figure(best.draw, there)) == [
        "feddualavg: $\\eta_c$ = 0.4$\\uparrow$",
        "$\\uparrow$, $\\downarrow$: largest, smallest tried: try beyond",
    ]


def test_the_command_says_it_too(capsys):
    line({0.1: 3.0, 0.2: 2.0, 0.4: 1.0})
    assert main(["results", "s"]) == 0
    assert "best algo.client_lr=0.4 is the largest tried: try larger" in capsys.readouterr().out


# ---------------------------------------------------------------- ties


def tied():
    """Three points as good as each other, the second of the lowest objective, and a worse one."""
    for rate, level, objective in ((0.1, 1.0, 3.0), (0.2, 1.0, 1.0), (0.4, 1.0, 2.0), (0.8, 4.0, 0.5)):
        record(f"s/{rate}", config(algo__client_lr=rate), [r | {"objective": objective} for r in rows(level)])
    return load_records("s")


def test_ties_are_told_and_the_ring_is_where_the_table_says():
    there = tied()
    (row,) = table(there).best("support_f1").to_dict("records")
    assert (row["algo.client_lr"], sorted(row["tied"])) == (0.2, [[0], [2]])
    text, _ = shown(show, table(there), None)
    assert "tied with" in " ".join(text.split())
    for records in (there, there[::-1]):  # in whatever order they come
        found = figure(rates.draw, records)
        assert max((mark.get_markersize(), mark.get_xdata()[0]) for mark in found.axes[0].lines)[1] == 0.2
        assert "tied with it" in legend_of(found)
        assert legend_of(figure(best.draw, records))[0].endswith("(tied with 2)")


def test_gaps_are_tied_to_the_rounding_of_the_objective():
    """A gap is the difference of two objectives of 50, which float32 knows to 5e-6."""
    for rate, gap in ((0.1, 4e-7), (0.2, -2e-6), (0.4, 1e-3)):
        record(f"s/{rate}", config(algo__client_lr=rate), rows(50.0, suboptimality=gap))
    (best,) = table(load_records("s")).best("suboptimality").to_dict("records")
    assert len(best["tied"]) == 1


def test_no_tie_no_word():
    text, _ = shown(show, table(grid("s")), None)
    assert "tied" not in text


# ---------------------------------------------------------------- objectives of different strengths


def strengths(**metrics):
    for strength in (0.1, 0.2):
        for rate, level in ((0.1, 2.0), (0.2, 1.0)):
            settings = config(reg__strength=strength, algo__client_lr=rate)
            record(f"s/{strength}-{rate}", settings, [row | metrics for row in rows(level * strength)])
    return load_records("s")


def test_objectives_of_two_strengths_are_not_compared():
    runs = table(strengths())
    found = runs.best("objective")
    assert found["reg.strength"].tolist() == [0.1, 0.2]
    assert found["algo.client_lr"].tolist() == [0.2, 0.2]
    assert len(runs.best("val_loss")) == 1
    text, _ = shown(show, runs, "objective")
    assert "points are compared within one reg.strength only" in text
    written = draw_sweep(Path("s"), load_records("s"), runs, "objective")
    assert [path.name for path in written] == [
        *("rates-strength=0.1.png", "best-strength=0.1.png", "structure-strength=0.1.png"),
        *("rates-strength=0.2.png", "best-strength=0.2.png", "structure-strength=0.2.png"),
    ]


def test_they_are_not_drawn_on_one_axis():
    for algo, strength in (("feddualavg", 0.1), ("fedmid", 0.2)):
        record(f"s/{algo}", config(algo, reg__strength=strength))
    labels = [ax.get_ylabel() for ax in figure(best.draw, load_records("s")).axes]
    assert labels[:2] == ["training loss", "validation loss"]


def test_they_judge_by_default_only_where_nothing_else_does():
    plain = [{k: v for k, v in row.items() if k in ("round", "seconds", "bytes_up", "bytes_down", "objective")}
             for row in rows()]  # fmt: skip
    more = [row | {"suboptimality": 1.0, "recovery_error": 2.0} for row in plain]
    for strength in (0.1, 0.2):
        record(f"a/{strength}", config(reg__strength=strength), plain)
        record(f"b/{strength}", config(reg__strength=strength), more)
    assert table(load_records("a")).chosen(None) == "objective"
    assert table(load_records("b")).chosen(None) == "recovery_error"


def test_data_that_differ_are_problems_of_their_own():
    for nonzeros in (8, 16):
        record(f"s/{nonzeros}", config(data__nonzeros=nonzeros), rows(nonzeros))
    assert table(load_records("s")).best()["data.nonzeros"].tolist() == [16, 8]  # as the records come


# ---------------------------------------------------------------- bands


def test_few_seeds_have_a_range_and_many_a_band():
    few, many = np.arange(3.0), np.arange(11.0)
    assert band(few) == (0, 1, 2)
    assert band(many) == (1, 5, 9)
    assert (over([3]), over([3, 5]), over([12])) == (
        *("range over 3 seeds", "range over 3 or 5 seeds", "10-90 % over 12 seeds"),
    )
    assert agree([1.0, 1.0 + 1e-9])
    assert not agree([1.0])
    assert not agree([1.0, 1.01])


def test_seeds_that_agree_have_no_band():
    for seed in range(3):
        record(f"s/{seed}", config(seed=seed))
    text, _ = shown(show, table(load_records("s")), None)
    assert "seeds agree" in text
    found = figure(best.draw, load_records("s"))
    assert not found.axes[0].collections
    assert legend_of(found)[-1] == "no band: seeds agree"


# ---------------------------------------------------------------- what a folder remembers


def test_a_folder_remembers_what_was_asked_for():
    assert kept("nowhere") == Asked()
    Path("s").mkdir()
    (Path("s") / MARK).touch()  # one of before
    assert kept("s") == Asked()
    asked = Asked("val_loss", 20, "bytes", ("fedmid", "feddualavg"), ("a", "b"))
    keep(Path("s"), asked)
    assert kept("s") == asked
    assert kept("s").unless(metric="objective", x=None).metric == "objective"
    Path("t").mkdir()
    assert kept("s", "t").metric is None  # they do not agree


def test_results_and_plot_use_it(capsys, monkeypatch):
    monkeypatch.setattr("fcorun.cli.commands.plot._draw", lambda *_: True)  # curves of each record are not looked at
    grid("s", seeds=(0,))
    keep(Path("s"), Asked("val_loss", 10, "bytes", ("fedmid",)))
    assert main(["results", "s"]) == 0
    assert "best point of each algorithm by val_loss; mean over the last 10 rounds" in capsys.readouterr().out
    assert main(["plot", "s"]) == 0
    drawn = Path("s/best.png").read_bytes()
    assert main(["plot", "s", "--metric", "val_loss", "--tail-rounds", "10", "--x", "bytes"]) == 0
    assert Path("s/best.png").read_bytes() == drawn
    assert main(["plot", "s", "--x", "rounds"]) == 0
    assert Path("s/best.png").read_bytes() != drawn


def test_looks_stay_when_a_folder_grows():
    grid("s", algos=("fedmid", "feddualavg"), seeds=(0,))
    runs = table(load_records("s"))
    assert looks_of(runs, ("fedavg", "fedmid", "feddualavg")) == {"fedmid": look(1), "feddualavg": look(2)}
    assert looks_of(runs, ("fedmid",)) == {"fedmid": look(0), "feddualavg": look(1)}


def test_records_are_in_the_order_of_what_was_varied():
    for name, algo, rate in (("a", "fedmid", 0.1), ("b", "feddualavg", 10.0), ("c", "feddualavg", 2.0)):
        record(f"s/{name}", config(algo, algo__client_lr=rate))
    names = [found.folder.name for found in ordered(load_records("s"))]
    assert names == ["c", "b", "a"]
    assert [found.folder.name for found in ordered(load_records("s"), ["fedmid"])] == ["a", "c", "b"]
    again = record("s/d", config("fedmid", algo__client_lr=0.1))  # computed again by another version
    found, aside = latest(load_records("s"))
    assert [each.folder.name for each in ordered(found)] == ["c", "b", "d"]
    assert aside.startswith("1 of 4 records are of other code or other data")
    assert latest(found) == (found, "")
    assert again == Record(Path("s/d"))
    shutil.copytree("s/c", "t/c")
    twice, aside = latest([*found, *load_records("t")])
    assert twice == found
    assert aside == "1 of 4 records are of a run that another folder holds too: left out"


def test_each_data_set_is_a_table_of_its_own_judged_by_what_it_has(capsys):
    own = [{k: v for k, v in row.items() if k != "support_f1"} for row in rows(val_accuracy=0.5)]
    record("s/a", config("pfedme", data="heterogeneous"), [r | {"personal_val_accuracy": 0.9} for r in own])
    record("s/b", config("fedavg", data="heterogeneous"), own)
    for rate in (0.1, 0.2):
        record(f"s/{rate}", config(algo__client_lr=rate))  # as good as each other
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


def test_a_single_run_is_drawn_in_another_format():
    record("s/a")
    assert main(["plot", "s/a", "--format", "pdf"]) == 0
    assert Path("s/a/curves.pdf").read_bytes().startswith(b"%PDF")


def test_two_tables_of_ones_own_are_two_data_sets(capsys):
    for path, level in (("cost.csv", 1.0), ("stay.csv", 2.0)):
        record(f"s/{path}", config(data="table", data__path=path), rows(level))
    assert main(["results", "s"]) == 0
    out = capsys.readouterr().out
    assert out.index("data=table data.path=cost.csv") < out.index("data=table data.path=stay.csv")
    assert sum(line.startswith("*") and "done" in line for line in out.splitlines()) == 2
