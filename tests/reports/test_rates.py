"""Pictures of rates: heat maps and lines."""

import numpy as np
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from figure_checks import draw_checked_view, legend_of

from fcorun import load_records
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures import rates
from fcorun.reports.pictures.rates import best_by_rates, colour_range


@pytest.mark.slow
def test_heat_maps():
    figure = draw_checked_view(rates.PICTURE, fake_grid("s"))
    *maps, bar = figure.axes
    assert [ax.get_title() for ax in maps] == ["feddualavg", "fedmid"]
    assert [t.get_text() for t in maps[0].get_xticklabels()] == ["0.1", "0.2", "0.5"]
    assert [t.get_text() for t in maps[0].get_yticklabels()] == ["0.3", "1"]
    assert maps[0].get_xlabel() == "client learning rate $\\eta_c$"
    assert maps[0].get_ylabel() == "server learning rate $\\eta_s$"
    assert bar.get_ylabel() == "F1 of |w$_j$| > 0.0001\nmean of last 20 rounds"
    assert legend_of(figure) == [
        *("best", "diverged with any of 3 seeds of cohorts", "median of 3 seeds of cohorts"),
    ]
    picture = maps[0].images[0].get_array()
    assert (picture[:, 2] == picture[0, 2]).all()  # the rate that diverges, grey
    crosses = [line for line in maps[0].lines if line.get_marker() == "x"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses] == [(2, 0), (2, 1)]
    rings = [line for line in maps[0].lines if line.get_marker() == "o"]
    assert {(line.get_xdata()[0], line.get_ydata()[0]) for line in rings} == {(1, 1)}


@pytest.mark.slow
def test_what_was_not_run_is_blank():
    records = [r for r in fake_grid("s", seeds=(0,)) if not r.folder.name.startswith("feddualavg-0-0.1-1.0")]
    picture = draw_checked_view(rates.PICTURE, records).axes[0].images[0].get_array()
    assert picture[1, 0].tolist() == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_heat_maps_of_some_algorithms(count):
    names = ("feddualavg", "fedmid", "fedavg", "fedmid_osp", "fedavg_subgradient")[:count]
    figure = draw_checked_view(
        rates.PICTURE, fake_grid("s", algos=names, seeds=(0,), client=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 0.2))
    )
    assert len(figure.axes) == count + 1


@pytest.mark.slow
def test_points_that_are_no_grid_stand_where_they_are():
    for rate, server, level in ((1e-4, 0.3, 0.1), (2e-3, 7.0, 1.0), (0.03, 1.0, 3.0), (0.5, 2.0, None)):
        settings = fake_config(algo__client_lr=rate, algo__server_lr=server)
        fake_record(f"s/{rate}", settings, fake_rows(level or 9.0), "done" if level else "diverged")
    ax, _ = draw_checked_view(rates.PICTURE, load_records("s")).axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert len(ax.images) == 0
    assert {"0.5", "1", "2"} <= {t.get_text() for t in ax.get_yticklabels()}
    marks = [(line.get_marker(), line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines]
    done = [("o", 1e-4, 0.3), ("o", 2e-3, 7.0), ("o", 0.03, 1.0)]
    assert marks == [*done, ("x", 0.5, 2.0), ("o", 1e-4, 0.3)]  # at last a ring


@pytest.mark.slow
def test_other_keys_are_at_their_best():
    for strength, level in ((0.1, 2.0), (0.2, 1.0)):
        for rate in (0.1, 0.2):
            for server in (0.3, 1.0):
                settings = fake_config(algo__client_lr=rate, algo__server_lr=server, reg__strength=strength)
                fake_record(f"s/{strength}{rate}{server}", settings, fake_rows(level * rate))
    best = best_by_rates(
        build_table(load_records("s")).fold_seeds("support_f1"),
        "feddualavg",
        True,
        ["algo.client_lr", "algo.server_lr"],
    )
    assert {row["reg.strength"] for row in best.values()} == {0.2}
    assert legend_of(draw_checked_view(rates.PICTURE, load_records("s")))[-1] == "each at its best reg.strength"


@pytest.mark.slow
@pytest.mark.parametrize("servers", [(0.3, 1.0), (1.0,)])
def test_a_long_legend_fits_a_column(servers):
    for seed in range(3):
        for strength in (0.1, 0.2):
            for rate in (0.1, 0.5):
                for server in servers:
                    settings = fake_config(
                        algo__client_lr=rate, algo__server_lr=server, reg__strength=strength, seed=seed
                    )
                    status = "diverged" if rate > 0.4 else "done"
                    fake_record(f"s/{strength}{rate}{server}{seed}", settings, fake_rows(strength), status)
    figure = draw_checked_view(rates.PICTURE, load_records("s"))  # which sees to it that nothing is cut
    assert figure.get_figwidth() <= 3.5
    assert len(legend_of(figure)) >= 3


@pytest.mark.slow
def test_one_rate_is_a_line_an_algorithm():
    figure = draw_checked_view(rates.PICTURE, fake_grid("s", server=(1.0,)))
    (ax,) = figure.axes
    assert legend_of(figure) == [
        *(
            "feddualavg",
            "fedmid",
            "best",
            "diverged with any of 3 seeds of cohorts",
            "median and range over 3 seeds of cohorts",
        ),
    ]
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
    assert [line.get_xdata().tolist() for line in lines] == [[0.1, 0.2], [0.1, 0.2]]
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert {line.get_xdata()[0] for line in crosses} == {0.5}
    assert sorted({line.get_ydata()[0] for line in crosses}) == [1.04, 1.1]  # above the panel, none among the values
    assert len(ax.collections) == 2  # bands


@pytest.mark.slow
def test_a_rate_for_each_algorithm_is_a_panel_for_each_rate():
    for rate in (0.1, 0.2):
        fake_record(f"s/a{rate}", fake_config("fedmid", algo__client_lr=rate))
        fake_record(f"s/b{rate}", fake_config("fedavg", algo__server_lr=rate))
    figure = draw_checked_view(rates.PICTURE, load_records("s"))
    assert [ax.get_xlabel().split()[0] for ax in figure.axes] == ["client", "server"]


def test_a_ring_is_in_the_legend_if_each_algorithm_has_another_rate():
    for value in (0.1, 0.2, 0.4):
        for algo, rate, other in (("fedmid", "client_lr", "server_lr"), ("fedavg", "server_lr", "client_lr")):
            settings = fake_config(algo)
            settings["algo"][rate] = value
            del settings["algo"][other]
            fake_record(f"s/{algo}{value}", settings, fake_rows(max(value, 0.2)))
    figure = draw_checked_view(rates.PICTURE, load_records("s"), "objective")
    for ax in figure.axes:
        assert len([line for line in ax.lines if line.get_markeredgecolor() == "black"]) == 2
    assert {"best", "tied with it"} <= set(legend_of(figure))


def test_no_rate_no_picture():
    records = [
        fake_record("a"),
        fake_record("b", fake_config("fedmid", algo__server_lr=0.3)),
    ]  # differ between algorithms only
    assert draw_checked_view(rates.PICTURE, records) is None


def test_the_scale_leaves_out_what_all_but_diverged():
    values = np.array([1.0, 1.1, 1.5, 2.0, 3.0, 1e19])
    assert colour_range(values, False) == (1.0, 3.0)
    assert colour_range(values[:5], False) == (1.0, 3.0)
    assert colour_range(np.array([0.0, 0.5, 1.0]), True) == (0.0, 1.0)
    assert colour_range(np.array([]), True) == (0, 1)
    for same in (2.0, 0.0, -1.0):
        low, high = colour_range(np.array([same, same]), same < 1)
        assert low < same < high


@pytest.mark.slow
def test_an_algorithm_with_one_number_has_a_line_beside_the_maps_of_others():
    fake_grid("s", algos=("feddualavg",), seeds=(0,))
    for value in (0.1, 0.2):
        settings = fake_config("apfl", algo__client_lr=value)
        del settings["algo"]["server_lr"]
        fake_record(f"s/apfl{value}", settings, fake_rows(1 / value))
    heat_map, lines, _ = draw_checked_view(rates.PICTURE, load_records("s")).axes
    assert heat_map.get_title() == "feddualavg"
    assert "apfl" in lines.get_legend_handles_labels()[1]


def test_points_of_numbers_that_never_meet_are_no_map():
    for value in (0.1, 0.2):
        fake_record(f"s/c{value}", fake_config(algo__client_lr=value, algo__server_lr="auto"))
        fake_record(f"s/s{value}", fake_config(algo__client_lr="auto", algo__server_lr=value))
    assert draw_checked_view(rates.PICTURE, load_records("s")) is None


@pytest.mark.slow
def test_a_rate_that_is_auto_is_a_level():
    """A rate of auto has no position on the axis: if it is best, no ring is in the legend."""
    for rate, level in ((0.1, 3.0), (0.2, 2.0), ("auto", 1.0)):
        fake_record(f"s/{rate}", fake_config("fedmid", algo__client_lr=rate), fake_rows(level))
    shown = draw_checked_view(rates.PICTURE, load_records("s"), "objective")
    (ax,) = shown.axes
    assert any("auto (best)" in str(line.get_label()) for line in ax.lines)
    assert "best" not in legend_of(shown)


def test_a_search_over_numbers_with_zero_has_a_linear_axis():
    """The points, which are no grid, are drawn at their values, those at 0 too."""
    for place in range(9):
        fake_record(f"s/{place}", fake_config(algo__client_lr=0.1 * 2**place, algo__server_lr=1.0 * place), fake_rows())
    ax = draw_checked_view(rates.PICTURE, load_records("s")).axes[0]
    assert 0 in [y for line in ax.lines for y in line.get_ydata()]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
