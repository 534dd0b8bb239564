"""Checks of a server's requests against the plan and the site's own table, before anything is computed.

What a request says of the site's own clients must be what the site described, numbers of a run must be those of the
plan, and no message is asked for more often than the plan says. Without these checks a server could have a sum over
all rows computed as a sum over one.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.config import AUTO
from fcorun.engine.remote.certificate import NULL, REFERENCE, RUN
from fcorun.errors import UserError
from fcorun.experiment.site_optimum import MAX_CERTIFICATES, MAX_STEPS
from fcorun.models.site_calibration import MAX_REQUESTS
from fcorun.problem.duality_gap import MAX_INTERCEPT_STEPS
from fcorun.sites.messages import Message
from fcorun.sites.plan import Plan
from fcorun.sites.table_description import Description

_GRADIENT, _LOSSES = "residuals with gradients", "residuals"
_OPTIMUM = " of the optimum"  # ends the names of the same messages on the way to the reference optimum


@dataclass
class RequestCounts:
    """The numbers of requests of one run that a site has answered, by message.

    Attributes:
        plan: the plan, which limits them.
    """

    plan: Plan
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def limits(self) -> dict[str, int]:
        """The largest number of requests of each message in a run of the plan; rounds are counted by their order."""
        settings, data = self.plan.experiment.settings, self.plan.shared_options
        evaluations = -(-settings.rounds // settings.eval_every) + 1
        null_models = int(self.plan.experiment.reg.relative_or_none is not None)
        models = null_models + (evaluations if settings.gap else 0)
        return {
            "describe": 1,
            "sums": 2 if data.standardize == "pooled" else 0,
            "load": 1,
            "curvature": 1,
            "start": 1,
            "evaluate": evaluations,
            _GRADIENT: 2 * models,
            _LOSSES: MAX_INTERCEPT_STEPS * models,
            "conjugates": evaluations if settings.gap else 0,
            _GRADIENT + _OPTIMUM: settings.reference * (MAX_STEPS + 2 * MAX_CERTIFICATES),
            _LOSSES + _OPTIMUM: settings.reference * MAX_INTERCEPT_STEPS * MAX_CERTIFICATES,
            "conjugates" + _OPTIMUM: settings.reference * MAX_CERTIFICATES,
            "scores": 1,
            "calibration": 1 if data.task == "regression" else MAX_REQUESTS,
            "result": 1,
            "end": 1,
        }

    def count(self, request: Message) -> None:
        """Count a request. Raises UserError if the plan does not have so many."""
        name = request.name
        if name == "residuals" and request.about.get("gradient"):
            name = _GRADIENT
        if request.about.get("models") == REFERENCE:
            name += _OPTIMUM
        limit = self.limits.get(name)
        if limit is None:
            return
        if self.counts[name] >= limit:
            raise UserError(f"the server asked for '{name}' more often than the plan says, {limit} times in a run")
        self.counts[name] += 1


def check_clients(request: Message, description: Description) -> tuple[list[str], int]:
    """Return the names of all clients, and how many of them have training rows.

    Raises UserError unless the request says of the site's own clients what the site has described.
    """
    names, n_clients = request.about["all_clients"], request.about["n_clients"]
    rows, weights = request.arrays["all_rows"], request.arrays["all_weights"]
    shape = (len(names), description.n_rows.shape[1])
    if not all(isinstance(name, str) for name in names) or type(n_clients) is not int:
        raise ValueError("names of clients are no texts")
    if rows.shape != shape or weights.shape != shape or rows.dtype.kind not in "iu" or (rows < 0).any():
        raise ValueError("the clients' rows have another shape")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("weights are no weights")
    own = [names.index(name) for name in description.clients]
    trains = rows[:, 0] > 0
    is_ordered = trains[:n_clients].all() and not trains[n_clients:].any()
    same_rows = np.array_equal(rows[own], description.n_rows)
    same_weights = np.allclose(weights[own], description.weights, rtol=1e-12, atol=0)
    if len(set(names)) != len(names) or not is_ordered or not same_rows or not same_weights:
        raise UserError("the server says of this site's clients other numbers of rows than the site described: begin "
                        "the run anew")  # fmt: skip
    return list(names), n_clients


def check_numbers(request: Message, plan: Plan) -> list[dict[str, dict[str, float]]]:
    """Return the numbers of the run. Raises UserError unless they are those of the plan, wherever it has numbers."""
    runs, experiment = request.about["numbers"], plan.experiment
    if len(runs) != 1 or request.about["seed"] != experiment.settings.seed:
        raise UserError("the server started other runs than that of the plan, or with another seed")
    precision = experiment.settings.precision
    for section, fields in runs[0].items():
        plugin = getattr(experiment, section)
        for name, value in fields.items():
            planned = getattr(plugin, name)
            if type(value) is not float or not math.isfinite(value):
                raise ValueError(f"{section}.{name} is no number")
            is_relative = (section, name) == ("reg", "strength") and plugin.relative_or_none is not None
            if planned != AUTO and not is_relative and np.asarray(planned, precision) != np.asarray(value, precision):
                raise UserError(f"the server started a run with {section}.{name}={value:g}: the plan says {planned}")
    return runs


def check_certified_models(models: Any, plan: Plan) -> None:
    """Raise UserError unless the plan lists sums of a certificate at such models."""
    settings = plan.experiment.settings
    listed = {
        RUN: settings.gap,
        NULL: plan.experiment.reg.relative_or_none is not None,
        REFERENCE: settings.reference,
    }
    if not isinstance(models, str) or not listed.get(models, False):
        raise UserError("the server asked for residuals of a model that the plan does not list")


def check_model(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless arrays are the parameters of a model of these shapes."""
    if set(arrays) != set(shapes):
        raise ValueError("other parameters")
    for name, shape in shapes.items():
        array: Any = arrays[name]
        if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"parameter '{name}' has another shape")


def check_last_model(arrays: Mapping[str, np.ndarray], evaluated: Mapping[str, np.ndarray]) -> None:
    """Raise UserError unless arrays are the model of a run of the last request "evaluate", but for rounding."""
    is_of_run = []
    for number, name in enumerate(sorted(arrays)):
        leaf, runs = arrays[name], evaluated[str(number)]
        rounding = 1e3 * np.finfo(runs.dtype).eps * np.abs(runs).max(initial=0)
        is_of_run.append([np.abs(leaf - of_run).max(initial=0) <= rounding for of_run in runs])
    if not np.all(is_of_run, axis=0).any():
        raise UserError("the server came with another model than the one it had evaluated last")
