"""Styles of pictures: their widths, the sizes of their texts, the fonts in their files."""

from pathlib import Path

import numpy as np
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from figure_checks import check_pdf, draw_checked_picture, draw_checked_view, legend_of
from matplotlib.text import Text

from fcorun.base.records.record import load_records
from fcorun.data.datasets.images import VoxelGrid
from fcorun.data.tables.scaling import Scaling
from fcorun.interface.cli.commands import main
from fcorun.reports.pictures import best_curves, brain, rates, run_curves, structure
from fcorun.reports.pictures import coefficient_picture as coefficients
from fcorun.reports.pictures.layout import (
    FONT_SIZE,
    STYLES,
    current_style,
    make_figure,
    render_formats,
    set_y_label,
    set_y_scale,
    style_context,
)
from fcorun.results.models.coefficients import Coefficients


def model(features=6, classes=("",), **more) -> Coefficients:
    weights = np.random.default_rng(0).standard_normal((features, len(classes)))
    return Coefficients(tuple(f"x{j}" for j in range(features)), classes, weights, np.ones(len(classes)), **more)


def voxels() -> Coefficients:
    mask = np.ones((4, 4, 3), bool)
    return model(48, ("a", "b"), grid=VoxelGrid(mask, np.diag([3.0, 3, 3, 1])))


# A picture, from what it is drawn, and the panels that stand side by side.
RUN = run_curves.RunView(fake_rows(support_precision=0.5, support_recall=0.5), "algo=feddualavg data=lasso", 1e-4)
SCALED = Scaling(np.zeros(6), np.ones(6), np.ones(6))
OF_A_RUN = {
    "curves": (run_curves.PICTURE, RUN, 3),
    "coefficients": (coefficients.PICTURE, coefficients.ModelView(model(), "a", 1e-4), 1),
    "own units": (coefficients.PICTURE, coefficients.ModelView(model(scaling=SCALED), "a", 1e-4), 1),
    "many": (coefficients.PICTURE, coefficients.ModelView(model(600), "a", 1e-4), 2),
    "classes": (coefficients.PICTURE, coefficients.ModelView(model(9, ("a", "b", "c")), "a", 1e-4), 3),
    "matrix": (coefficients.PICTURE, coefficients.ModelView(model(12, shape=(4, 3)), "a", 1e-4), 2),
    "brain": (brain.PICTURE, coefficients.ModelView(voxels(), "a", 1e-4), 2),
}
OF_A_SWEEP = {"best": (best_curves.PICTURE, 2), "rates": (rates.PICTURE, 2), "structure": (structure.PICTURE, 1)}


def drawn(kind: str, name: str):
    """Return a picture in a style, and how many panels it has side by side."""
    if kind in OF_A_RUN:
        picture, subject, across = OF_A_RUN[kind]
        return draw_checked_picture(picture, subject, name), min(across, STYLES[name].most_across)
    picture, across = OF_A_SWEEP[kind]
    figure = draw_checked_view(picture, fake_grid("s", seeds=(0,)), style=name)
    return figure, min(across, STYLES[name].most_across)


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("kind", [*OF_A_RUN, *OF_A_SWEEP])
def test_widths_and_sizes_of_texts(kind, name):
    figure, across = drawn(kind, name)
    print_style = STYLES[name]
    assert figure.get_figwidth() == pytest.approx(print_style.column_width if across == 1 else print_style.page_width)
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= FONT_SIZE * print_style.scale
    with style_context(name):
        Path("a.pdf").write_bytes(render_formats(figure, ["pdf"])["pdf"])
    assert 0.8 < check_pdf("a.pdf") / figure.get_figwidth() < 1.02  # no label sticks out


@pytest.mark.parametrize(
    ("values", "labels"),
    [([0.002, 40.0], ["0.01", "0.1", "1", "10"]), ([2e-7, 3.0], ["10^{-6}", "10^{-4}", "10^{-2}", "10^{0}"])],
)
def test_an_axis_has_one_notation(values, labels):
    figure, (ax,) = make_figure(1, 1, height=2)
    set_y_scale(ax, values)
    figure.draw_without_rendering()
    shown = [text.get_text().strip("$") for text in ax.get_yticklabels()]
    assert set(labels) <= set(shown)
    assert len({"^" in text for text in shown}) == 1


def test_a_comparison_stays_in_one_line_of_a_label():
    _figure, (ax, *_) = make_figure(4, 2, height=1.65)
    set_y_label(ax, "precision of |w$_j$| > 0.0001")
    assert ax.get_ylabel().split("\n") == ["precision of", "|w$_j$| > 0.0001"]


def test_a_style_holds_in_its_block_only():
    with style_context("slides"):
        assert current_style() is STYLES["slides"]
        with style_context("paper"):
            assert current_style() is STYLES["paper"]
        assert current_style() is STYLES["slides"]
    assert current_style() is STYLES["paper"]


@pytest.mark.slow
def test_plot_draws_again_in_a_style(capsys):
    """The style is that of the option, else that of the run, else paper."""
    fake_record("s/plain", fake_config())
    fake_record("t/new", fake_config() | {"style": "slides"})
    fake_record("u/new", fake_config() | {"width": 5.5})
    cases = [
        (["s/plain"], 7),
        (["s/plain", "--style", "slides"], 13),
        (["t/new"], 13),
        (["t/new", "--width", "3.5"], 3.5),
    ]
    for (folder, *options), width in [*cases, (["u/new"], 5.5)]:
        assert main(["plot", folder, *options, "--format", "pdf"]) == 0
        assert check_pdf(f"{folder}/curves.pdf") == pytest.approx(width, rel=0.05)
    assert capsys.readouterr().out.splitlines() == ["1 curves.pdf"] * 5


@pytest.mark.slow
def test_hidden_curves_are_named_in_the_legend():
    """Equal methods look like one line; methods that differ in one panel look like two."""
    same, other = fake_rows(), fake_rows(val_loss=3.0)
    for i, (name, rows) in enumerate((("feddualavg", same), ("fedmid", same), ("fedavg", other))):
        fake_record(f"s/{i}", fake_config(name), rows)
    texts = legend_of(draw_checked_view(best_curves.PICTURE, load_records("s")))
    assert [text for text in texts if "same line" in text] == ["fedmid (same line as feddualavg)"]
    assert "fedavg" in texts


def test_a_file_of_settings_in_the_folder_changes_nothing():
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True, "font.size": 40}):  # as matplotlibrc may say
        with style_context("paper"):
            assert not mpl.rcParams["text.usetex"]
            assert mpl.rcParams["font.size"] == FONT_SIZE
        assert mpl.rcParams["text.usetex"]
