"""Base class of proximal gradient descent on compressed gradients."""

import math
from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, ProblemConstants


@dataclass(frozen=True, kw_only=True)
class CompressedGradientAlgorithm(Algorithm):
    """Proximal gradient descent whose clients send compressed differences of their gradients to what they sent before.

    The uplink compresses the differences, and keeps what client and server both remember of the client's gradients
    (``Compressor``, by ``Traits.feedback``). Without compression, ``uplink=identity``, a round is a step of proximal
    gradient descent.
    """

    source = "textbook"

    step: AutoPositive = AUTO

    def local(self, problem, server, client, data):
        return problem.gradient(server, data.whole), client

    def server(self, problem, server, mean):
        return problem.prox(server - self.step * mean, self.step)


def ef21_step(constants: ProblemConstants) -> float:
    """Return the step 1 / (L + L_max sqrt(beta / theta)) of EF21.

    L bounds the curvature of F, and L_max that of any client's loss. theta = 1 - sqrt(1 - alpha) and
    beta = (1 - alpha) / theta, for a compressor C with E|C(v) - v|^2 <= (1 - alpha) |v|^2.
    """
    root = math.sqrt(constants.upload_contraction_error)
    return 1 / (constants.cohort_smoothness + constants.client_smoothness * root / (1 - root))
