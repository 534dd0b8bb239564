"""Data divided among sites in this process, and the engine of a server that asks these sites."""

from dataclasses import replace

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.build import build_engine
from fcorun.methods.problem.curvature import curvature_bounds
from fcorun.sites.site.request_checks import FewRowsRule
from fcorun.sites.site.site_batch import SiteBatch
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message


def site_rows(rows: Rows, data: FederatedData, clients, **server) -> SiteRows:
    """Return the rows of some clients as their site has them."""
    assert rows.client is not None
    own = rows.take(np.isin(rows.client, clients))
    sizes = np.bincount(rows.client, minlength=data.n_clients)
    weights = None if rows.weight is None else np.bincount(rows.client, rows.weight, data.n_clients)
    return SiteRows(**vars(own), all_sizes=sizes, all_weights=weights, **server)


def part_of(data: FederatedData, clients, **server) -> FederatedData:
    """Return the data of some clients as their site has them."""
    validation = None if data.validation is None else site_rows(data.validation, data, clients, **server)
    return replace(data, train=site_rows(data.train, data, clients, **server), validation=validation, test=None)


class BareSite:
    """A site that answers rounds and evaluations, without a plan or a policy."""

    def __init__(self, experiment, data, points, seed):
        self.batch = SiteBatch(build_engine(experiment, data), points, seed, FewRowsRule(min_cell=0))

    def answer(self, request):
        if request.name == "start":
            return Message("start")
        if request.name == "round":
            arrays, work = self.batch.answer_round(request.about["round"], request.about["exchange"], request.arrays)
            return Message("round", {}, arrays | {"work": work})
        if request.name == "residuals":
            return Message("residuals", {}, self.batch.sum_residuals(request.arrays, request.about["gradient"]))
        if request.name == "conjugates":
            return Message("conjugates", {}, self.batch.sum_conjugates(request.arrays))
        sums = self.batch.sum_scores(request.arrays)
        return Message("evaluate", {}, {f"{split}_{name}": v for split in sums for name, v in sums[split].items()})


def remote_engine(experiment, data, groups, points):
    """Return the engine of a server, and its connections to one site for each group of clients."""
    seed, bounds = experiment.settings.seed, {}
    if experiment.algo.curvature_alternatives:
        for name, full_batch in (("minibatch", False), ("full_batch", True)):
            bounds[name] = curvature_bounds(experiment.objective, data, full_batch)
    sites = {}
    for k, clients in enumerate(groups):
        sites[f"site-{k}"] = BareSite(experiment, part_of(data, clients, curvature=bounds), points, seed)
    connections = InProcessConnections(sites)
    names = {m: f"site-{k}" for k, clients in enumerate(groups) for m in clients}
    names_in_order = tuple(names[m] for m in range(data.n_clients))
    server = part_of(data, [], site_of_client=names_in_order, ask=connections.ask, curvature=bounds)
    return build_engine(experiment, server), connections
