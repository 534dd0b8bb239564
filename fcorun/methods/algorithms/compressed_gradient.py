"""Proximal gradient descent on compressed gradients: EF21 and DIANA."""

import math
from dataclasses import dataclass

from fcorun.base.config import AUTO, AutoPositive
from fcorun.methods.algorithms.algorithm import Algorithm, ProblemConstants, Traits


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


@dataclass(frozen=True, kw_only=True)
class EF21(CompressedGradientAlgorithm):
    """EF21 with the prox of psi, full gradients, and a compressor C that is a contraction.

    Client and server remember the estimate G_m of the client's gradient g_m, which starts at 0 and moves by
    C(g_m - G_m). The server takes the mean of the new estimates for the gradient. The "auto" step is ``ef21_step``.
    """

    source = "EF21-Prox of @fatkhullin2021"
    traits = Traits(
        psi_sides=("server",), partial=False, deterministic=True, exact="composite", uploads="points", feedback="ef21"
    )

    def auto(self, constants):
        return {"step": ef21_step(constants)}


@dataclass(frozen=True, kw_only=True)
class DIANA(CompressedGradientAlgorithm):
    """DIANA with the prox of psi, full gradients, and an unbiased compressor C with E|C(v) - v|^2 <= omega |v|^2.

    Client and server remember h_m, which starts at 0. The server gets the estimate h_m + C(g_m - h_m) of the gradient
    g_m, and h_m moves by alpha C(g_m - h_m), with alpha = 1 / (1 + omega). "auto" is the step 1 / (L + 6 omega p L_max)
    of Gorbunov, Hanzely and Richtarik (A unified theory of SGD, AISTATS 2020), with L the smoothness of F, L_max that
    of any client, and p the largest weight of a client in F, 1 / M for M equal clients.
    """

    source = "algorithm 1 of @mishchenko2019"
    traits = Traits(
        psi_sides=("server",), partial=False, deterministic=True, exact="composite", uploads="points", feedback="diana"
    )

    def auto(self, constants):
        noise = 6 * constants.upload_variance * constants.largest_share * constants.client_smoothness
        return {"step": 1 / (constants.cohort_smoothness + noise)}
