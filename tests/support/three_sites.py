"""Tables of three sites, a plan on them, and the sites in this process."""

import numpy as np
import pandas as pd
from helpers import composed

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.site import Site

NAMES = ("a", "b", "c")


def write_tables() -> None:
    """Write the tables of three sites, 60, 70 and 80 rows."""
    rng = np.random.default_rng(0)
    for name, n in zip(NAMES, (60, 70, 80), strict=True):
        frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(1), "bmi": rng.normal(25, 4, n).round(2)})
        frame["ward"] = rng.choice(["x", "y", "z"], n)
        frame["cost"] = (0.3 * frame["age"] - frame["bmi"] + rng.normal(size=n)).round(3)
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides) -> Plan:
    options = ("data=sites", "data.target=cost", "data.standardize=pooled", "precision=float64", "eval_every=2")
    algo = () if any("algo=" in text for text in overrides) else ("algo=scaffold", "algo.client_lr=0.1")
    return Plan.from_experiment(prepare(composed(*algo, "rounds=4", *options, *overrides)))


def sites_of(plan, policy=None):
    return {name: Site(plan, SiteOptions(f"{name}.csv"), policy or Policy()) for name in NAMES}
