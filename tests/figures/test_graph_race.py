"""The picture of methods on graphs, drawn from curves that are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from fcorun.figures.papers import graph_race
from fcorun.figures.spec import load_figure

SPECTRAL_GAPS = {"ring": 0.02, "torus": 0.3}


def _rows(gaps):
    return [{"round": 5 * k, "bytes_up": 9 * k, "bytes_down": 0, "suboptimality": gap} for k, gap in enumerate(gaps)]


def test_each_graph_is_a_curve_and_each_method_marks_the_rounds_to_the_gap():
    runs = {
        "nids_ring": [[1, 1e-4, 1e-5, 1e-7], [1, 1e-2, 1e-3, 3e-7]],
        "nids_torus": [[1, 1e-7, 1e-8, 1e-14]],
        "dual_averaging_ring": [[1, 1e-2, 1e-3, 1e-3]],
        "dual_averaging_torus": [[1, 1e-3, 1e-4, 1e-4]],
    }
    algos = [algo for algo, of_seeds in runs.items() for _ in of_seeds]
    column = np.array([SPECTRAL_GAPS[algo.rpartition("_")[2]] for algo in algos])
    inputs: Any = SimpleNamespace(
        check_one_best_point=lambda: None,
        algorithms=list(runs),
        title=lambda algo: f"{algo.rpartition('_')[0]}, and its graph",
        tuned=SimpleNamespace(frame=pd.DataFrame({"algo": algos}), column=lambda name: column, cutoff=0),
        tuned_records=[SimpleNamespace(rows=_rows(gaps)) for of_seeds in runs.values() for gaps in of_seeds],
    )
    nids, dual_averaging, summary = graph_race.draw_graphs(inputs).axes
    assert [nids.get_title(), dual_averaging.get_title()] == ["nids", "dual_averaging"]
    ring, torus = (line.get_ydata() for line in nids.lines)
    np.testing.assert_allclose(ring, [5.05e-3, 5.05e-4, 2e-7])  # medians over two seeds, from the first round on
    np.testing.assert_allclose(torus, [1e-7, 1e-8, 1e-13])  # a floor for rounding errors
    marks = [line.get_ydata().tolist() for line in summary.lines]
    assert marks == [[15, 5]]  # dual averaging does not come to the gap
    assert summary.lines[0].get_xdata().tolist() == [0.02, 0.3]


def test_the_figure_is_valid():
    figure, config = load_figure("graph_race")
    assert figure.draw == "graph_race"
    assert config["topology"]["name"] == "graph"
