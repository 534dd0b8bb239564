"""Pictures of one run: its curves and their x axes."""

import numpy as np
import pytest
from fake_records import fake_grid, fake_rows
from figure_checks import draw_best_points, draw_checked_picture
from helpers import small

from fcorun import UserError, run
from fcorun.base.metrics import CATALOGUE, Metric
from fcorun.reports.pictures import run_curves
from fcorun.reports.pictures.layout import COLOURS, style_context, x_values
from fcorun.reports.pictures.run_curves import RunView

# ---------------------------------------------------------------- one run


def drawn(rows, label="a", cutoff=1e-4, x="rounds", metrics=CATALOGUE):
    """Return the figure of a run after a check that its texts are inside the page."""
    return draw_checked_picture(run_curves.PICTURE, RunView(rows, label, cutoff, x, metrics))


def lines_of(figure):
    """Return the label of each axis, and the names of its lines in the legend."""
    return {ax.get_ylabel(): [t.get_text() for t in ax.get_legend().get_texts()] if ax.get_legend() else []
            for ax in figure.axes}  # fmt: skip


@pytest.mark.slow
def test_curves_show_every_line():
    figure = drawn(fake_rows(support_precision=0.5, support_recall=0.5), "algo=feddualavg data=lasso")
    assert lines_of(figure) == {
        "objective\nΦ(w) = F(w) + ψ(w)": [],
        "mean loss": ["training", "validation"],
        "support {|w$_j$| > 0.0001}": ["F1", "precision", "recall", "density"],
    }
    assert [line.get_color() for line in figure.axes[2].lines] == list(COLOURS[:4])
    assert figure.axes[2].get_ylim() == (-0.03, 1.03)
    assert figure.get_suptitle() == "algo=feddualavg data=lasso"


def test_a_gap_is_drawn_down_to_its_last_digit():
    rows = [row | {"gap": gap} for row, gap in zip(fake_rows(), (30.0, 2e-4, 6e-16), strict=False)]
    with style_context("paper"):
        low, high = run_curves.draw(RunView(rows, "a", 1e-4)).axes[0].get_ylim()
    assert low < 6e-16 < 30 < high


@pytest.mark.slow
def test_curves_of_other_problems():
    figure = drawn(fake_rows(train_accuracy=0.5, val_accuracy=0.4, suboptimality=0.1))
    assert list(lines_of(figure))[:2] == ["gap  Φ(w) - Φ*", "accuracy"]
    plain = [
        {name: value for name, value in row.items() if name != "support_f1"}
        for row in fake_rows(rank=3, recovery_error=2.0)
    ]
    assert list(lines_of(drawn(plain)))[2:] == [
        *("density:\nshare of |w$_j$| > 0.0001", "rank:\nsingular values > 0.0001", "‖w - w$_{\\mathrm{true}}$‖$_2$"),
    ]


@pytest.mark.slow
def test_curves_of_a_metric_that_the_objective_declares():
    metrics = CATALOGUE.with_metrics([Metric("val_deviance", "validation deviance", higher=False, log=True)])
    table = fake_rows(val_deviance=2.0, groups=3.0)
    assert list(lines_of(drawn(table, metrics=metrics)))[3:] == ["validation deviance"]
    assert len(drawn(table).axes) == 3


@pytest.mark.slow
def test_a_long_title_has_lines():
    label = "algo=feddualavg_osp data=logistic_synthetic algo.client_lr=0.001 algo.server_lr=0.3 reg.strength=0.1"
    assert drawn(fake_rows(), label).get_suptitle() == label
    assert "\n" in drawn(fake_rows(), label + " " + label).get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize("values", [[1.0], [1.0, np.inf], [1.0, 0.0, -1.0], [0.0, 0.0], [1e-300, 1e300], [5.0] * 3])
def test_curves_of_odd_values(values):
    table = [{"round": i, "bytes_up": 1, "objective": v, "train_loss": v, "rank": v} for i, v in enumerate(values)]
    figure = drawn(table, "$a_b$")
    alone = sum(map(np.isfinite, values)) == 1
    assert figure.axes[0].lines[0].get_marker() == ("." if alone else "None")  # a single value is a dot


@pytest.mark.slow
@pytest.mark.parametrize(("format", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_formats_of_curves(format, begins):
    for table in ([], fake_rows()):
        assert run_curves.PICTURE.render(RunView(table, "a", 1e-4), [format])[format].startswith(begins)


# ---------------------------------------------------------------- what curves are drawn against


def test_along():
    table = fake_rows(grads=3)
    assert x_values(table, "rounds", "a") == [0, 10, 20, 30, 40]
    assert x_values(table, "bytes", "a") == [0, 160, 320, 480, 640]
    assert x_values(table, "grad_evals", "a") == [0, 30, 60, 90, 120]
    assert x_values(table, "seconds", "a") == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_was_not_counted_is_refused():
    message = "x=grad_evals was not counted in mine; choose x as one of rounds, bytes, seconds, or run it again"
    with pytest.raises(UserError, match=message):
        x_values(fake_rows(), "grad_evals", "mine")
    with pytest.raises(UserError, match=r"x=grad_evals was not counted in feddualavg;"):
        draw_best_points(fake_grid("s", client=(0.1,)), x_axes=["grad_evals"])


@pytest.mark.parametrize(("x", "tick"), [("bytes", "4 MB"), ("grad_evals", "5 k")])
def test_large_numbers_have_prefixes(x, tick):
    rows = [{"round": r, "objective": 1.0, "bytes_up": 1e6 * r, "grad_evals": 2e3 * r} for r in range(5)]
    (ax,) = drawn(rows, x=x).axes
    ax.figure.draw_without_rendering()
    assert tick in [label.get_text() for label in ax.get_xticklabels()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "x", "label", "places"),
    [
        (fake_rows(), "rounds", "communication round", [0, 10, 20, 30, 40]),
        (fake_rows(), "bytes", "communication, up and down", [0, 160, 320, 480, 640]),
        (fake_rows(grads=100), "grad_evals", "gradients (examples)", [0, 1000, 2000, 3000, 4000]),
        (fake_rows(silent=True), "rounds", "iteration", [0, 10, 20, 30, 40]),
        (fake_rows(silent=True), "bytes", "iteration", [0, 10, 20, 30, 40]),
        (fake_rows(silent=True), "grad_evals", "iteration", [0, 10, 20, 30, 40]),
        (fake_rows(silent=True, grads=2), "grad_evals", "gradients (examples)", [0, 20, 40, 60, 80]),
        (fake_rows(silent=True), "seconds", "time (s)", [0, 1, 2, 3, 4]),
        (fake_rows()[:1], "bytes", "communication, up and down", [0]),
        ([], "grad_evals", "gradients (examples)", []),
    ],
)
def test_curves_against(table, x, label, places):
    for ax in drawn(table, x=x).axes:
        assert ax.get_xlabel().replace("\n", " ") == label
        assert ax.lines[0].get_xdata() == pytest.approx(places)


@pytest.mark.slow
def test_a_run_is_drawn_against_the_axis_of_its_configuration():
    record = run(small("x=bytes", "rounds=2"))
    table, label = record.rows, record.status["label"]
    written = (record.folder / "curves.png").read_bytes()
    assert written == run_curves.PICTURE.render(RunView(table, label, 1e-4, "bytes"))["png"]
    assert written != run_curves.PICTURE.render(RunView(table, label, 1e-4))["png"]


def test_a_baseline_of_two_evaluations_has_no_curve():
    """A line from its start to its end would show iterates that nobody computed."""
    row = {"seconds": 0.0, "bytes_up": 0.0, "grad_evals": 0, "prox_evals": 0, "objective": 1.0}
    rows = [row | {"round": iteration} for iteration in (0, 6, 13)]
    assert run_curves.PICTURE.render(RunView([rows[0], rows[2]], "a", 1e-4)) == {}
    (line,) = run_curves.draw(RunView([rows[0], rows[2]], "a", 1e-4)).axes[0].lines  # by Record.plot
    assert (line.get_linestyle(), line.get_marker()) == ("None", ".")
    of_rounds = [rows[0], rows[2] | {"grad_evals": 9}]
    assert all(run_curves.PICTURE.render(RunView(table, "a", 1e-4)) for table in (rows, of_rounds))
