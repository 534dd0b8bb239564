"""Scores over three sites in this process, and those of the same model on the pooled rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
from helpers import composed
from site_tables import frames, save

from fcorun.data.rows.rows import Rows
from fcorun.experiment.prepare import prepare
from fcorun.results.models.predictions import predict_splits, tabulate_scores
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections

ILL = ("objective=logistic", "data.target=ill", "data.task=binary", "data.positive=yes")
WARD = ("objective=logistic", "data.target=ward", "data.task=multiclass", "data.only=[age,dose]", "algo=feddualavg")
COST = ("data.target=cost",)
DITTO = ("algo=ditto", "algo.client_lr=0.1", "algo.lam=0.5")
LOCAL = ("algo=local", "algo.client_lr=0.1")
OWN = ("data.only=[age,dose]", "data.validation=0.3")


def plan_of(*overrides, secure=None):
    shared = ("data=sites", "data.standardize=pooled", "algo=newton", "precision=float64", "rounds=3", "reg=l1")
    experiment = prepare(composed(*shared, "reg.strength=0.05", *OWN, *overrides))
    return Plan.from_experiment(experiment, secure)


def sites_of(plan, policy=None):
    return {name: Site(plan, options, policy or Policy()) for name, options in save(frames()).items()}


def pool_splits(sites):
    """Return all rows of the sites' splits in one place; clients are the sites."""
    first = next(iter(sites.values())).own_data
    splits = {}
    for split in ("train", "validation"):
        parts = [getattr(site.own_data, split) for site in sites.values()]
        columns = {}
        for name in Rows.__dataclass_fields__:
            values = [getattr(part, name) for part in parts]
            if name == "client":
                values = [np.full(len(part), k) for k, part in enumerate(parts)]
            columns[name] = None if values[0] is None else np.concatenate(values)
        splits[split] = Rows(**columns)
    return replace(first, **splits, clients=tuple(sites))


def scores_of(plan, folder, policy=None):
    """Return scores.csv of a run over sites, and that of the same models on the pooled rows."""
    sites = sites_of(plan, policy)
    connections = InProcessConnections(sites if plan.secure is None else mask_sites(sites))
    kept = {}

    class Connections(InProcessConnections):
        def send(self, request):
            if request.name == "end":
                kept["data"] = pool_splits(sites)
            return super().send(request)

    record = run_plan(plan, Connections(connections.site_by_name), folder)
    experiment, models = plan.experiment, [site.personal or {} for site in sites.values()]
    personal = {name: np.concatenate([own[name] for own in models]) for name in models[0] if name != "client"}
    shared = record.solution if experiment.has_shared_model else None
    predictions = predict_splits(experiment.objective, kept["data"], shared, personal or None)
    return record.scores, pd.DataFrame(tabulate_scores(predictions))


def of_all_clients(scores):
    """Return the rows of scores.csv about all clients together."""
    return scores.loc[scores["client"] == ""].reset_index(drop=True)


def compare(found, pooled, tolerance=1e-8):
    """Assert that the columns of two tables are those of the same model, but for the area under the ROC curve."""
    assert set(pooled) - set(found) <= {"auc", "auc_macro", "average_precision"}
    for name in set(pooled) & set(found):
        if pooled[name].dtype.kind in "fi":
            np.testing.assert_allclose(found[name], pooled[name], rtol=tolerance, atol=tolerance, err_msg=name)
    if "auc" in pooled:
        assert (found["auc_low"] <= pooled["auc"]).all()
        assert (pooled["auc"] <= found["auc_high"]).all()
