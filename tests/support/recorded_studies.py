"""Honest studies of three small sites, of every kind of message, whose requests and answers tests repeat and forge."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from helpers import composed

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import PlannedIntervals
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import SelectOptions

NAMES = ("a", "b", "c")
IGNORED = {"cost": "[ill,time,event]", "ill": "[cost,time,event]", "time": "[cost,ill]"}
BINARY = ("data.task=binary", "data.positive='1'")
ONE_STEP = ("local_steps=1", "algo.client_lr=0.1")


def write_tables() -> None:
    """Write the tables of three sites into the current folder."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(NAMES):
        n = 60 + 5 * k
        frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["x", "z", "u"]).round(5)
        frame["ward"] = np.array(["east", "north", "south"])[np.arange(n) % 3]
        frame["cost"] = (frame["x"] + 0.3 * rng.normal(size=n)).round(5)
        frame["ill"] = (frame["x"] + rng.logistic(size=n) > 0).astype(int)
        frame["time"] = rng.permutation(n) + 1.0
        frame["event"] = (np.arange(n) % 3 > 0).astype(int)
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides, target="cost", select=None, bounds=None) -> Plan:
    shared = ("data=sites", f"data.target={target}", f"data.ignore={IGNORED[target]}", "data.validation=0")
    experiment = prepare(composed(*shared, "rounds=2", "precision=float64", *overrides))
    return Plan.from_experiment(experiment, bounds, select)


def plan_named(study: str) -> Plan:
    if study == "dual":
        held_out = ("data.validation=0.3", "threshold=youden")
        return plan_of("algo=feddualavg", "local_steps=1", *BINARY, *held_out, target="ill")
    if study == "gap":
        return plan_of("algo=newton", "gap=true", "reg=l2", "reg.strength=0.1")
    if study == "reference":
        return plan_of("algo=fedavg", "reference=true", "reg=l2", "reg.strength=0.5", *ONE_STEP)
    if study == "infer":
        plan = plan_of("algo=newton", "data.standardize=pooled", "data.missing=mean", *BINARY, target="ill")
        return replace(plan, infer=PlannedIntervals())
    if study == "select":
        options = SelectOptions(points=2, folds=2, range=[0.01, 0.1])
        return plan_of("algo=newton", "data.standardize=pooled", select=options)
    if study == "cox":
        return plan_of("algo=newton", "objective=cox", "data.task=survival", "data.event=event", target="time")
    assert study == "secure"
    return plan_of("algo=fedavg", *ONE_STEP, bounds={})


STUDIES = ("dual", "gap", "reference", "infer", "select", "cox", "secure")


def sites_of(plan) -> dict[str, Any]:
    sites = {name: Site(plan, SiteOptions(f"{name}.csv"), Policy()) for name in NAMES}
    return sites if plan.secure is None else mask_sites(sites)


@dataclass
class RecordedSite:
    """A site that records each request, the state before it, and the answer."""

    site: Any
    log: list[tuple[Message, dict, Message]] = field(default_factory=list)

    def answer(self, request):
        before = dict(self.site.save_state())
        answer = self.site.answer(request)
        self.log.append((request, before, answer))
        return answer


def record(plan, folder) -> RecordedSite:
    """Return the site "a" with its part of an honest run."""
    recorders = {name: RecordedSite(site) for name, site in sites_of(plan).items()}
    run_plan(plan, InProcessConnections(recorders), folder)
    return recorders["a"]


def restorer(site: Any):
    """Return a function that puts a site back, with the programs that it has compiled."""
    inner = getattr(site, "site", site)
    values, counts, requests = dict(vars(inner)), Counter(inner.counts.counts), dict(inner.requests)
    batch = inner._batch
    started = (None, None) if batch is None else (batch.clients, batch.next_exchange)
    outer = dict(vars(site))

    def restore():
        sums = inner._certificate_sums
        vars(inner).update(values)
        inner.counts.counts, inner.requests = Counter(counts), dict(requests)
        inner._certificate_sums = sums if inner._data is values["_data"] else None
        if batch is not None:
            batch.clients, batch.next_exchange = started
        if inner is not site:
            vars(site).update(outer)

    return restore
