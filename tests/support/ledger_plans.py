"""A table of visits and plans over it, for tests of the ledger of an owner."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import composed

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.acceptance import accept, open_durable_site
from fcorun.sites.site.site import Site
from fcorun.sites.tables.ledger import Ledger
from fcorun.sites.tables.ledger_entry import LedgerEntry
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import SelectOptions

N = 400
SPLIT = ("data.split=split", "data.validation=null")


def write_visits() -> pd.DataFrame:
    """Write visits.csv, and return its rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, N).round(1), "bmi": rng.normal(25, 4, N).round(2)})
    frame["ward"] = rng.choice(["x", "y", "z"], N)
    frame["cost"] = (0.3 * frame["age"] - frame["bmi"] + rng.normal(size=N)).round(3)
    frame.to_csv("visits.csv", index=False)
    return frame


def split_of(n_validation: int, n: int = N) -> list[str]:
    """Return a split whose first rows are validated on."""
    return ["validation"] * n_validation + ["train"] * (n - n_validation)


def run(
    plan: Plan,
    path: str = "visits.csv",
    at: str = "site",
    overlap: bool = False,
    rename: dict[str, str] | None = None,
    **rules,
) -> None:
    """Accept a plan, open its site as a run does, and have it answer the first request."""
    accept(Path(at), plan, SiteOptions(path, rename=rename), Policy(**rules), overlap=overlap)
    with closing(open_durable_site(Path(at), plan)) as durable:
        describe(durable)


def describe(durable: DurableSite) -> None:
    """Have a site answer the first request of a run."""
    site = getattr(durable.site, "site", durable.site)  # of a masked site
    assert isinstance(site, Site)
    site.compute_answer(Message("describe", {"plan": site.plan.digest}))


def entries(folder: Path | None = None) -> list[LedgerEntry]:
    return Ledger(folder or Policy().ledger_folder).read()


def selection_of(*overrides, folds: int = 4) -> Plan:
    """Return the plan of a selection."""
    options = ("data=sites", "data.target=cost", "data.standardize=pooled", "rounds=4", "eval_every=4")
    words = ("algo=fedmid", "algo.client_lr=0.1", "reg=l1", *options, *overrides)
    return Plan.from_experiment(prepare(composed(*words)), options=SelectOptions(points=3, folds=folds))
