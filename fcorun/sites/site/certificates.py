"""The sums of certificates over a site's rows: of the runs, of the model without features, and on the way to the
optimum.

A certificate is a duality gap.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.remote.certificate import NULL, RUN, SCALE, CertificateSums
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem.problem import Problem
from fcorun.methods.problem.solver import gather_site_rows
from fcorun.sites.site.few_rows import FewRowsRule
from fcorun.sites.site.request_checks import check_loss_request
from fcorun.sites.site.site_batch import SiteBatch
from fcorun.sites.transport.messages import Message


@dataclass(frozen=True)
class SiteCertificates:
    """The sums of certificates over the rows of one data set.

    Attributes:
        experiment: the experiment of the plan.
        data: the site's rows, whose clients are numbered among those of all sites.
        rule: the rule on few rows.
        started: returns the runs that have begun.
    """

    experiment: PreparedExperiment
    data: FederatedData
    rule: FewRowsRule
    started: Callable[[], SiteBatch]

    @cached_property
    def _problem(self) -> Problem:
        return build_problem(self.experiment, self.data)

    @cached_property
    def _sums(self) -> CertificateSums:
        batch = gather_site_rows(self.data, self.experiment.settings.client_weighting)
        return CertificateSums(self._problem, batch, self.rule.check)

    def sum_residuals(self, request: Message, last: Message | None) -> Message:
        """Sum the residuals at the models of a request, for which ``last`` is the last request with gradients.

        Raises UserError for losses at another model than that of ``last``, the intercept aside.
        """
        with_gradient, models = bool(request.about["gradient"]), request.about["models"]
        if not with_gradient:
            check_loss_request(request, last, "bias" in self._problem.shapes)
        if models == RUN:
            return Message("residuals", {}, self.started().sum_residuals(request.arrays, with_gradient))
        with jax.enable_x64(True):
            if models == NULL:
                return Message("residuals", {}, self._sums.null_residuals(request.arrays, with_gradient))
            model = self._sums.read_model(request.arrays)
            return Message("residuals", {}, self._sums.residuals(model, with_gradient))

    def sum_conjugates(self, request: Message) -> Message:
        """Sum the conjugates of the losses at the models of a request."""
        if request.about["models"] == RUN:
            return Message("conjugates", {}, self.started().sum_conjugates(request.arrays))
        with jax.enable_x64(True):
            leaves = dict(request.arrays)
            scale, model = leaves.pop(SCALE), self._sums.read_model(leaves)
            if scale.shape != (1,) or scale.dtype != np.float64:
                raise ValueError("no scale of residuals")
            return Message("conjugates", {}, self._sums.conjugates(model, scale))
