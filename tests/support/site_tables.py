"""Three small tables at three sites, and the route from the files of the sites to their data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.rows.rows import sum_in_order
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import AgreedTables, agree, fit_scaling, stack_sums
from fcorun.sites.tables.table_agreement import Agreement, encode_table, load_site_data, sum_features
from fcorun.sites.tables.table_description import describe_table
from fcorun.sites.tables.table_rows import read_site_table
from fcorun.sites.transport.messages import Message

SIZES = {"bern": 97, "aarau": 80, "chur": 121}


def frames(rows: dict[str, int] | None = None) -> dict[str, pd.DataFrame]:
    """Return a table for each site, whose columns are whole numbers, fractions, two levels and four levels."""
    tables = {}
    for k, (site, n) in enumerate((rows or SIZES).items()):
        rng = np.random.default_rng(k)
        age = rng.integers(20, 90, n)
        dose = rng.gamma(2.0, 3.0, n) + 0.1 * k
        ward = np.array(["east", "north", "south", "west"])[np.arange(n) % (4 if k else 3)]
        cost = 0.1 * age + dose + (ward == "south") + rng.standard_normal(n)
        tables[site] = pd.DataFrame(
            {
                "age": age,
                "dose": dose,
                "sex": np.array(["f", "m"])[np.arange(n) // 2 % 2],
                "ward": ward,
                "constant": 0.1,
                "days": rng.integers(1, 30, n),
                "log_days": np.log(rng.integers(1, 30, n)),
                "cost": cost,
                "ill": np.where(cost > 10, "yes", "no"),
            }
        )
    return tables


def with_gaps(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the tables with gaps in the ages of one site and in the wards of two."""
    gapped = {site: table.copy() for site, table in tables.items()}
    gapped["bern"].loc[::2, "age"] = np.nan
    gapped["bern"].loc[1::3, "ward"] = None
    gapped["chur"].loc[1::4, "ward"] = None
    return gapped


@dataclass
class Route:
    """The possessions of the sites and the server at the end of the route.

    Attributes:
        descriptions, sums, squares: the messages of the sites.
        agreed: the tables of all sites, whose agreement has its scaling.
        data: the data of each site.
    """

    descriptions: dict[str, Message]
    sums: dict[str, Message]
    squares: dict[str, Message]
    agreed: AgreedTables
    data: dict[str, FederatedData]

    @property
    def agreement(self) -> Agreement:
        return self.agreed.agreement


def travel(message: Message) -> Message:
    """Return the message as it arrives."""
    return Message.from_bytes(message.to_bytes(), "a test")


def save(tables: dict[str, pd.DataFrame]) -> dict[str, SiteOptions]:
    """Write the table of each site to SITE.csv, and return the options of the sites."""
    options = {}
    for site, table in tables.items():
        table.to_csv(f"{site}.csv", index=False)
        options[site] = SiteOptions(f"{site}.csv")
    return options


def describe(options: Sites, sites: dict[str, SiteOptions], policy: Policy | None = None) -> dict[str, Message]:
    """Return the description of each site as it arrives."""
    policy = policy or Policy()
    return {name: travel(describe_table(read_site_table(options, site, policy))) for name, site in sites.items()}


def go(options: Sites, sites: dict[str, SiteOptions], policy: Policy | None = None) -> Route:
    """Go the whole route."""
    policy = policy or Policy()
    tables = {name: read_site_table(options, site, policy) for name, site in sites.items()}
    descriptions = {name: travel(describe_table(table)) for name, table in tables.items()}
    agreed = agree(options, descriptions)
    agreement = agreed.agreement
    arrived = Agreement.from_message(travel(agreement.to_message()))
    encoded = {name: encode_table(table, arrived) for name, table in tables.items()}
    sums = {name: travel(Message("sums", {}, {"sums": sum_features(table)})) for name, table in encoded.items()}
    stacked = stack_sums(sums, agreed.training_sites, agreement.feature_names)
    mean = sum_in_order(stacked) / agreement.n_rows[:, 0].sum()
    squares = {
        name: travel(Message("sums", {}, {"sums": sum_features(table, mean)})) for name, table in encoded.items()
    }
    squares_by_client = stack_sums(squares, agreed.training_sites, agreement.feature_names)
    agreed = fit_scaling(agreed, stacked, mean, squares_by_client)
    arrived = Agreement.from_message(travel(agreed.agreement.to_message()))
    data = {name: load_site_data(table, arrived) for name, table in encoded.items()}
    return Route(descriptions, sums, squares, agreed, data)


def pool(tables: dict[str, pd.DataFrame], client: str | None = None) -> Path:
    """Write the tables of all sites, in the order of their names, to pooled.csv."""
    named: list[Any] = []
    for site in sorted(tables):
        named.append(tables[site] if client else tables[site].assign(site=site))
    pd.concat(named).to_csv("pooled.csv", index=False)
    return Path("pooled.csv")
