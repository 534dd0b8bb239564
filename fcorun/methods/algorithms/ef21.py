"""Error feedback by compressed differences of gradients, EF21."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.compressed_gradient import CompressedGradientAlgorithm, ef21_step


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
