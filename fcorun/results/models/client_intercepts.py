"""The intercepts of clients of a finished model, which its rows determine, and predictions with them.

A solution has them as ``client_intercepts`` (M,). Its ``bias`` is their mean, with the weights of the clients in F, and
the intercept of all other clients. Where rows stay at their sites, a client's intercept stays there, too.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import abbreviate, word
from fcorun.base.records.record import CLIENT_INTERCEPTS, Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.intercepts import ClientIntercepts
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import Arrays, compute_predictions
from fcorun.results.models.intercept_test import warn_of_client_differences

_ENOUGH_OF_A_CLASS = 10  # rows of a client's smaller class


def fit_intercepts(experiment: PreparedExperiment, data: FederatedData, solution: Arrays) -> ClientIntercepts:
    """Return the best intercepts of the clients for the weights of a solution, in float64."""
    objective, rows = experiment.objective, data.train
    weights = {"weights": solution["weights"].astype(np.float64)}
    prediction = compute_predictions(objective, weights, rows.x, data.features.scale)
    if rows.offset is not None:
        prediction = prediction + rows.offset
    target = rows.y.astype(np.float64)
    weight = rows.objective_weights(experiment.settings.client_weighting)
    with jax.enable_x64(True):
        fitted = _fit(objective, prediction, target, weight, client=rows.known_client, n_clients=data.n_clients)
        return jax.tree.map(np.asarray, fitted)


@partial(jax.jit, static_argnames=("objective", "n_clients"))
def _fit(objective, prediction, y, weight, *, client, n_clients) -> ClientIntercepts:
    fitted = objective.fit_client_intercepts(prediction, y, weight, client, n_clients)
    return fitted._replace(values=fitted.for_rows(jnp.arange(n_clients)))


def has_finite_intercepts(
    objective: Objective, y: np.ndarray, weight: np.ndarray, client: np.ndarray, n_clients: int
) -> np.ndarray:
    """Return whether the targets of each client's rows, (n,), give it a finite intercept, (M,)."""
    with jax.enable_x64(True):
        fitted = _fit(objective, np.zeros(len(y)), y, weight, client=client, n_clients=n_clients)
        return np.asarray(fitted.finite)


def add_client_intercepts(experiment: PreparedExperiment, data: FederatedData, solution: Arrays) -> Arrays:
    """Return the parameters of a solution with its ``client_intercepts`` and their mean, ``bias``.

    Returns the solution as it is if the objective has no such intercepts, or if they are at the sites of the rows.
    """
    if not experiment.objective.client_intercepts or data.train.stays_at_sites:
        return solution
    fitted = fit_intercepts(experiment, data, solution)
    dtype = solution["weights"].dtype
    return solution | {"bias": np.asarray(fitted.mean, dtype), CLIENT_INTERCEPTS: np.asarray(fitted.values, dtype)}


def clients_with_intercepts(record: Record) -> list[str]:
    """Return the names of the clients whose intercepts a record has; empty if it has one of all, or none."""
    return record.summary["data"]["client_names"] if CLIENT_INTERCEPTS in record.solution else []


def difference_from_mean(solution: Arrays, client: np.ndarray | None) -> np.ndarray | float:
    """Return what each row's intercept exceeds ``bias`` by, (n,): 0 for rows of clients without an intercept.

    ``client`` (n,) are the numbers of the rows' clients; None: unknown.
    """
    values = solution.get(CLIENT_INTERCEPTS)
    if values is None or client is None:
        return 0.0
    is_known = (client >= 0) & (client < len(values))
    return np.where(is_known, values[np.where(is_known, client, 0)] - solution["bias"], 0)


def find_finite_intercepts(experiment: PreparedExperiment, data: FederatedData, solution: Arrays) -> np.ndarray:
    """Return which clients have a finite intercept, (M,); of a model without such intercepts, or at sites, all."""
    if not experiment.objective.client_intercepts or data.train.stays_at_sites:
        return np.ones(data.n_clients, bool)
    return np.asarray(fit_intercepts(experiment, data, solution).finite)


def name_infinite_intercepts(data: FederatedData, finite: np.ndarray) -> str:
    """Return a clause that names the clients whose intercept is not ``finite``, (M,); empty if each is."""
    if finite.all():
        return ""
    names = [f"'{data.client_names[m]}'" for m in np.flatnonzero(~finite)]
    clients = "client" if len(names) == 1 else "clients"
    return f"no finite intercept for {clients} {abbreviate(names)}, with {describe_equal_targets(data)}"


def describe_equal_targets(data: FederatedData) -> str:
    """Return a phrase on the rows of a client without a finite intercept."""
    return f"rows of {'one class' if data.classes else 'targets of 0'} alone"


def warn_of_small_clients(objective: Objective, data: FederatedData) -> str:
    """Return a sentence on coefficients of two classes that many small clients make too large; "" for none.

    With an intercept for each of many small clients, estimates are inconsistent (Neyman and Scott 1948): in matched
    pairs they approach twice the coefficients.
    """
    if not isinstance(objective, Logistic) or not objective.client_intercepts:
        return ""
    if isinstance(data.train, SiteRows):
        smaller = data.train.all_sizes // 2  # at most
    else:
        second = data.train.y == 1
        client = data.train.known_client
        counts = np.stack([np.bincount(client[rows], minlength=data.n_clients) for rows in (~second, second)])
        smaller = counts.min(axis=0)
    informative = smaller[smaller > 0]
    if not len(informative) or np.median(informative) >= _ENOUGH_OF_A_CLASS:
        return ""
    least = int(np.median(informative))
    rows = "1 row" if least == 1 else f"{least} rows"
    return (
        f"half of the clients have at most {rows} of their smaller class, and an intercept of each makes the "
        "coefficients too large (in matched pairs twice), which conditional logistic regression does not"
    )


def warn_intercepts(experiment: PreparedExperiment, data: FederatedData, solution: Arrays) -> str:
    """Return sentences on clients without a finite intercept, and on rows of clients that have none; or "".

    Of a model with one intercept of all clients, the sentence says whether the clients differ in theirs.
    """
    if not experiment.objective.client_intercepts:
        return warn_of_client_differences(experiment, data, solution)
    sentences = []
    if data.train.stays_at_sites:
        sentences.append("each client's intercept is at its site alone, in the record that the site keeps")
    if clause := name_infinite_intercepts(data, find_finite_intercepts(experiment, data, solution)):
        sentences.append(
            f"{clause}: their rows tell nothing about the coefficients, and "
            "predictions for them take the mean of the other clients' intercepts"
        )
    if clause := warn_of_small_clients(experiment.objective, data):
        sentences.append(clause)
    held_out = [rows for name, rows in data.splits.items() if name != "train" and not rows.stays_at_sites]
    if any(rows.client is None or ((rows.client < 0) | (rows.client >= data.n_clients)).any() for rows in held_out):
        sentences.append(
            word("held-out rows of clients without training rows are predicted with the mean of the clients' "
                 "intercepts (`objective.client_intercepts=true`)")
        )  # fmt: skip
    return "; ".join(sentences)
