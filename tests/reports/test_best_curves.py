"""Pictures of best points, and of structure against quality."""

from pathlib import Path

import numpy as np
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from figure_checks import draw_best_points, draw_checked_view, legend_of

from fcorun import UserError, load_records
from fcorun.base.metrics import COUNTERS
from fcorun.base.records.record import Record
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures import structure
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.layout import x_values
from fcorun.reports.pictures.problem_view import draw_sweep

# ---------------------------------------------------------------- best points


def test_panels():
    assert choose_sweep_panels(["objective", "train_loss", "val_loss"], "val_loss") == ["objective", "val_loss"]
    names = ["objective", "suboptimality", "train_loss", "val_accuracy", "val_loss", "support_f1", "density", "rank"]
    assert choose_sweep_panels(names, "support_f1") == ["suboptimality", "val_loss", "support_f1", "density", "rank"]
    assert choose_sweep_panels(["objective", "train_loss"], "objective")[1] == "train_loss"


@pytest.mark.slow
def test_best_points_side_by_side():
    figure = draw_best_points(fake_grid("s"))
    assert len(figure.axes) == 4
    assert legend_of(figure) == [
        *(
            "feddualavg",
            "fedmid",
            "median and range over 3 seeds of cohorts",
            "all: $\\eta_c$ = 0.2, $\\eta_s$ = 1$\\uparrow$",
        ),
        "$\\uparrow$, $\\downarrow$: largest, smallest tried: try beyond",
    ]
    for ax in figure.axes:
        assert [len(line.get_xdata()) for line in ax.lines] == [5, 5]
        assert len(ax.collections) == 2
        assert ax.get_xlabel() == "communication round"
    colours = {tuple(line.get_color() for line in ax.lines) for ax in figure.axes}
    assert len(colours) == 1
    assert figure.axes[3].get_ylabel() == "density:\nshare of |w$_j$| > 0.0001"


@pytest.mark.slow
def test_the_line_is_the_median_of_the_best_points_seeds():
    records = fake_grid("s", algos=("fedmid",), client=(0.2,), server=(1.0,))
    line = draw_best_points(records).axes[0].lines[0]
    middle = records[1].rows  # the levels grow with the seed
    assert line.get_ydata().tolist() == [row["objective"] for row in middle]


def test_a_record_without_rows_has_no_curve():
    records = [fake_record("s/a"), fake_record("s/b", fake_config("fedmid"))]
    Path("s/b/metrics.csv").unlink()
    assert len(draw_best_points(records).axes[0].lines) == 1
    Path("s/a/metrics.csv").unlink()
    records = [Record(Path("s/a"))]
    assert Path("s/best.png") not in draw_sweep(Path("s"), records, build_table(records))


@pytest.mark.slow
def test_curves_go_on_after_a_seed_that_stopped():
    for seed, rounds in enumerate((40, 20, 40)):
        fake_record(f"s/{seed}", fake_config(seed=seed), fake_rows(1 + seed, rounds))
    figure = draw_best_points(load_records("s"))
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 10, 20, 30, 40]


def test_a_curve_ends_at_its_first_gap_that_is_a_rounding_error():
    rows = fake_rows()
    for row, gap in zip(rows, (1, 1e-9, 0, 2e-16, -1e-16), strict=True):
        row["suboptimality"] = gap
    figure = draw_best_points([fake_record("a", table=rows)], panels=["suboptimality", "objective"])
    gaps, objectives = (ax.lines[0].get_ydata() for ax in figure.axes)
    np.testing.assert_array_equal(gaps, [1, 1e-9, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(objectives, [row["objective"] for row in rows])
    assert legend_of(figure)[-1] == "curves end at rounding errors"


def test_a_band_with_a_rounding_error_at_its_lower_edge_has_all_its_points():
    for seed, last in enumerate((1e-9, 0.0)):
        rows = fake_rows(1 + seed)
        for row, gap in zip(rows, (1, 1e-3, 1e-6, 1e-8, last), strict=True):
            row["suboptimality"] = gap
        fake_record(f"s/{seed}", fake_config(seed=seed), rows)
    ax = draw_best_points(load_records("s"), panels=["suboptimality"]).axes[0]
    assert ax.get_yscale() == "log"
    (band,) = ax.collections
    assert np.isfinite(ax.transData.transform(band.get_paths()[0].vertices)).all()


@pytest.mark.slow
def test_models_of_one_evaluation_are_level_lines():
    for seed in range(3):
        (*_, last) = fake_rows(1 + seed)
        relaxed = {name: value for name, value in last.items() if name != "objective"}
        fake_record(f"s/{seed}", fake_config(seed=seed), [relaxed])
    figure = draw_best_points(load_records("s"))
    assert figure.axes[0].lines[0].get_ydata()[0] == 2  # the median of the training losses
    assert legend_of(figure)[:1] == ["feddualavg (its solution)"]


def test_panels_that_no_run_measured_are_refused():
    with pytest.raises(UserError, match=r"figure.panels: suboptimality was not measured: .*reference=true"):
        draw_best_points([fake_record("a")], panels=["objective", "suboptimality"])


@pytest.mark.slow
def test_losses_of_two_objectives_share_no_panel():
    records = [
        fake_record("a", fake_config(objective={"name": "huber"})),
        fake_record("b", fake_config("fedmid", objective={"name": "mlp"})),
    ]
    assert [ax.get_ylabel().split()[0] for ax in draw_best_points(records).axes] == ["F1", "density:"]
    columns = ("objective", "train_loss", *COUNTERS[:4])
    few = [{key: value for key, value in row.items() if key in columns} for row in fake_rows()]
    few = [row | {"recovery_error": 1.0} for row in few]
    records = [
        fake_record(f"c/{a}", fake_config(a, objective={"name": n}), few)
        for a, n in (("fedavg", "huber"), ("fedmid", "mlp"))
    ]
    (ax,) = draw_best_points(records, "recovery_error").axes
    assert ax.get_ylabel().startswith("‖w")


@pytest.mark.slow
def test_one_seed_has_no_band():
    figure = draw_best_points(fake_grid("s", seeds=(0,)))
    assert legend_of(figure) == [text for text in legend_of(figure) if "seeds" not in text]
    assert not figure.axes[0].collections


@pytest.mark.slow
def test_a_baseline_is_a_level_line():
    records = [fake_record("a"), fake_record("b", fake_config("centralized"), fake_rows(0.5, rounds=700, silent=True))]
    figure = draw_best_points(records)
    level = next(line for line in figure.axes[0].lines if len(set(line.get_ydata())) == 1)
    assert level.get_ydata()[0] == 0.5
    assert figure.axes[0].get_xlim()[1] < 50
    assert legend_of(figure) == ["feddualavg", "centralized (its solution)"]
    ends = [fake_rows(level, rounds=n, silent=True) for level, n in ((0.5, 700), (0.7, 400))]  # one seed ends earlier
    records = [fake_record(f"c{seed}", fake_config("centralized", seed=seed), rows) for seed, rows in enumerate(ends)]
    assert draw_best_points(records).axes[0].lines[0].get_ydata()[0] == pytest.approx(0.6)


@pytest.mark.slow
def test_best_points_against_bytes():
    records = [fake_record("a"), fake_record("b", fake_config("fedmid"), fake_rows(rounds=4000, every=1000))]
    records.append(fake_record("c", fake_config("centralized"), fake_rows(0.5, rounds=700, silent=True)))
    for ax in draw_best_points(records, x_axes=["bytes"]).axes:
        assert [line.get_xdata()[-1] for line in ax.lines[:2]] == pytest.approx([640, 64_000])
        assert ax.get_xlabel() == "communication, up and down"
        assert len(set(ax.lines[2].get_ydata())) == 1  # the baseline's solution, as against rounds


def test_bytes_are_the_four_counters():
    row = {"bytes_up": 1, "bytes_down": 2, "edge_bytes_up": 4, "edge_bytes_down": 8, "total_bytes_sent": 100.0}
    assert x_values([row, {"bytes_up": 1, "bytes_down": 2}], "bytes", "a") == [15, 3]


@pytest.mark.slow
def test_seeds_are_matched_by_round_and_placed_at_their_median():
    for seed, pace in enumerate((1.0, 2.0, 7.0)):
        table = [row | {"seconds": pace * row["round"]} for row in fake_rows(1.0 + seed)]
        fake_record(f"s/{seed}", fake_config(seed=seed), table[: 5 - seed])
    ax = draw_best_points(load_records("s"), x_axes=["seconds"]).axes[0]
    x = ax.lines[0].get_xdata().tolist()
    assert x == [0, 20, 40, 45, 45]  # at the pace of the second one, then of those that go on
    assert ax.lines[0].get_ydata().tolist()[:3] == [row["objective"] for row in fake_rows(2.0)[:3]]
    assert ax.collections[0].get_datalim(ax.transData).x1 == 45


@pytest.mark.slow
def test_a_column_for_each_x():
    records = [
        fake_record("a", table=fake_rows(grads=10**6)),
        fake_record("b", fake_config("fedmid"), fake_rows(2.0, grads=10**5)),
    ]
    shown, xs = ["objective", "support_f1"], ["rounds", "bytes", "grad_evals", "seconds"]
    figure = draw_best_points(records, panels=shown, x_axes=xs)  # which sees to it that no label covers another
    below = [ax.get_xlabel().replace("\n", " ") for ax in figure.axes]
    assert below[:4] == [""] * 4
    assert below[4:] == [
        *("communication round", "communication, up and down"),
        *("gradients (examples)", "time (s)"),
    ]
    y_labels = [ax.get_ylabel() for ax in figure.axes]
    assert [bool(label) for label in y_labels] == [True, False, False, False] * 2
    for i, (ax, x) in enumerate(zip(figure.axes, xs * 2, strict=True)):
        assert ax.get_shared_y_axes().joined(ax, figure.axes[i // 4 * 4])
        assert ax.get_shared_x_axes().joined(ax, figure.axes[4 + i % 4])
        assert ax.lines[0].get_xdata()[-1] == pytest.approx(x_values(fake_rows(grads=10**6), x, "a")[-1])
    assert figure.axes[0].get_xlim() != figure.axes[1].get_xlim()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_columns_of_fewer_x(count):
    figure = draw_best_points(fake_grid("s"), panels=["objective"], x_axes=["rounds", "bytes", "seconds"][:count])
    assert len(figure.axes) == count
    assert all(ax.get_xlabel() for ax in figure.axes)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 7])
def test_best_points_of_many_algorithms(count):
    names = ["feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "fedavg", "fedavg_subgradient", "mine"][:count]
    assert (
        len(legend_of(draw_best_points(fake_grid("s", algos=names, client=(0.1, 0.2), server=(0.3, 1.0))))) == count + 3
    )


@pytest.mark.slow
@pytest.mark.parametrize(("more", "count"), [({}, 4), ({"rank": 3.0}, 5), ({"val_accuracy": 0.5, "rank": 3.0}, 5)])
def test_pages_of_other_problems(more, count):
    assert (
        len(
            draw_best_points(
                [
                    fake_record("a", table=fake_rows(**more)),
                    fake_record("b", fake_config("fedmid"), fake_rows(2, **more)),
                ]
            ).axes
        )
        == count
    )


@pytest.mark.slow
def test_only_the_objective():
    plain = [{k: v for k, v in row.items() if k not in ("val_loss", "support_f1", "density")} for row in fake_rows()]
    records = [fake_record("a", table=plain)]
    assert len(draw_best_points(records, "objective").axes) == 2
    assert draw_checked_view(structure.PICTURE, records, "objective") is None


# ---------------------------------------------------------------- structure


@pytest.mark.slow
def test_structure_against_quality():
    figure = draw_checked_view(structure.PICTURE, fake_grid("s"))
    (ax,) = figure.axes
    assert [len(c.get_offsets()) for c in ax.collections] == [4, 4, 2]  # points that are done, and the rings
    assert legend_of(figure) == ["feddualavg", "fedmid", "best by support_f1"]
    assert "> 0.0001" in ax.get_xlabel()
    assert "last 20 rounds" in ax.get_xlabel()


@pytest.mark.slow
def test_low_rank_has_rank():
    figure = draw_checked_view(
        structure.PICTURE,
        [fake_record("a", table=fake_rows(rank=3.0)), fake_record("b", fake_config("fedmid"), fake_rows(rank=4.0))],
    )
    assert figure.axes[0].get_xlabel().startswith("rank: singular values > 0.0001")
