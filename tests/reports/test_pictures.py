"""Pictures of sweeps: their files and their curve styles."""

from pathlib import Path

import numpy as np
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from figure_checks import draw_checked_view, legend_of
from helpers import not_none
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fcorun import load_records
from fcorun.reports.build_table import build_table
from fcorun.reports.page.build_page import collect_curves
from fcorun.reports.pictures.layout import curve_style, set_y_scale
from fcorun.reports.pictures.picture import find_pictures
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of, draw_sweep, group_by_problem
from fcorun.reports.pictures.structure import collect_points
from fcorun.reports.run_table import RunTable

# ---------------------------------------------------------------- files


@pytest.mark.slow
def test_files_of_a_sweep():
    records = fake_grid("s")
    written = draw_sweep(Path("s"), records, build_table(records))
    assert [str(path) for path in written] == ["s/rates.png", "s/best.png", "s/structure.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert not list(Path("s").glob(".*"))


@pytest.mark.slow
def test_each_data_set_has_its_own():
    for data in ("lasso", "lasso_8"):
        for rate in (0.1, 0.2):
            fake_record(f"s/{data}{rate}", fake_config(data=data, algo__client_lr=rate))
    records = load_records("s")
    names = {path.name for path in draw_sweep(Path("s"), records, build_table(records))}
    assert names == {f"{kind}-{data}.png" for kind in ("rates", "best", "structure") for data in ("lasso", "lasso_8")}


def test_numbers_that_differ_in_a_late_digit_are_two_problems():
    for scale in (1.0000001, 1.0000002):
        fake_record(f"s/{scale}", fake_config(data__scale=scale))
    assert list(group_by_problem(build_table(load_records("s")), "objective")) == ["scale=1.0000001", "scale=1.0000002"]


def test_names_of_problems_may_be_long(monkeypatch):
    for k in range(2):
        fake_record(f"s/{k}", fake_config(data__ignore=[f"column{i}" for i in range(30 + k)]))
    monkeypatch.setattr("fcorun.reports.pictures.picture.Picture.render", lambda *_, **__: {"png": b"picture"})
    records = load_records("s")
    written = draw_sweep(Path("s"), records, build_table(records))
    assert len(set(written)) == 6
    assert all(path.exists() and len(path.name) < 120 for path in written)


@pytest.mark.parametrize("picture", find_pictures(ProblemView), ids=lambda picture: picture.name)
def test_names_are_shown_as_they_are(picture):
    for algo in ("_a", "_b"):
        for rate in (0.1, 0.2):
            fake_record(f"s/{algo}{rate}", fake_config(algo, algo__client_lr=rate, algo__title=f"{algo} $x_$"))
    figure = draw_checked_view(picture, load_records("s"), problem="target=$a_$ ignore=$b")
    entries = " ".join(legend_of(figure))
    assert "\u200b_a \\$x_\\$" in entries
    assert "\u200b_b \\$x_\\$" in entries
    assert "target=\\$a_\\$ ignore=\\$b" in entries


@pytest.mark.slow
def test_a_data_set_without_the_metric_is_drawn_by_what_it_has():
    for rate in (0.1, 0.2):
        fake_record(f"s/a{rate}", fake_config(data="lasso", algo__client_lr=rate), fake_rows(val_accuracy=0.7))
        fake_record(f"s/b{rate}", fake_config(data="lasso_8", algo__client_lr=rate))
    records = load_records("s")
    names = {path.name for path in draw_sweep(Path("s"), records, build_table(records), "val_accuracy")}
    assert {"rates-lasso.png", "rates-lasso_8.png"} <= names


@pytest.mark.slow
def test_structure_and_quality_are_of_the_same_models():
    """The support of the shared model is no quality of personal models that were measured in training only."""
    personal_rows = [row | {"personal_train_accuracy": 0.9, "personal_density": 0.5} for row in fake_rows()]
    records = [
        fake_record("s/a", fake_config("pfedme", data="heterogeneous"), personal_rows),
        fake_record("s/b", fake_config(data="heterogeneous")),
    ]
    assert [path.name for path in draw_sweep(Path("s"), records, build_table(records), "personal_train_accuracy")] == [
        "best.png"
    ]


def test_quality_is_the_same_function_for_all_points():
    """Losses of different objectives share no axis in the picture and on the page."""
    rows = [{key: value for key, value in row.items() if key != "support_f1"} for row in fake_rows(val_accuracy=0.7)]
    records = [fake_record(f"s/{name}", fake_config(objective={"name": name}), rows) for name in ("huber", "mlp")]
    runs = build_table(records)
    styles = curve_styles_of(runs)
    assert not_none(collect_points(ProblemView(runs, records, "val_accuracy", styles))).quality == "val_accuracy"
    curves = not_none(collect_curves(records, runs, {"": [0, 1]}, styles, metric="val_accuracy", best=[]))
    assert curves["usual_metrics"] == ["val_accuracy", "density"]


@pytest.mark.slow
def test_pictures_that_no_longer_hold_go():
    records = fake_grid("s", seeds=(0,))
    draw_sweep(Path("s"), records, build_table(records))
    one = records[:1]
    assert [path.name for path in draw_sweep(Path("s"), one, build_table(one))] == ["best.png", "structure.png"]
    assert not Path("s/rates.png").exists()


def test_runs_that_all_failed_have_no_pictures():
    records = [fake_record("s/a", status="failed"), fake_record("s/b", fake_config("fedmid"), status="running")]
    assert draw_sweep(Path("s"), records, build_table(records)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("format", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_other_formats(format, begins):
    records = fake_grid("s", seeds=(0,))
    written = draw_sweep(Path("s"), records, build_table(records), format=format)
    assert {path.name for path in written} == {f"{kind}.{format}" for kind in ("rates", "best", "structure")}
    assert all(path.read_bytes().startswith(begins) for path in written)


# ---------------------------------------------------------------- words and looks


def test_words():
    assert RunTable(None, cutoff=1e-3).axis_label("support_f1") == "F1 of |w$_j$| > 0.001"
    assert RunTable(None).axis_label("support_f1", tail=True) == "F1 of |w$_j$| > cutoff"
    assert RunTable(None, cutoff=1e-3, tail_rounds=5).axis_label("groups", tail=True) == "groups\nmean of last 5 rounds"


def test_curve_styles_differ():
    looks = curve_styles_of(build_table([fake_record(f"r{i:02}", fake_config(f"algo{i:02}")) for i in range(14)]))
    assert len({(look.colour, str(look.line_dash)) for look in looks.values()}) == 14


def test_eight_curve_styles_differ_in_print_without_colours():
    eight = [curve_style(i) for i in range(8)]
    assert len({one.marker for one in eight}) == 8
    assert len({str(one.line_dash) for one in eight[:7]}) == 7
    first, last = (np.dot(to_rgb(one.colour), (0.3, 0.59, 0.11)) for one in (eight[1], eight[7]))
    assert eight[1].line_dash == eight[7].line_dash
    assert first - last > 0.2


@pytest.mark.parametrize(("values", "scale"), [([4, 1, 0.3, -2], "linear"), ([40, 1, 1e-4, -4e-5], "log")])
def test_values_below_zero_by_more_than_rounding_stay_on_the_axis(values, scale):
    """A logarithmic axis would hide the better half of a negative log density."""
    ax = Figure().subplots()
    set_y_scale(ax, values)
    assert ax.get_yscale() == scale
