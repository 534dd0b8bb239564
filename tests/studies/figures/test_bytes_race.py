"""The picture of gaps against bytes, drawn from curves that are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fcorun.studies.figures.papers import races
from fcorun.studies.figures.papers.races import median_curve
from fcorun.studies.figures.spec import load_figure


def _rows(gaps, bytes_down=0):
    columns = {"bytes_down": bytes_down, "support_f1": 1.0}
    return [{"round": k, "bytes_up": 1000 * min(k, len(gaps)), "suboptimality": gap} | columns
            for k, gap in enumerate([1.0, *gaps])]  # fmt: skip


def test_each_variant_is_a_curve_of_its_method_and_a_method_of_one_round_a_mark_in_each_column():
    runs = {
        "gram": _rows([1e-15]),
        "newton": [row | {"round": 5 * row["round"]} for row in _rows([1e-1])],
        "gradient_plain": _rows([1e-1, 1e-2]),
        "ef21_topk_sparse": _rows([1e-1, 1e-3]),
        "fedcef_osp": _rows([1e-1, 1e-15, 1e-16]),
        "proxskip_qsgd": _rows([1e-4, 1e-5]),
    }
    inputs: Any = SimpleNamespace(
        check_one_best_point=lambda: None,
        algorithms=list(runs),
        title=lambda algo: algo,
        figure=SimpleNamespace(panels=["suboptimality", "support_f1"]),
        tuned=SimpleNamespace(frame=pd.DataFrame({"algo": list(runs)}), axis_label=str),
        tuned_records=[SimpleNamespace(rows=rows) for rows in runs.values()],
    )
    top = races.draw_bytes(inputs).axes[:3]
    labels = [[line.get_label() for line in ax.lines] for ax in top]
    assert labels == [
        ["gram, one round", "newton, one evaluation", "gradient_plain", "ef21_topk_sparse"],
        ["gram, one round", "newton, one evaluation", "fedcef_osp"],
        ["gram, one round", "newton, one evaluation", "proxskip_qsgd"],
    ]
    assert [line.get_linestyle() for line in top[0].lines] == ["None", "None", "-", ":"]
    assert top[1].lines[2].get_linestyle() == "-."  # no compressor of the paper
    np.testing.assert_allclose(top[1].lines[2].get_ydata(), [1e-1, 1e-13])  # ends at the first rounding error
    np.testing.assert_allclose(top[1].lines[2].get_xdata(), [1000, 2000])


def test_bytes_that_differ_by_seed_are_a_median():
    curve = median_curve([_rows([0.1]), _rows([0.1], bytes_down=10), _rows([0.1], bytes_down=500)])
    assert curve["bytes"].tolist() == [1010]


@pytest.mark.parametrize("name", ["bytes_race", "bytes_race_logistic"])
def test_every_algorithm_of_the_figure_has_a_column_and_a_dash(name):
    figure, _ = load_figure(name)
    assert figure.draw == "bytes_race"
    names = {claim.algo for claim in figure.claims} - {"gram"}
    methods = {method for methods in races._METHODS_OF_COLUMN.values() for method in methods}
    assert {name.partition("_")[0] for name in names} <= methods
    assert {name.partition("_")[2] for name in names} <= set(races._DASHES)
