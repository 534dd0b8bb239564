"""Traits of algorithms, which decide with which problems, channels and topologies an algorithm may run."""

from dataclasses import dataclass
from typing import Literal

from fcorun.config import check_value, type_hints


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The requirements and abilities of an algorithm. fcorun.experiment.prepare refuses every other combination.

    Attributes:
        needs: the optional methods of the regularizer that the algorithm calls. A regularizer without them is refused.
        psi_sides: the sides that apply psi, of "client" and "server". Without any, psi is ignored, and the run says so.
        mirrored: True if the algorithm works with mirror maps. Without it only the Euclidean map is accepted.
        partial: True if the algorithm works with a cohort of some clients. Without it such a cohort is refused.
        quadratic_losses: True if the theory needs least squares. Other objectives are refused.
        proximal: True if clients minimise their own loss plus a further term, in closed form for least squares.
        needs_strong_convexity: True if the algorithm needs strongly convex losses; known bounds are checked.
        needs_convex_psi: True if the theory needs a convex psi; a psi that declares that it is not is refused.
        deterministic: True if clients use all their data at once, ``data.whole``, instead of minibatches.
        hierarchy: "some" if the algorithm also works with edges between clients and server, and on a graph of clients
            without a server, because the mean of its states has a meaning; "only" if it needs edges; "graph" if it
            needs a graph; "" if it needs a server.
        restores_domain: True if ``root`` and ``output`` make a point of the domains of psi and h from any mean.
        exact: the problems whose optimum the algorithm reaches with full gradients and exact solves: "smooth"
            (psi = 0), "composite" (any psi) or "" (none).
        exact_with_one_step: the same, for rounds of one step of all clients with all their data.
        robust_to_uneven_steps: True if clients of more local steps do not weigh more in the fixed point.
        decays_to_zero: True if the output of a long run goes to 0.
        shared_model: True if the algorithm trains one model for all clients. Without it no metric of such a model is
            measured, unless ``start`` gives the model.
        hessian: "linear model" if clients send Hessians, which only linear models of not too many parameters have;
            "constant" if the method is right only for least squares, whose Hessian does not depend on w; "" if neither.
        uploads: the meaning of an upload, which decides how a client may compress it: "updates" of the server's model;
            "increments" of clients' states, whose sum the server keeps, so that nothing of them may be lost; "points"
            or gradients, which do not vanish at the optimum; or "exact", numbers that must not be compressed.
        feedback: the ``uplink.feedback`` that the method consists of; "" leaves the choice to the user.
        growing_broadcasts: True if broadcasts grow with the rounds, and compressed ones never become exact.
        multiplies_means: True if the server takes products of means, so that the weights of uploads must sum to one.
        local_fits: True if each client fits its own loss, without psi, by the Hessian of a linear model. Without a
            positive ``ridge`` of the algorithm, clients with no more rows than parameters are refused.
        needs_bounded_domain: True if psi must bound every parameter. A free intercept is refused.
        sublinear: True if the algorithm approaches the optimum, but too slowly to be ``exact``.
        common_uploads: True if uploads follow from the rows alone and not from the numbers of a run, such as strengths,
            and clients have no states. Sites then send one upload for all runs of a path.
        reveals_personal: True if uploads determine a client's personal model, or nearly so. Where rows stay at their
            sites, a plan says that the server can compute the model of a site's only client.
        personal_psi: True if psi acts on the personal models, not on the model of all clients.
    """

    needs: tuple[str, ...] = ()
    psi_sides: tuple[Literal["client", "server"], ...] = ("client", "server")
    mirrored: bool = False
    partial: bool = True
    quadratic_losses: bool = False
    proximal: bool = False
    needs_strong_convexity: bool = False
    needs_convex_psi: bool = False
    deterministic: bool = False
    hierarchy: Literal["some", "only", "graph", ""] = ""
    restores_domain: bool = False
    exact: Literal["smooth", "composite", ""] = ""
    exact_with_one_step: Literal["smooth", "composite", ""] = ""
    robust_to_uneven_steps: bool = False
    decays_to_zero: bool = False
    shared_model: bool = True
    hessian: Literal["linear model", "constant", ""] = ""
    uploads: Literal["updates", "increments", "points", "exact"] = "updates"
    feedback: Literal["ef21", "diana", ""] = ""
    growing_broadcasts: bool = False
    multiplies_means: bool = False
    local_fits: bool = False
    needs_bounded_domain: bool = False
    sublinear: bool = False
    common_uploads: bool = False
    reveals_personal: bool = False
    personal_psi: bool = False

    def __post_init__(self):
        for name, hint in type_hints(Traits).items():
            check_value(getattr(self, name), hint, f"traits.{name}")
