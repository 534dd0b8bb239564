"""Pictures of sweeps: which there are, and what is in them."""

import io
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from fabricate import config, grid, record, rows
from helpers import small
from PIL import Image

from fcorun import UserError, load_records, run
from fcorun.records.formats import read_rows
from fcorun.reports.pictures import curves
from fcorun.reports.pictures.axis import along, unit
from fcorun.reports.pictures.curves import COLOURS, draw_curves
from fcorun.reports.pictures.page import STYLE, content, look, looks_of, words
from fcorun.reports.pictures.rates import cells, draw_rates, scale
from fcorun.reports.pictures.sweep import draw_best, draw_structure, draw_sweep, panels
from fcorun.reports.results import points, table


def figure(draw, records, metric="f1", *more):
    """A figure of one data set, its texts all inside the page."""
    frame = table(records)
    with mpl.rc_context(STYLE):
        found = draw(frame, metric, looks_of(frame), *more)
        if found is not None:
            found.canvas.draw()
            assert not outside(found)
            assert content(found).startswith(b"\x89PNG")
    return found


def best_of(records, metric="f1", *more):
    return figure(draw_best, records, metric, records, read_rows, *more)


def outside(figure):
    """The texts that are cut by the edge of the page, or that another one covers."""
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    texts = [t for t in figure.findobj(mpl.text.Text) if t.get_visible() and t.get_text().strip()]
    boxes = []
    for text in texts:
        if text.axes is None or text.axes.axison:
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    ticks = {id(t) for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for t in ticks_outside(axis)}
    kept = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if id(t) not in ticks]
    cut = [name for name, box in kept if not (page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1
                                              and page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1)]  # fmt: skip
    over = [(a, b) for i, (a, one) in enumerate(kept) for b, two in kept[:i] if one.overlaps(two)]
    return cut + over


def ticks_outside(axis):
    """Labels of ticks that lie beyond the axis, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        if not low <= tick.get_loc() <= high:
            yield from (tick.label1, tick.label2)


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# ---------------------------------------------------------------- files


def test_files_of_a_sweep():
    there = grid("s")
    written = draw_sweep(Path("s"), there, table(there))
    assert [str(path) for path in written] == ["s/rates.png", "s/best.png", "s/structure.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert not list(Path("s").glob(".*"))


def test_each_data_set_has_its_own():
    for data in ("lasso", "lasso_8"):
        for rate in (0.1, 0.2):
            record(f"s/{data}{rate}", config(data=data, algo__client_lr=rate))
    there = load_records("s")
    names = {path.name for path in draw_sweep(Path("s"), there, table(there))}
    assert names == {f"{kind}-{data}.png" for kind in ("rates", "best", "structure") for data in ("lasso", "lasso_8")}


def test_pictures_that_no_longer_hold_go():
    there = grid("s", seeds=(0,))
    draw_sweep(Path("s"), there, table(there))
    one = there[:1]
    assert [path.name for path in draw_sweep(Path("s"), one, table(one))] == ["best.png", "structure.png"]
    assert not Path("s/rates.png").exists()


def test_runs_that_all_failed_have_no_pictures():
    there = [record("s/a", status="failed"), record("s/b", config("fedmid"), status="running")]
    assert draw_sweep(Path("s"), there, table(there)) == []


def test_a_sweep_is_drawn_fast():
    there = grid(
        "s", client=(0.1, 0.12, 0.14, 0.2, 0.22, 0.24, 0.5), server=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), seeds=(0,)
    )
    frame = table(there)
    draw_sweep(Path("s"), there, frame)
    begun = time.process_time()
    draw_sweep(Path("s"), there, frame)
    assert time.process_time() - begun < 4  # 0.8 seconds where nothing else runs


# ---------------------------------------------------------------- one run


def colours(png):
    """The colours of a picture, as texts."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return {f"#{r:02X}{g:02X}{b:02X}" for _, (r, g, b) in picture.getcolors(1000)}


def test_curves_show_every_line():
    assert {"#FFFFFF", *COLOURS[:4], "#000000"} <= colours(draw_curves(rows(precision=0.5, recall=0.5), "a", 1e-4))


@pytest.mark.parametrize("values", [[1.0], [1.0, np.inf], [1.0, 0.0, -1.0], [0.0, 0.0], [1e-300, 1e300], [5.0] * 3])
def test_curves_of_odd_values(values):
    table = [{"round": i, "bytes_up": 1, "objective": v, "train_loss": v, "rank": v} for i, v in enumerate(values)]
    assert COLOURS[0] in colours(draw_curves(table, "$a_b$", 1e-4))  # a single evaluation is a dot


def test_curves_of_nothing():
    assert draw_curves([], "a", 1e-4).startswith(b"\x89PNG")


# ---------------------------------------------------------------- what curves are drawn against


def test_along():
    table = rows(grads=3)
    assert along(table, "rounds", "a") == [0, 10, 20, 30, 40]
    assert along(table, "bytes", "a") == [0, 160, 320, 480, 640]
    assert along(table, "grad_evals", "a") == [0, 30, 60, 90, 120]
    assert along(table, "seconds", "a") == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_was_not_counted_is_refused():
    said = "x=grad_evals was not counted in mine; choose x as one of rounds, bytes, seconds, or run it again with force"
    with pytest.raises(UserError, match=said):
        along(rows(), "grad_evals", "mine")
    with pytest.raises(UserError, match=r"x=grad_evals was not counted in feddualavg: eta_s = 1;"):
        best_of(grid("s", client=(0.1,)), "f1", None, ["grad_evals"])


@pytest.mark.parametrize(
    ("x", "most", "factor", "label"),
    [
        ("rounds", 1e7, 1, "communication round"),
        ("seconds", 5000, 1, "time (s)"),
        ("bytes", 0, 1, "communication, up and down (B)"),
        ("bytes", 999, 1, "communication, up and down (B)"),
        ("bytes", 1e6, 1e6, "communication, up and down (MB)"),
        ("bytes", 9e17, 1e12, "communication, up and down (TB)"),
        ("grad_evals", 12, 1, "gradient evaluations (examples)"),
        ("grad_evals", 4.1e6, 1e6, "gradient evaluations (10$^6$ examples)"),
    ],
)  # fmt: skip
def test_units(x, most, factor, label):
    assert unit(x, most) == (factor, label)


@pytest.mark.parametrize(
    ("table", "x", "label", "places"),
    [
        (rows(), "rounds", "communication round", [0, 10, 20, 30, 40]),
        (rows(), "bytes", "communication, up and down (B)", [0, 160, 320, 480, 640]),
        (rows(grads=100), "grad_evals", "gradient evaluations (10$^3$ examples)", [0, 1, 2, 3, 4]),
        (rows(silent=True), "rounds", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True), "bytes", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True), "grad_evals", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True, grads=2), "grad_evals", "gradient evaluations (examples)", [0, 20, 40, 60, 80]),
        (rows(silent=True), "seconds", "time (s)", [0, 1, 2, 3, 4]),
        (rows()[:1], "bytes", "communication, up and down (B)", [0]),
        ([], "grad_evals", "gradient evaluations (examples)", []),
    ],
)
def test_curves_against(monkeypatch, table, x, label, places):
    seen = []

    class Page(curves._Page):
        def __init__(self, chosen, across):
            super().__init__(chosen, across)
            seen.append(across)

        def draw(self, rows, along, title):
            seen.append(along)
            return super().draw(rows, along, title)

    monkeypatch.setattr(curves, "_page", Page)
    assert draw_curves(table, "a", 1e-4, x).startswith(b"\x89PNG")
    assert seen == [label, pytest.approx(places)]


def test_a_run_is_drawn_against_what_it_was_told():
    record = run(small("x=bytes", "rounds=2"))
    table, label = read_rows(record.folder), record.status["label"]
    written = (record.folder / "curves.png").read_bytes()
    assert written == draw_curves(table, label, 1e-4, "bytes") != draw_curves(table, label, 1e-4)


# ---------------------------------------------------------------- rates


def test_heat_maps():
    found = figure(draw_rates, grid("s"))
    *maps, bar = found.axes
    assert [ax.get_title() for ax in maps] == ["feddualavg", "fedmid"]
    assert [t.get_text() for t in maps[0].get_xticklabels()] == ["0.1", "0.2", "0.5"]
    assert [t.get_text() for t in maps[0].get_yticklabels()] == ["0.3", "1"]
    assert maps[0].get_xlabel() == "client learning rate $\\eta_c$"
    assert maps[0].get_ylabel() == "server learning rate $\\eta_s$"
    assert bar.get_ylabel() == "F1 of |w$_j$| > 0.0001\nmean of last 20 rounds"
    assert legend_of(found) == ["best", "diverged with any of 3 seeds", "median of 3 seeds"]
    picture = maps[0].images[0].get_array()
    assert (picture[:, 2] == picture[0, 2]).all()  # the rate that diverges, grey
    crosses = [line for line in maps[0].lines if line.get_marker() == "x"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses] == [(2, 0), (2, 1)]
    rings = [line for line in maps[0].lines if line.get_marker() == "o"]
    assert {(line.get_xdata()[0], line.get_ydata()[0]) for line in rings} == {(1, 1)}


def test_what_was_not_run_is_blank():
    there = [r for r in grid("s", seeds=(0,)) if not r.folder.name.startswith("feddualavg-0-0.1-1.0")]
    picture = figure(draw_rates, there).axes[0].images[0].get_array()
    assert picture[1, 0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_heat_maps_of_some_algorithms(count):
    names = ("feddualavg", "fedmid", "fedavg", "fedmid_osp", "fedavg_subgradient")[:count]
    found = figure(draw_rates, grid("s", algos=names, seeds=(0,), client=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 0.2)))
    assert len(found.axes) == count + 1


def test_other_keys_are_at_their_best():
    for strength, level in ((0.1, 2.0), (0.2, 1.0)):
        for rate in (0.1, 0.2):
            for server in (0.3, 1.0):
                settings = config(algo__client_lr=rate, algo__server_lr=server, reg__strength=strength)
                record(f"s/{strength}{rate}{server}", settings, rows(level * rate))
    frame = table(load_records("s"))
    found = cells(points(frame, "f1"), "feddualavg", "f1", ["algo.client_lr", "algo.server_lr"])
    assert {row["reg.strength"] for row in found.values()} == {0.2}
    assert legend_of(figure(draw_rates, load_records("s")))[-1] == "each at its best reg.strength"


@pytest.mark.parametrize("servers", [(0.3, 1.0), (1.0,)])
def test_a_long_legend_fits_a_column(servers):
    for seed in range(3):
        for strength in (0.1, 0.2):
            for rate in (0.1, 0.5):
                for server in servers:
                    settings = config(algo__client_lr=rate, algo__server_lr=server, reg__strength=strength, seed=seed)
                    status = "diverged" if rate > 0.4 else "done"
                    record(f"s/{strength}{rate}{server}{seed}", settings, rows(strength), status)
    found = figure(draw_rates, load_records("s"))  # which sees to it that nothing is cut
    assert found.get_figwidth() < 3.5
    assert len(legend_of(found)) >= 4


def test_one_rate_is_a_line_an_algorithm():
    found = figure(draw_rates, grid("s", server=(1.0,)))
    (ax,) = found.axes
    assert legend_of(found) == [
        *("feddualavg", "fedmid", "best", "diverged with any of 3 seeds", "median and 10-90 % over 3 seeds"),
    ]
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
    assert [line.get_xdata().tolist() for line in lines] == [[0.1, 0.2], [0.1, 0.2]]
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert {line.get_xdata()[0] for line in crosses} == {0.5}
    bottom, top = ax.get_ylim()
    lowest = min(line.get_ydata().min() for line in lines)
    assert all(bottom + line.get_ydata()[0] * (top - bottom) < lowest for line in crosses)  # none among the values
    assert len(ax.collections) == 2  # bands


def test_losses_have_their_crosses_above():
    (ax,) = figure(draw_rates, grid("s", server=(1.0,)), "objective").axes
    assert all(line.get_ydata()[0] > 0.8 for line in ax.lines if line.get_marker() == "x")


def test_a_rate_for_each_algorithm_is_a_panel_for_each_rate():
    for rate in (0.1, 0.2):
        record(f"s/a{rate}", config("fedmid", algo__client_lr=rate))
        record(f"s/b{rate}", config("fedavg", algo__server_lr=rate))
    found = figure(draw_rates, load_records("s"))
    assert [ax.get_xlabel().split()[0] for ax in found.axes] == ["client", "server"]


def test_no_rate_no_picture():
    there = [record("a"), record("b", config("fedmid", algo__server_lr=0.3))]  # differ between algorithms only
    assert figure(draw_rates, there) is None


def test_the_scale_leaves_out_what_all_but_diverged():
    values = np.array([1.0, 1.1, 1.5, 2.0, 3.0, 1e19])
    assert scale(values, False) == (1.0, 3.0)
    assert scale(values[:5], False) == (1.0, 3.0)
    assert scale(np.array([0.0, 0.5, 1.0]), True) == (0.0, 1.0)
    assert scale(np.array([]), True) == (0, 1)
    for same in (2.0, 0.0, -1.0):
        low, high = scale(np.array([same, same]), same < 1)
        assert low < same < high


# ---------------------------------------------------------------- best points


def test_panels():
    assert panels(["objective", "train_loss", "val_loss"]) == [("objective", True), ("val_loss", True)]
    names = ["objective", "suboptimality", "train_loss", "val_accuracy", "val_loss", "f1", "density", "rank"]
    assert [name for name, _ in panels(names)] == ["suboptimality", "val_accuracy", "f1", "density", "rank"]
    assert panels(["objective", "train_loss"])[1] == ("train_loss", True)


def test_best_points_side_by_side():
    found = best_of(grid("s"))
    assert len(found.axes) == 4
    assert legend_of(found) == [
        "feddualavg: $\\eta_c$ = 0.2, $\\eta_s$ = 1", "fedmid: $\\eta_c$ = 0.2, $\\eta_s$ = 1",
        "median and 10-90 % over 3 seeds",
    ]  # fmt: skip
    for ax in found.axes:
        assert [len(line.get_xdata()) for line in ax.lines] == [5, 5]
        assert len(ax.collections) == 2
        assert ax.get_xlabel() == "communication round"
    colours = {tuple(line.get_color() for line in ax.lines) for ax in found.axes}
    assert len(colours) == 1
    assert found.axes[3].get_ylabel() == "density: share of |w$_j$| > 0.0001"


def test_the_line_is_the_median_of_the_best_points_seeds():
    there = grid("s", algos=("fedmid",), client=(0.2,), server=(1.0,))
    line = best_of(there).axes[0].lines[0]
    middle = read_rows(there[1].folder)  # the levels grow with the seed
    assert line.get_ydata().tolist() == [row["objective"] for row in middle]


def test_one_seed_has_no_band():
    found = best_of(grid("s", seeds=(0,)))
    assert legend_of(found) == [text for text in legend_of(found) if "seeds" not in text]
    assert not found.axes[0].collections


def test_a_baseline_is_a_level_line():
    there = [record("a"), record("b", config("centralized"), rows(0.5, rounds=700, silent=True))]
    found = best_of(there)
    level = next(line for line in found.axes[0].lines if len(set(line.get_ydata())) == 1)
    assert level.get_ydata()[0] == 0.5
    assert found.axes[0].get_xlim()[1] < 50
    assert legend_of(found) == ["feddualavg", "centralized (its solution)"]


def test_best_points_against_bytes():
    there = [record("a"), record("b", config("fedmid"), rows(rounds=4000, every=1000))]
    there.append(record("c", config("centralized"), rows(0.5, rounds=700, silent=True)))
    for ax in best_of(there, "f1", None, ["bytes"]).axes:
        assert [line.get_xdata()[-1] for line in ax.lines[:2]] == pytest.approx([0.64, 64.0])
        assert ax.get_xlabel() == "communication, up and down (kB)"
        assert len(set(ax.lines[2].get_ydata())) == 1  # the baseline's solution, as against rounds


def test_seeds_are_matched_by_round_and_placed_at_their_median():
    for seed, pace in enumerate((1.0, 2.0, 7.0)):
        table = [row | {"seconds": pace * row["round"]} for row in rows(1.0 + seed)]
        record(f"s/{seed}", config(seed=seed), table[: 5 - seed])
    ax = best_of(load_records("s"), "f1", None, ["seconds"]).axes[0]
    assert ax.lines[0].get_xdata().tolist() == [0, 20, 40]  # the rounds that all have, at the pace of the second
    assert ax.lines[0].get_ydata().tolist() == [row["objective"] for row in rows(2.0)[:3]]
    assert ax.collections[0].get_datalim(ax.transData).x1 == 40


def test_bands_are_in_the_unit_of_the_axis():
    ax = best_of(grid("s", client=(0.1,), server=(1.0,)), "f1", None, ["bytes"]).axes[0]
    there = [record(f"t/{seed}", config(seed=seed), rows(1.0 + seed, rounds=4000, every=1000)) for seed in range(3)]
    wide = best_of(there, "f1", None, ["bytes"]).axes[0]
    for one, most in ((ax, 640), (wide, 64)):
        assert [band.get_datalim(one.transData).x1 for band in one.collections] == [most] * len(one.collections)
    assert (ax.get_xlabel()[-3:], wide.get_xlabel()[-4:]) == ("(B)", "(kB)")


def test_a_column_for_each_x():
    there = [record("a", table=rows(grads=10**6)), record("b", config("fedmid"), rows(2.0, grads=10**5))]
    shown, xs = [("objective", True), ("f1", False)], ["rounds", "bytes", "grad_evals", "seconds"]
    found = best_of(there, "f1", shown, xs)  # which sees to it that no label covers another
    below = [ax.get_xlabel().replace("\n", " ") for ax in found.axes]
    assert below[:4] == [""] * 4
    assert below[4:] == [
        *("communication round", "communication, up and down (B)"),
        *("gradient evaluations (10$^6$ examples)", "time (s)"),
    ]
    beside = [ax.get_ylabel() for ax in found.axes]
    assert [bool(label) for label in beside] == [True, False, False, False] * 2
    for place, (ax, x) in enumerate(zip(found.axes, xs * 2, strict=True)):
        assert ax.get_shared_y_axes().joined(ax, found.axes[place // 4 * 4])
        assert ax.get_shared_x_axes().joined(ax, found.axes[4 + place % 4])
        factor = {"grad_evals": 1e6}.get(x, 1)
        assert ax.lines[0].get_xdata()[-1] * factor == pytest.approx(along(rows(grads=10**6), x, "a")[-1])
    assert found.axes[0].get_xlim() != found.axes[1].get_xlim()


@pytest.mark.parametrize("count", [1, 3])
def test_columns_of_fewer_x(count):
    found = best_of(grid("s"), "f1", [("objective", True)], ["rounds", "bytes", "seconds"][:count])
    assert len(found.axes) == count
    assert all(ax.get_xlabel() for ax in found.axes)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_best_points_of_many_algorithms(count):
    names = ["feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "fedavg", "fedavg_subgradient", "mine"][:count]
    assert len(legend_of(best_of(grid("s", algos=names, client=(0.1, 0.2), server=(0.3, 1.0))))) == count + 1


@pytest.mark.parametrize(("more", "count"), [({}, 4), ({"rank": 3.0}, 5), ({"val_accuracy": 0.5, "rank": 3.0}, 5)])
def test_pages_of_other_problems(more, count):
    assert len(best_of([record("a", table=rows(**more)), record("b", config("fedmid"), rows(2, **more))]).axes) == count


def test_only_the_objective():
    plain = [{k: v for k, v in row.items() if k not in ("val_loss", "f1", "density")} for row in rows()]
    there = [record("a", table=plain)]
    assert len(best_of(there, "objective").axes) == 2
    assert figure(draw_structure, there, "objective") is None


# ---------------------------------------------------------------- structure


def test_structure_against_quality():
    found = figure(draw_structure, grid("s"))
    (ax,) = found.axes
    assert [len(c.get_offsets()) for c in ax.collections] == [4, 4, 2]  # points that are done, and the rings
    assert legend_of(found) == ["feddualavg", "fedmid", "best by f1"]
    assert "> 0.0001" in ax.get_xlabel()
    assert "last 20 rounds" in ax.get_xlabel()


def test_low_rank_has_rank():
    found = figure(draw_structure, [record("a", table=rows(rank=3.0)), record("b", config("fedmid"), rows(rank=4.0))])
    assert found.axes[0].get_xlabel().startswith("rank: singular values > 0.0001")


# ---------------------------------------------------------------- words and looks


def test_words():
    assert words("f1", 1e-3) == "F1 of |w$_j$| > 0.001"
    assert words("f1", None) == "F1 of |w$_j$| > cutoff"
    assert words("groups", 1e-3, tail=5) == "groups\nmean of last 5 rounds"


def test_looks_differ():
    frame = table([record(f"r{i:02}", config(f"algo{i:02}")) for i in range(14)])
    looks = looks_of(frame)
    assert len({(look.colour, str(look.dash)) for look in looks.values()}) == 14


def test_eight_looks_differ_in_print_without_colours():
    eight = [look(i) for i in range(8)]
    assert len({one.marker for one in eight}) == 8
    assert len({str(one.dash) for one in eight[:7]}) == 7
    first, last = (np.dot(mpl.colors.to_rgb(one.colour), (0.3, 0.59, 0.11)) for one in (eight[1], eight[7]))
    assert eight[1].dash == eight[7].dash
    assert first - last > 0.2
