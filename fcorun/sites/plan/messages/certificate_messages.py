"""The messages of bounds and certificates: curvatures, and sums for a gap, a largest strength, and an optimum."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import TRAIN
from fcorun.engine.remote.certificate import NULL, REFERENCE, RUN, SCALE
from fcorun.experiment.optimum import MAX_CERTIFICATES, MAX_GRADIENTS, MAX_LOSSES
from fcorun.methods.objectives.intercepts import MAX_INTERCEPT_STEPS
from fcorun.methods.problem.curvature import bound_pooled_smoothness, curvature_bounds
from fcorun.sites.plan.messages.message_kind import MEANS, MessageKind, Quantity, Stage
from fcorun.sites.plan.messages.run_messages import StartMessage
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.transport.messages import NEW_RUN, Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site

_GAP_PURPOSE = "the duality gap, a bound on the distance to the optimum"
_GRADIENTS = "residuals with gradients"  # the name by which requests for gradients are counted
_OPTIMUM = " of the optimum"  # ends the names by which requests on the way to the reference optimum are counted
_DIGITS = 2  # of a bound on the curvature


def round_up(value: float, digits: int = _DIGITS) -> float:
    """Return the least number of so many significant digits that is not below a positive ``value``.

    >>> round_up(1.234), round_up(120.0)
    (1.3, 120.0)
    """
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    rounded = float(f"{math.ceil(value / unit) * unit:.{digits}g}")
    return rounded if rounded >= value else float(f"{(math.ceil(value / unit) + 1) * unit:.{digits}g}")


def round_down(value: float, digits: int = _DIGITS) -> float:
    """Return a number not above a positive ``value`` whose reciprocal has so many significant digits.

    >>> round_down(0.7) == 1 / 1.5
    True
    """
    return 1 / round_up(1 / value, digits) if value > 0 else value


class Curvature(MessageKind):
    """The bounds on the curvature of the losses of a site's clients together, rounded outwards: see ``read_bounds``.

    The bounds of minibatches are those of single rows, and tell the length of the longest row. So without minibatches,
    those of the clients stand in their place.
    """

    name = "curvature"
    stage = Stage.BOUNDS

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        experiment = study.experiment
        if not (experiment.needs_curvature_bounds or experiment.settings.reference):
            return []
        content = "bounds on the curvature of the losses of the site's clients together, rounded to two digits"
        if experiment.settings.batch_size is not None:
            content += "; those of minibatches tell the length of the longest row"
        purpose = "reference=true"
        if experiment.needs_curvature_bounds:
            purpose = f"fields of algo={experiment.names['algo']} that are auto"
        return [self.quantity("5", "once", content, purpose)]

    def describe_in_fits(self, quantity: Quantity, study: PlannedStudy) -> Quantity:
        """Return the bounds, which all values of the path share."""
        return replace(quantity, times=f"{quantity.times} in {study.selection.describe_fits()}")

    def answer(self, site: "Site", request: Message) -> Message:
        experiment = site.experiment
        own_data = site.own_data
        if not len(own_data.train):
            return Message(self.name, arrays={"bounds": np.array([np.inf, 0.0, np.inf, 0.0, 0.0])})
        bounds = []
        has_minibatches = experiment.settings.batch_size is not None
        for full_batch in (not has_minibatches, True):
            least, most = curvature_bounds(experiment.objective, own_data, full_batch)
            bounds += [round_down(least), round_up(most)]
        weighting = experiment.settings.client_weighting
        bounds.append(round_up(bound_pooled_smoothness(experiment.objective, own_data, weighting)))
        return Message(self.name, arrays={"bounds": np.array(bounds)})


class _CertificateMessage(MessageKind):
    """A message about the models of a certificate: those of a run, the one without features, or of the optimum."""

    bound = MEANS
    splits_at_model = (TRAIN,)
    absence = "gap after {rounds} not measured without site {site}"

    def count_name(self, request: Message) -> str:
        """Return the name by which a request is counted; those on the way to the optimum have limits of their own."""
        return f"{self.name}{_OPTIMUM}" if request.about.get("models") == REFERENCE else self.name

    def check_models(self, site: "Site", request: Message) -> str:
        """Return which models a request is about. Raises UserError for others than the plan's, or not at this time."""
        models = request.about["models"]
        study = site.plan
        begins_path = study.select is not None and study.select.range is None and site.counts.subset is None
        listed = {
            RUN: study.experiment.settings.gap,
            NULL: study.experiment.reg.relative_or_none is not None or begins_path,
            REFERENCE: study.experiment.settings.reference,
        }
        if not isinstance(models, str) or not listed.get(models, False):
            raise UserError("the server asked for residuals of a model that the plan does not list")
        if models == REFERENCE and StartMessage.name in site.requests:
            raise UserError("the server asked for sums on the way to the reference optimum after the start of the run: "
                            f"{NEW_RUN}")  # fmt: skip
        return models


class Residuals(_CertificateMessage):
    """Sums of losses and residuals at models, and of the products of residuals and features."""

    name = "residuals"
    stage = Stage.STRENGTH
    keys = frozenset({"models", "gradient"})
    is_kept = True

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        experiment = study.experiment
        size = "d + 4, or 4"
        content = "sums of losses, residuals, and their products with the features"
        quantities = []
        if study.select is not None and study.select.range is None:
            at_null = f"{content}, of the model without features"
            quantities.append(self.quantity(size, "a few times", at_null, "the largest strength", Stage.PATH))
        if experiment.reg.relative_or_none is not None:
            at_null = f"{content}, of the model without features"
            quantities.append(self.quantity(size, "a few times", at_null, "reg.relative"))
        if experiment.settings.reference:
            on_the_way = f"{content}, of models on the way to the optimum"
            times = f"at most {MAX_GRADIENTS} times with the products, and {MAX_LOSSES} times without"
            quantities.append(self.quantity(size, times, on_the_way, "reference=true", Stage.REFERENCE))
        if experiment.settings.gap:
            at_best = f"{content}, at the model's best intercept"
            times = (f"at most {2 * study.n_evaluations} times with the products, and "
                     f"{MAX_INTERCEPT_STEPS * study.n_evaluations} times without")  # fmt: skip
            quantities.append(self.quantity(size, times, at_best, _GAP_PURPOSE, Stage.GAPS))
        return quantities

    def count_name(self, request: Message) -> str:
        """Return the name by which a request is counted; requests for gradients have limits of their own."""
        name = super().count_name(request)
        return name.replace(self.name, _GRADIENTS) if request.about.get("gradient") else name

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        settings = study.experiment.settings
        n_models = settings.gap * study.n_evaluations + (study.experiment.reg.relative_or_none is not None)
        of_optimum = {
            f"{_GRADIENTS}{_OPTIMUM}": settings.reference * MAX_GRADIENTS,
            f"{self.name}{_OPTIMUM}": settings.reference * MAX_LOSSES,
        }
        return self._limits_at(n_models) | of_optimum

    def limits(self, study: PlannedStudy, subset: str | None) -> dict[str, int]:
        """Return the limits of requests; before the first fit of a selection those at the model without features."""
        limits = super().limits(study, subset)
        if study.select is not None and subset is None:
            limits |= self._limits_at(int(study.select.range is None))
        return limits

    def _limits_at(self, n_models: int) -> dict[str, int]:
        """Return the limits of requests at so many models, and of those for losses at their best intercepts."""
        return {_GRADIENTS: 2 * n_models, self.name: MAX_INTERCEPT_STEPS * n_models}

    def keeps(self, request: Message) -> bool:
        """Return whether the request is one for gradients, which later requests for losses repeat."""
        return bool(request.about["gradient"])

    def answer(self, site: "Site", request: Message) -> Message:
        models = self.check_models(site, request)
        with_gradient = bool(request.about["gradient"])
        if not with_gradient:
            check_loss_request(request, site.requests.get(self.name), "bias" in site.model_shapes)
        if models == RUN:
            return Message(self.name, {}, site.batch.sum_residuals(request.arrays, with_gradient))
        with jax.enable_x64(True):
            sums = site.certificate_sums
            if models == NULL:
                return Message(self.name, {}, sums.null_residuals(request.arrays, with_gradient))
            return Message(self.name, {}, sums.residuals(sums.read_model(request.arrays), with_gradient))


def check_loss_request(request: Message, last: Message | None, has_intercept: bool) -> None:
    """Raise UserError unless a request for losses repeats the last one for gradients, but for the intercept."""
    # leaves are numbered in the order of their names, so that "bias" is 0; NULL sends the bias alone, by its name
    intercept = {"0", "bias"} if has_intercept else set()
    is_same = last is not None and last.about["models"] == request.about["models"]
    if last is None or not is_same or set(last.arrays) != set(request.arrays):
        is_same = False
    else:
        fixed = request.arrays.keys() - intercept
        is_same = all(np.array_equal(request.arrays[name], last.arrays[name]) for name in fixed)
    if not is_same:
        raise UserError("the server asked for losses of another model than that of its last sums of gradients: only "
                        "the intercept may differ")  # fmt: skip


class Conjugates(_CertificateMessage):
    """The sum of the conjugates of the losses at scaled residuals."""

    name = "conjugates"
    stage = Stage.REFERENCE
    keys = frozenset({"models"})

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        settings = study.experiment.settings
        content = "the sum of the conjugates of the losses at the scaled residuals"
        quantities = []
        if settings.reference:
            quantities.append(self.quantity("1", f"at most {MAX_CERTIFICATES} times", content, "reference=true"))
        if settings.gap:
            quantities.append(self.quantity("1", f"{study.n_evaluations} times", content, _GAP_PURPOSE, Stage.GAPS))
        return quantities

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        settings = study.experiment.settings
        n_gaps = settings.gap * study.n_evaluations
        return {self.name: n_gaps, self.name + _OPTIMUM: settings.reference * MAX_CERTIFICATES}

    def answer(self, site: "Site", request: Message) -> Message:
        models = self.check_models(site, request)
        if models == NULL:  # the strength needs gradients alone
            raise UserError("the server asked for conjugates at the model without features, which no plan needs")
        if models == RUN:
            return Message(self.name, {}, site.batch.sum_conjugates(request.arrays))
        leaves = dict(request.arrays)
        scale = leaves.pop(SCALE)
        with jax.enable_x64(True):
            sums = site.certificate_sums
            model = sums.read_model(leaves)
            if scale.shape != (1,) or scale.dtype != np.float64:
                raise ValueError("no scale of residuals")
            return Message(self.name, {}, sums.conjugates(model, scale))
