"""The personal models of a site's clients, and the sums of their metrics that the site sends.

The models are computed from the states of the clients, which stay at the site, and from what the server broadcasts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.clients import vmap_runs
from fcorun.engine.device_rows import client_row_table
from fcorun.engine.evaluate import personal_models
from fcorun.engine.federation import Federation
from fcorun.engine.remote.leaves import Arrays, name_leaves
from fcorun.engine.remote.programs import RowsByClient, ShareSums, sum_shares
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.objectives.objective import score_names
from fcorun.methods.problem.problem import Problem, Vector

PERSONAL = "personal"  # begins the names of the sums of personal models, as in personal_train_loss
_BROADCAST = "server/"  # begins the names of the leaves of the server's broadcast in a request


def add_broadcast(solution: Arrays, broadcast: PyTree) -> Arrays:
    """Return the arrays of a request to evaluate: a solution, and what clients receive from the server."""
    return solution | {f"{_BROADCAST}{name}": leaf for name, leaf in name_leaves(broadcast).items()}


def split_broadcast(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return the two parts of ``add_broadcast``, each with the names of its leaves."""
    solution = {name: leaf for name, leaf in arrays.items() if not name.startswith(_BROADCAST)}
    return solution, {name.removeprefix(_BROADCAST): arrays[name] for name in arrays.keys() - solution.keys()}


@dataclass(frozen=True)
class SitePersonalModels:
    """The personal models at a site, and their metrics. All arrays of runs have a leading axis G."""

    federation: Federation

    def compute_models(self, numbers: Any, broadcast: PyTree, clients: PyTree) -> dict[str, jax.Array]:
        """Compute the personal models of the m clients of the site by parameter, (G, m, ...).

        Args:
            numbers: the numbers of all runs, as ``Federation.stack_numbers`` stacks them.
            broadcast: the broadcast of the server of each run.
            clients: a tuple whose first item is the stacked states of the site's clients.
        """
        return vmap_runs(lambda *run: dict(self._models_of_run(*run)), (0, 0, 0), numbers, broadcast, clients)

    def _models_of_run(self, numbers: Any, broadcast: PyTree, clients: PyTree) -> Vector:
        algorithm, problem = self.federation.bind(numbers)
        return personal_models(algorithm, problem, broadcast, clients[0], {})

    def sum_metrics(
        self, numbers: Any, broadcast: PyTree, clients: PyTree, x: Any, y: Any, extra: dict
    ) -> tuple[dict[str, Any], dict[str, ShareSums]]:
        """Compute the sums over the site's clients of the metrics of their personal models, (G,) each.

        Metrics of rows have the ``weights`` of the clients' rows in the split. Other metrics have the weight 1 / M.
        Returns also, by split, how much the rows of each client count in its metrics, (G, m, 3, 2).

        Args:
            numbers, broadcast, clients: as for ``compute_models``.
            x, y: the training rows of the site.
            extra: the other arrays of the evaluation, and the patients of rows as in ``solution_sums``.
        """
        evaluation, n_clients = self.federation.evaluation, self.federation.data.n_clients
        extra = extra | {f"client_rows_{split}": table for split, table in self._row_tables.items()}

        def sum_run(numbers, broadcast, clients):
            _, problem = self.federation.bind(numbers)
            models = self._models_of_run(numbers, broadcast, clients)
            values = evaluation.measure_clients(problem, models, {}, rows=(x, y), extra=extra)
            sums = {}
            for name, of_client in values.items():
                weights = self.weights.get(name.partition("_")[0])
                if weights is None:
                    sums[name] = of_client.sum() / n_clients
                else:
                    sums[name] = jnp.asarray(weights, of_client.dtype) @ of_client
            return sums, self._sum_row_shares(problem, models, x, y, extra)

        return vmap_runs(sum_run, (0, 0, 0), numbers, broadcast, clients)

    def _sum_row_shares(self, problem: Problem, models: Vector, x: Any, y: Any, extra: dict) -> dict[str, ShareSums]:
        """Return how much the rows of each client count in the mean loss of its model, (m, 3, 2), by split."""
        sums = {}
        for split, table in self._row_tables.items():
            suffix = "" if split == "train" else "_val"
            names = ("weight", "offset", "patient")
            extras = {name: extra[name + suffix] for name in names if name + suffix in extra}
            rows = RowsByClient(x, y, extras, jnp.asarray(table))
            if split != "train":
                rows = rows._replace(x=extra["x_val"], y=extra["y_val"])

            def sum_client(numbered_model, rows=rows):
                client, model = numbered_model
                batch = rows.batch(client)
                total = batch.weight.sum()
                batch = batch._replace(weight=batch.weight / jnp.where(total > 0, total, 1))
                return sum_shares(problem.row_shares(model, batch), rows.patients(client))

            sums[split] = lax.map(sum_client, (jnp.arange(len(table)), models))
        return sums

    @property
    def _rows(self) -> SiteRows:
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        return rows

    @cached_property
    def _splits(self) -> dict[str, SiteRows]:
        """The rows of the splits that personal models are measured on."""
        data, splits = self.federation.data, {"train": self._rows}
        if data.validation_offsets is not None and isinstance(data.validation, SiteRows) and len(data.validation):
            splits["val"] = data.validation
        return splits

    @cached_property
    def _row_tables(self) -> dict[str, np.ndarray]:
        """The indices of the rows of each of the site's clients in each split, -1 for none."""
        has_client, tables = self._rows.has_client, {}
        for split, rows in self._splits.items():
            tables[split] = client_row_table(np.append(0, np.cumsum(rows.all_sizes[has_client])))
        return tables

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The weight of each of the site's clients in the metrics of each split, (m,), whose sum over sites is 1."""
        has_client, evaluation = self._rows.has_client, self.federation.evaluation
        weights = {
            "train": self._rows.sum_by_client(self._rows.objective_weights(evaluation.client_weighting))[has_client]
        }
        if "val" in self._splits:
            of_client = self._splits["val"].client_weights
            weights["val"] = (of_client / max(of_client.sum(), np.finfo(float).tiny))[has_client]
        return weights


def list_sums(federation: Federation) -> Iterator[tuple[str, str, str]]:
    """Yield the sums of personal models that a site with rows of all splits sends: name, split and metric.

    The split of a metric that depends on no rows is empty. Nothing is yielded for algorithms without personal models.
    """
    data, problem = federation.data, federation.problem
    if not federation.algorithm.has_personal_models:
        return
    scores = score_names(problem.objective, len(data.classes) if len(data.classes) > 2 else 1)
    splits = ["train"] if data.validation_offsets is None else ["train", "val"]
    for split in splits:
        for score in scores:
            yield f"{PERSONAL}_{split}_{score}", split, score
    zeros = problem.zeros(federation.precision)
    for name in jax.eval_shape(lambda: problem.structure(zeros, federation.evaluation.cutoff)):
        yield f"{PERSONAL}_{name}", "", name
