"""Compressed differences of gradients, DIANA."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.compressed_gradient import CompressedGradientAlgorithm


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
