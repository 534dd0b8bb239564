"""The messages of a run: its beginning, its rounds and evaluations, its result and its end."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError
from fcorun.base.records.record import TRAIN
from fcorun.engine.remote.leaves import pack_sparse
from fcorun.methods.communication.contracts import Identity
from fcorun.sites.plan.messages.message_kind import MEANS, MessageKind, Notice, Quantity, Stage
from fcorun.sites.plan.planned_study import REFIT, PlannedStudy
from fcorun.sites.transport.messages import LAST_REQUEST, WITHHELD, Message
from fcorun.studies.selection.path import find_path_parameter

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site

FIRST_START = "first start"  # names the kept request that began the first runs, whose values later ones repeat
Numbers = dict[str, dict[str, float]]


class StartMessage(Notice):
    """The beginning of the runs of a batch, with the numbers that the server has resolved."""

    name = "start"
    stage = Stage.BOUNDS
    keys = frozenset({"numbers", "seed", "curvature"})
    is_kept = True

    def resume(self, site: "Site", request: Message) -> None:
        numbers = check_numbers(request, site.plan, site.counts.subset, site.requests.get(FIRST_START))
        site.start(numbers, request.about["curvature"])
        site.requests.setdefault(FIRST_START, request)


def check_numbers(
    request: Message, study: PlannedStudy, subset: str | None = None, first: Message | None = None
) -> list[Numbers]:
    """Return the numbers of the runs. Raises UserError unless they are those of the plan, wherever it has numbers.

    Args:
        request: the request to start the runs.
        study: the study of the plan.
        subset: the subset of a selection on which the runs are; None: the plan is one run.
        first: the request that began the first runs, whose values those of a selection repeat; None: it is this one.
    """
    runs = request.about["numbers"]
    experiment = study.experiment
    select = study.select
    n_runs = 1 if select is None else select.count_runs(str(subset))
    if len(runs) != n_runs or request.about["seed"] != experiment.settings.seed:
        raise UserError("the server started other runs than that of the plan, or with another seed")
    parameter = "" if select is None else find_path_parameter(experiment)
    precision = experiment.settings.precision
    for run in runs:
        if {section: set(fields) for section, fields in run.items()} != {name: set(runs[0][name]) for name in runs[0]}:
            raise ValueError("runs have other numbers")
        for section, fields in run.items():
            plugin = getattr(experiment, section)
            for name, value in fields.items():
                planned = getattr(plugin, name)
                if type(value) is not float or not math.isfinite(value):
                    raise ValueError(f"{section}.{name} is no number")
                is_auto = planned == AUTO or name in getattr(plugin, "auto_fields", ())
                is_relative = (section, name) == ("reg", "strength") and plugin.relative_or_none is not None
                if (section, name) == ("reg", parameter) or is_relative:
                    continue
                differs = not is_auto and np.asarray(planned, precision) != np.asarray(value, precision)
                if differs or value != runs[0][section][name]:
                    raise UserError(f"the server started a run with {section}.{name}={value:g}: the plan says "
                                    f"{planned}")  # fmt: skip
    if select is None:
        return runs
    values = [run["reg"][parameter] for run in runs]
    if first is None:
        select.check_path(values, experiment)
        return runs
    path = [run["reg"][parameter] for run in first.about["numbers"]]
    is_planned = values[0] in path if subset == REFIT else values == path
    if not is_planned:
        raise UserError(f"the server started runs with other values of reg.{parameter} than those of the first fit")
    return runs


class RoundMessage(MessageKind):
    """A round: what clients receive, and the mean of what they send."""

    name = "round"
    stage = Stage.ROUNDS
    splits_at_model = (TRAIN,)
    keys = frozenset({"round", "exchange"})
    bound = MEANS
    is_mean = True
    may_withhold = True
    is_ordered = True
    absence = "{rounds} without site {site}"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        experiment = study.experiment
        algo = study.algorithm
        size = "the size of the model for each array of an upload"
        if algo.traits.hessian:
            size = "p (p + 1) / 2 + p: a Hessian and a gradient of p parameters"
        elif algo.traits.local_fits:
            size = "2 p + 1 for each client of the study, p estimates, their precisions and 1: a client fills its own"
        n_rounds = experiment.settings.rounds
        if algo.computed_rounds is not None:
            n_rounds = min(algo.computed_rounds, n_rounds)
        content = "the weighted mean of what the site's clients upload, and counts of gradients"
        if algo.traits.reveals_uploads:
            content = "what each of the site's clients uploads, in entries of its own, and counts of gradients"
        if algo.has_personal_models:
            content += "; clients' personal models are not sent"
            if algo.traits.reveals_personal:
                content += ", but the upload of a site's only client determines its model"
        if experiment.settings.batch_size is not None:
            content += "; the server knows the rows of each minibatch: as many as a client has rows may tell each row"
        if not isinstance(experiment.uplink, Identity):
            content += (f"; uploads are encoded by uplink={experiment.names['uplink']} at the site, and sent as the "
                        "server decodes them")  # fmt: skip
        return [self.quantity(size, f"{n_rounds} rounds", content, f"algo={experiment.names['algo']}")]

    def describe_in_fits(self, quantity: Quantity, study: PlannedStudy) -> Quantity | None:
        """Return the uploads of fits, which are one for all runs where they do not depend on a strength."""
        if study.algorithm.has_common_uploads:
            return replace(quantity, times=f"{quantity.times} in {study.selection.describe_fits()}")
        return super().describe_in_fits(quantity, study)

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {}

    def answer(self, site: "Site", request: Message) -> Message:
        number = int(request.about["round"])
        exchange = int(request.about["exchange"])
        mean, work = site.batch.answer_round(number, exchange, request.arrays)
        site.forget_requests(Stage.EVALUATIONS)  # of models before the round
        about = {}
        if site.batch.withholds:
            site.counts.count_withheld(site.few_rows_rule)
            about = {WITHHELD: ""}
        arrays = mean | {"work": work}
        if not site.plan.is_masked and not isinstance(site.experiment.uplink, Identity):
            arrays = pack_sparse(arrays)  # uploads that an uplink has encoded, if they have few nonzeros
        return Message(self.name, about, arrays)


class Evaluate(MessageKind):
    """The sums of an evaluation of the present models."""

    name = "evaluate"
    stage = Stage.EVALUATIONS
    splits_at_model = (TRAIN, "validation")
    bound = MEANS
    is_kept = True
    absence = "metrics after {rounds} without the rows of site {site}"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        content = "sums of losses and scores of the model over the training rows and the validation rows"
        if study.algorithm.has_personal_models:
            content += ", and of the clients' personal models over the rows of their clients, with their structure"
        return [self.quantity("a few for each split", f"{study.n_evaluations} times", content, "metrics.csv")]

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: study.n_evaluations}

    def answer(self, site: "Site", request: Message) -> Message:
        arrays = {}
        for split, sums in site.batch.sum_scores(request.arrays).items():
            for name, values in sums.items():
                arrays[f"{split}_{name}"] = values
        return Message(self.name, {}, arrays)


class Result(Notice):
    """The result of the run, which a site keeps as a record in its folder."""

    name = "result"
    stage = Stage.SCORES

    def resume(self, site: "Site", request: Message) -> None:
        site.receive_result(request)


class End(Notice):
    """The end of the runs, after which another run may begin."""

    name = LAST_REQUEST
    stage = Stage.END

    def resume(self, site: "Site", request: Message) -> None:
        site.end_runs()
