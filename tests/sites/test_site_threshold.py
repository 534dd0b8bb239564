"""Thresholds chosen over three sites, against the rule on the pooled rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from scored_sites import ILL, compare, of_all_clients, plan_of, pool_splits, sites_of
from site_tables import frames

from fcorun.experiment.threshold_rule import ThresholdRule
from fcorun.results.models.predict import predict
from fcorun.results.models.predictions import predict_splits, tabulate_scores
from fcorun.results.scores.ranking import EDGES, count_scores, spread_cells
from fcorun.results.site_scores import choose_edge
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.policy import Policy
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.tables.table_description import merge_small_cells
from fcorun.sites.transport.connections import InProcessConnections


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sensitivity:0.9", "specificity:0.8", "youden", 0.4])
def test_a_threshold_is_chosen_over_sites_and_used(tmp_path, rule):
    plan = plan_of(*ILL, f"threshold={rule}")
    sites = sites_of(plan, Policy(min_cell=1))
    kept = {}

    class Connections(InProcessConnections):
        def send(self, request):
            if request.name == "result":
                kept["data"] = pool_splits(sites)
            return super().send(request)

    record = run_plan(plan, Connections(sites), tmp_path / "out")
    section = record.summary["threshold"]
    assert section["rule"] == rule
    assert section["chosen_on"] == ("" if rule == 0.4 else "validation")
    predictions = predict_splits(plan.experiment.objective, kept["data"], record.solution)
    chosen = [replace(of_split, threshold=section["shared"]) for of_split in predictions]
    compare(record.scores, of_all_clients(pd.DataFrame(tabulate_scores(chosen))))  # counts are those at the threshold
    (held_out,) = (of_split for of_split in predictions if of_split.split == "validation")
    probability = not_none(held_out.probability)
    exact, _ = ThresholdRule.parse(rule).choose(held_out.y, probability, "rows")
    scores = record.scores.set_index("set").loc["validation"]
    if rule == 0.4:
        assert section["shared"] == 0.4
    elif rule == "youden":
        flagged = probability >= exact
        best = flagged[held_out.y == 1].mean() - flagged[held_out.y == 0].mean()
        assert best - 0.15 <= scores["sensitivity"] + scores["specificity"] - 1 <= best
    else:
        (kind, least), flagged = rule.split(":"), probability >= exact
        flagged_of = {k: flagged[held_out.y == k] for k in (0, 1)}
        exact_rates = {"specificity": 1 - flagged_of[0].mean(), "sensitivity": flagged_of[1].mean()}
        other = {"specificity": "sensitivity", "sensitivity": "specificity"}[kind]
        assert scores[kind] >= float(least)
        assert exact_rates[other] - 0.3 <= scores[other] <= exact_rates[other] + 1e-12  # the exact rule has the best
    predictions, _ = predict(record, next(iter(frames().values())))
    assert ((predictions["probability_yes"] >= section["shared"]) == (predictions["prediction"] == "yes")).all()


def test_an_edge_is_the_best_that_counts_make_certain():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 400)
    score = rng.normal(y, 1.0).round(4)
    positive, negative = (np.stack([count_scores(score[y == k])] * 2) for k in (1, 0))
    hits = np.array([(score[y == 1] >= edge).sum() for edge in EDGES])
    passed = np.array([(score[y == 0] < edge).sum() for edge in EDGES])
    sensitivity, specificity = hits / 400, passed / 400
    for text, expected in {
        "youden": EDGES[::-1][np.argmax((hits + passed)[::-1])],
        "sensitivity:0.9": EDGES[sensitivity >= 0.9].max(),
        "specificity:0.75": EDGES[specificity >= 0.75].min(),
    }.items():
        rule = ThresholdRule.parse(text)
        assert choose_edge(rule, positive, negative, "rows") == (expected, "")
        spread = []
        for counts in (positive, negative):
            bins = np.repeat(np.arange(len(counts[0])), counts[0])
            spread.append(np.stack(spread_cells(merge_small_cells(bins, len(counts[0]), 5, Patients()))))
        more, fewer = spread
        edge, _ = choose_edge(rule, more, fewer, "rows")
        reached = {"sensitivity": sensitivity, "specificity": specificity}.get(rule.kind)
        if reached is not None:
            assert reached[edge == EDGES] >= rule.value
    seven_flagged = np.zeros_like(negative)
    seven_flagged[:, [0, -1]] = 93, 7  # 1 - 7 / 100 is less than 0.93 in floating point
    assert choose_edge(ThresholdRule.parse("specificity:0.93"), positive, seven_flagged, "rows") == (
        EDGES[0],
        "",
    )
    above = np.zeros_like(negative)
    above[:, -1] = 400
    edge, warning = choose_edge(ThresholdRule.parse("specificity:1.0"), positive, above, "rows")
    assert edge == 0.0
    assert "is reached with certainty at no edge" in warning
    assert "needs both classes" in choose_edge(rule, positive, 0 * negative, "rows")[1]


@pytest.mark.slow
def test_a_site_flags_rows_at_edges_of_bins_alone(tmp_path):
    plan = plan_of(*ILL, "threshold=youden")
    sites = sites_of(plan)

    class Forged(InProcessConnections):
        def send(self, request):
            if request.name == "scores":
                request = replace(request, message=replace(request.message, about={"edge": 0.01}))
            return super().send(request)

    with fails("does not fit the plan"):
        run_plan(plan, Forged(sites), tmp_path / "out")
