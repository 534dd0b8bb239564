"""The picture of methods on graphs, drawn from curves that are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from helpers import fails

from fcorun.studies.figures.papers import races
from fcorun.studies.figures.spec import load_figure

SPECTRAL_GAPS = {"ring": 0.02, "torus": 0.3, "drawn": float("nan")}


def _rows(gaps):
    return [{"round": 5 * k, "bytes_up": 9 * k, "bytes_down": 0, "suboptimality": gap} for k, gap in enumerate(gaps)]


def _graph_of(algo):
    return "erdos_renyi" if algo.endswith("erdos_renyi") else algo.rpartition("_")[2]


def _inputs(runs):
    """Return the inputs of the picture for the gaps of runs, by algorithm and seed."""
    algos = [algo for algo, of_seeds in runs.items() for _ in of_seeds]
    column = np.array([SPECTRAL_GAPS.get(_graph_of(algo), 1.0) for algo in algos])
    inputs: Any = SimpleNamespace(
        check_one_best_point=lambda: None,
        algorithms=list(runs),
        title=lambda algo: f"{algo.rpartition('_')[0]}, and its graph",
        tuned=SimpleNamespace(frame=pd.DataFrame({"algo": algos}), column=lambda name: column, cutoff=0),
        tuned_records=[
            SimpleNamespace(rows=_rows(gaps), config={"topology": {"graph": _graph_of(algo)}})
            for algo, of_seeds in runs.items()
            for gaps in of_seeds
        ],
    )
    return inputs


def test_each_graph_is_a_curve_and_each_method_marks_the_rounds_to_the_gap():
    runs = {
        "nids_ring": [[1, 1e-4, 1e-5, 1e-7], [1, 1e-2, 1e-3, 3e-7]],
        "nids_torus": [[1, 1e-7, 1e-8, 1e-14]],
        "dual_averaging_ring": [[1, 1e-2, 1e-3, 1e-3]],
        "dual_averaging_torus": [[1, 1e-3, 1e-4, 1e-4]],
    }
    nids, dual_averaging, summary = races.draw_graphs(_inputs(runs)).axes
    assert [nids.get_title(), dual_averaging.get_title()] == ["nids", "dual_averaging"]
    ring, torus = (line.get_ydata() for line in nids.lines)
    np.testing.assert_allclose(ring, [5.05e-3, 5.05e-4, 2e-7])  # medians over two seeds, from the first round on
    np.testing.assert_allclose(torus, [1e-7, 1e-8, 1e-13])  # a floor for rounding errors
    marks = [line.get_ydata().tolist() for line in summary.lines]
    assert marks == [[15, 5]]  # dual averaging does not come to the gap
    assert summary.lines[0].get_xdata().tolist() == [0.02, 0.3]


def test_any_number_of_graphs_and_methods_is_drawn():
    names = [f"method{i}_g0" for i in range(6)] + [f"method0_g{k}" for k in range(1, 8)]
    *panels, _ = races.draw_graphs(_inputs({name: [[1, 1e-7]] for name in names})).axes
    assert [len(ax.lines) for ax in panels] == [8, 1, 1, 1, 1, 1]
    assert len({(line.get_color(), str(line.get_linestyle())) for line in panels[0].lines}) == 8


def test_a_name_without_a_graph_is_refused():
    with fails("figure.draw=graph_race needs names METHOD_GRAPH: give algo.name=nids_ring"):
        inputs = _inputs({"nids": [[1, 1e-7]]})
        inputs.tuned_records[0].config["topology"]["graph"] = "ring"
        races.draw_graphs(inputs)


def test_graphs_are_those_of_the_runs_in_the_order_of_their_spectral_gaps():
    """A name is cut at the graph of its runs, and the dotted line joins no zigzag of the order of the file."""
    names = ("nids_erdos_renyi", "nids_ring", "nids_torus", "nids_drawn")
    nids, summary = races.draw_graphs(_inputs({name: [[1, 1e-3, 1e-7]] for name in names})).axes
    assert nids.get_title() == "nids"
    assert summary.lines[0].get_xdata()[:3].tolist() == [0.02, 0.3, 1.0]
    assert summary.get_title().endswith("\nedges drawn anew, no spectral gap: drawn")
    bounds = summary.collections[0].get_segments()[0]
    np.testing.assert_array_equal(bounds, [[0.02, 6], [0.02, 10]])  # evaluated in rounds 5 and 10


def test_the_figure_is_valid():
    figure, config = load_figure("graph_race")
    assert figure.draw == "graph_race"
    assert config["topology"]["name"] == "graph"
