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

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError
from fcorun.engine.remote.certificate import NULL, REFERENCE, RUN
from fcorun.experiment.classifiers import ThresholdRule
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.site_optimum import MAX_CERTIFICATES, MAX_GRADIENTS, MAX_LOSSES
from fcorun.methods.problem.duality_gap import MAX_INTERCEPT_STEPS
from fcorun.results.scores.calibration import MAX_REQUESTS
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_intervals import INTERVAL_LIMITS
from fcorun.sites.plan.planned_selection import REFIT, PlannedSelection
from fcorun.sites.site.few_rows import MAX_WITHHELD, refuse
from fcorun.sites.tables.fold_encoding import FILLS, INFORMATIVE
from fcorun.sites.tables.table_agreement import AGREEMENT_KEYS
from fcorun.sites.tables.table_description import Description
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.path import find_path_parameter

_GRADIENT, _LOSSES = "residuals with gradients", "residuals"
_OPTIMUM = " of the optimum"  # ends the names of the same messages on the way to the reference optimum
_MAX_CLIENT_ROWS, _MAX_ROWS = 10**7, 10**9  # a site has memory for as many draws as the largest client has rows
_KEYS = {  # of the small values of requests; the others have none
    "describe": {"plan"},
    "sums": AGREEMENT_KEYS,
    "load": AGREEMENT_KEYS | {"all_clients", "n_clients"},
    "fold_values": {"subset"},
    "fold_sums": {"subset"},
    "subset": {"subset"},
    "start": {"numbers", "seed", "curvature"},
    "round": {"round", "exchange"},
    "residuals": {"models", "gradient"},
    "conjugates": {"models"},
    "scores": {"edge"},
}


@dataclass
class RequestCounts:
    """The numbers of requests of one run that a site has answered, by message, and in a selection by subset.

    Attributes:
        plan: the plan, which limits them.
    """

    plan: Plan
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def subset(self) -> str | None:
        """The subset of a selection whose runs the server asks for; None before the first one, and without any."""
        if self.plan.select is None or not self.counts["subset"]:
            return None
        return self.plan.select.subsets[self.counts["subset"] - 1]

    def limits(self) -> dict[str, int]:
        """Return the largest number of requests of each message; rounds are counted by their order.

        In a selection, those of runs are the limits of the present subset.
        """
        experiment, select = self.plan.experiment, self.plan.select
        pooled_sums = 2 if self.plan.shared_options.standardize == "pooled" else 0
        limits = {"describe": 1, "sums": pooled_sums, "load": 1, "end": 1}
        if self.plan.infer is not None:
            limits |= self.plan.infer.limits
        if select is None:
            return limits | self._limits_of_runs(null_models=int(experiment.reg.relative_or_none is not None))
        limits |= {"folds": 1, "fold_values": 1, "fold_sums": pooled_sums, "subset": len(select.subsets)}
        of_runs = self._limits_of_runs(null_models=0)
        if self.subset is None:
            null_model = _limits_of_residuals(int(select.range is None))
            return limits | dict.fromkeys((*of_runs, *INTERVAL_LIMITS), 0) | null_model
        if self.subset != REFIT:
            of_runs |= dict.fromkeys(("score_counts", "scores", "calibration", "result", *INTERVAL_LIMITS), 0)
        return limits | of_runs

    def _limits_of_runs(self, null_models: int) -> dict[str, int]:
        """Return the limits of the messages of runs that differ in numbers, and of some models without features."""
        settings = self.plan.experiment.settings
        evaluations = -(-settings.rounds // settings.eval_every) + 1
        certificates = evaluations if settings.gap else 0
        return {
            "curvature": 1,
            "start": 1,
            "evaluate": evaluations,
            **_limits_of_residuals(null_models + certificates),
            "conjugates": certificates,
            _GRADIENT + _OPTIMUM: settings.reference * MAX_GRADIENTS,
            _LOSSES + _OPTIMUM: settings.reference * MAX_LOSSES,
            "conjugates" + _OPTIMUM: settings.reference * MAX_CERTIFICATES,
            "score_counts": int(ThresholdRule.parse(settings.threshold).needs_rows),
            "scores": 1,
            "calibration": 1 if self.plan.shared_options.task == "regression" else MAX_REQUESTS,
            "result": 1,
        }

    def count(self, request: Message) -> None:
        """Count a request. Raises UserError if the plan does not have so many, or has subsets in another order."""
        if request.name == "round":  # counted by their order
            return
        name = _name_in_limits(request)
        limit = self.limits().get(name)
        if limit is None:
            raise UserError(f"the server asked for '{name}', of which the plan has no number")
        key = name
        if name in ("subset", "fold_values", "fold_sums"):
            next_subset = self._check_next_subset(request)
            key = name if name == "subset" else f"{name} of {next_subset}"
        elif self.subset is not None and name in self._limits_of_runs(0):
            key = f"{name} of {self.subset}"
        if self.counts[key] >= limit:
            raise UserError(f"the server asked for '{name}' more often than the plan says, {limit} times in a run")
        self.counts[key] += 1

    def count_withheld(self) -> None:
        """Count an answer that withholds an upload. Raises FewRowsError if that was too often in the present runs."""
        key = f"withheld of {self.subset}"
        self.counts[key] += 1
        if self.counts[key] > MAX_WITHHELD:
            raise refuse("round")

    def _check_next_subset(self, request: Message) -> str:
        """Return the next subset of the plan. Raises UserError for a request that names another one."""
        assert self.plan.select is not None
        name, subsets = request.about.get("subset"), self.plan.select.subsets
        answered = self.counts["subset"]
        next_subset = subsets[answered] if answered < len(subsets) else "none"
        if name != next_subset:
            raise UserError(f"the server asked for the subset '{str(name)[:50]}', and the next one of this site is "
                            f"'{next_subset}': each is asked for once, in the order of the plan")  # fmt: skip
        return next_subset


def _name_in_limits(request: Message) -> str:
    """Return the name by which a request is counted; sums of a certificate differ in what is summed, and for what."""
    name = request.name
    if name not in ("residuals", "conjugates"):
        return name
    if name == "residuals" and request.about.get("gradient"):
        name = _GRADIENT
    return name + _OPTIMUM if request.about.get("models") == REFERENCE else name


def check_keys(request: Message) -> None:
    """Raise ValueError for a request with small values that no server of a plan sends."""
    if not set(request.about) <= _KEYS.get(request.name, set()):
        raise ValueError("values of another request")


def check_one_agreement(request: Message, earlier: Mapping[str, Message]) -> None:
    """Raise UserError for a request with another encoding than the earlier ones of the run, which are given by name.

    The difference of two sums over the same rows with different fills would tell the number of gaps.
    """
    if request.name in ("sums", "load"):
        names, read = ("sums", "load"), _read_agreement
    elif request.name in ("fold_sums", "subset"):
        names, read = ("fold_sums",), _read_fold
    else:
        return
    for message in (earlier[name] for name in names if name in earlier):
        is_of_same_rows = request.about.get("subset") == message.about.get("subset")
        if is_of_same_rows and read(request) != read(message):
            raise UserError(f"the server sent another encoding of the columns with '{request.name}' than with "
                            f"'{message.name}' before, and the difference of the answers would tell of gaps: begin the "
                            "run anew")  # fmt: skip


def _read_agreement(request: Message) -> list[Any]:
    """Return the agreement of a request, without its scaling and without its warnings, which come later."""
    arrays = [request.arrays[name].tolist() for name in ("rows", "weights")]
    return [request.about[key] for key in sorted(AGREEMENT_KEYS - {"warnings", "site_warnings"})] + arrays


def _read_fold(request: Message) -> list[Any]:
    """Return the fills and the features of a fold in a request; [] where nothing is learnt in folds."""
    return [request.arrays[name].tolist() for name in (FILLS, INFORMATIVE) if name in request.arrays]


def _limits_of_residuals(models: int) -> dict[str, int]:
    """Return the limits of requests for residuals at so many models, and for those of their best intercepts."""
    return {_GRADIENT: 2 * models, _LOSSES: MAX_INTERCEPT_STEPS * models}


def check_clients(request: Message, description: Description) -> list[str]:
    """Return the names of all clients, those with training rows first.

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
    if rows.max(initial=0) > _MAX_CLIENT_ROWS or rows.sum() > _MAX_ROWS:
        raise UserError(f"the server names clients of too many rows: sites compute with at most {_MAX_CLIENT_ROWS} "
                        f"of a client, and {_MAX_ROWS} in all: divide large tables into several clients")  # fmt: skip
    client_numbers = [names.index(name) for name in description.clients]
    trains = rows[:, 0] > 0
    is_ordered = trains[:n_clients].all() and not trains[n_clients:].any()
    same_rows = np.array_equal(rows[client_numbers], description.n_rows)
    same_weights = np.allclose(weights[client_numbers], description.weights, rtol=1e-12, atol=0)
    if len(set(names)) != len(names) or not is_ordered or not same_rows or not same_weights:
        raise UserError("the server says of this site's clients other numbers of rows than the site described: begin "
                        "the run anew")  # fmt: skip
    return list(names)


def check_numbers(
    request: Message, plan: Plan, subset: str | None = None, first: Message | None = None
) -> list[dict[str, dict[str, float]]]:
    """Return the numbers of the runs. Raises UserError unless they are those of the plan, wherever it has numbers.

    Args:
        subset: the subset of a selection on which the runs are; None: the plan is one run.
        first: the request that began the first runs, whose values those of a selection repeat; None: it is this one.
    """
    runs, experiment = request.about["numbers"], plan.experiment
    n_runs = 1 if plan.select is None else plan.select.count_runs(str(subset))
    if len(runs) != n_runs or request.about["seed"] != experiment.settings.seed:
        raise UserError("the server started other runs than that of the plan, or with another seed")
    varied = None if plan.select is None else ("reg", find_path_parameter(experiment))
    for run in runs:
        _check_run(run, runs[0], plan, varied)
    if plan.select is not None:
        _check_values(runs, plan.select, experiment, subset, first)
    return runs


def _check_values(
    runs: Any, select: PlannedSelection, experiment: PreparedExperiment, subset: str | None, first: Message | None
) -> None:
    """Raise UserError unless the runs of a selection have the values of its path, or the refit one of them."""
    parameter = find_path_parameter(experiment)
    values = [run["reg"][parameter] for run in runs]
    if first is None:
        select.check_path(values, experiment)
        return
    path = [run["reg"][parameter] for run in first.about["numbers"]]
    if (values[0] not in path) if subset == REFIT else (values != path):
        raise UserError(f"the server started runs with other values of reg.{parameter} than those of the first fit")


def _check_run(run: Any, first: Any, plan: Plan, varied: tuple[str, str] | None) -> None:
    """Raise UserError unless numbers of a run, but for ``varied``, are those of the plan and of the first run."""
    experiment = plan.experiment
    precision = experiment.settings.precision
    if {section: set(fields) for section, fields in run.items()} != {name: set(first[name]) for name in first}:
        raise ValueError("runs have other numbers")
    for section, fields in run.items():
        plugin = getattr(experiment, section)
        for name, value in fields.items():
            planned = getattr(plugin, name)
            if type(value) is not float or not math.isfinite(value):
                raise ValueError(f"{section}.{name} is no number")
            is_auto = planned == AUTO or name in getattr(plugin, "auto_fields", ())
            is_relative = (section, name) == ("reg", "strength") and plugin.relative_or_none is not None
            if (section, name) == varied or is_relative:
                continue
            differs = not is_auto and np.asarray(planned, precision) != np.asarray(value, precision)
            if differs or value != first[section][name]:
                raise UserError(f"the server started a run with {section}.{name}={value:g}: the plan says {planned}")


def check_certified_models(request: Message, plan: Plan, subset: str | None = None, *, has_started: bool) -> None:
    """Raise UserError for sums of a certificate at models that the plan does not list, or not at this time.

    ``subset`` is that of a selection, and ``has_started`` whether its runs have begun.
    """
    models, settings = request.about["models"], plan.experiment.settings
    begins_path = plan.select is not None and plan.select.range is None and subset is None
    listed = {
        RUN: settings.gap,
        NULL: plan.experiment.reg.relative_or_none is not None or begins_path,
        REFERENCE: settings.reference,
    }
    if not isinstance(models, str) or not listed.get(models, False):
        raise UserError("the server asked for residuals of a model that the plan does not list")
    if models == NULL and request.name == "conjugates":  # the strength needs gradients alone
        raise UserError("the server asked for conjugates at the model without features, which no plan needs")
    if models == REFERENCE and has_started:
        raise UserError("the server asked for sums on the way to the reference optimum after the start of the run: "
                        "begin the run anew")  # fmt: skip


def check_loss_request(request: Message, last: Message | None, has_intercept: bool) -> None:
    """Raise UserError unless a request for losses repeats the last one for gradients, but for the intercept."""
    # leaves are numbered in the order of their names, so that "bias" is 0; NULL sends the bias alone, by its name
    intercept = {"0", "bias"} if has_intercept else set()
    if last is None or last.about["models"] != request.about["models"] or set(last.arrays) != set(request.arrays):
        same = False
    else:
        fixed = request.arrays.keys() - intercept
        same = all(np.array_equal(request.arrays[name], last.arrays[name]) for name in fixed)
    if not same:
        raise UserError("the server asked for losses of another model than that of its last sums of gradients: only "
                        "the intercept may differ")  # fmt: skip


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
