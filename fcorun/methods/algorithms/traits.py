"""Traits of algorithms: the problems, channels and topologies with which each of them may run."""

from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import check_value, type_hints


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The requirements and abilities that algorithms share. fcorun.experiment.prepare refuses every other combination.

    What one algorithm alone has is an attribute of its class, which ``Method`` declares with the default.

    Attributes:
        needs: the optional methods of the regularizer that the algorithm calls. A regularizer without them is refused.
        psi_sides: the sides that apply psi, of "client" and "server". Without any, psi is ignored, and the run says so.
        mirrored: True if the algorithm works with mirror maps. Without it only the Euclidean map is accepted.
        partial: True if the algorithm works with a cohort of some clients. Without it such a cohort is refused.
        proximal: True if clients minimize their own loss plus a further term, in closed form for least squares.
        needs_strong_convexity: True if the algorithm needs strongly convex losses; known bounds are checked.
        needs_convex_psi: True if the theory needs a convex psi; a psi that declares that it is not is refused.
        deterministic: True if clients use all their data at once, ``data.whole``, instead of minibatches.
        hierarchy: "some" if the algorithm also works with edges between clients and server, and on a graph of clients
            without a server, because the mean of its states has a meaning; "only" if it needs edges; "graph" if it
            needs a graph; "" if it needs a server.
        restores_domain: True if ``root`` and ``output`` make a point of the domains of psi and h from any mean.
        exact: the problems that full gradients and exact solves solve: "smooth" (psi = 0), "composite" or "" (none).
        exact_with_one_step: the same, for rounds of one step of all clients with all their data.
        robust_to_uneven_steps: True if clients of more local steps do not weigh more in the fixed point.
        hessian: "linear model" if clients send Hessians, which only linear models of not too many parameters have;
            "constant" if the method is right only for least squares, whose Hessian does not depend on w; "" if neither.
        uploads: the meaning of an upload, which decides how a client may compress it, and whether other rules than the
            mean may combine uploads: "updates" of the server's model; "increments" of clients' states, whose sum the
            server keeps, so that nothing of them may be lost; "points" or gradients, which do not vanish at the
            optimum; "changes" of a point of the server, which neither vanish there nor may be compressed; or "exact",
            other numbers that must not be compressed.
        feedback: the ``uplink.feedback`` that the method consists of; "" leaves the choice to the user.
        growing_broadcasts: True if broadcasts grow with the rounds, and compressed ones never become exact.
        local_fits: True if each client fits its own loss, without psi, by the Hessian of a linear model, for which it
            needs more rows than parameters or a positive ``ridge`` of the algorithm.
        reveals_uploads: True if the mean of uploads tells each of them, as where a client fills entries of its own.
            Where rows stay at their sites, rules on sets of rows then hold for each client.
        reveals_personal: True if uploads determine a client's personal model, or nearly so. Where rows stay at their
            sites, a plan says that the server can compute the model of a site's only client.
        personal_psi: True if psi acts on the personal models, not on the model of all clients.
        public_uploads: the entries of uploads that follow from the number of local steps alone, where all others are
            changes of the server's state, which privacy can clip and hide by noise; None: privacy is refused.
        sums_messages: True if the server's state is the sum of messages though psi acts there, as in dual averaging.
        gradient_uploads: "dual" if others are -``client_lr`` times one step's gradient; "primal": without a mirror.
        gradient_steps: True if rows enter by one gradient in each of at most K local steps alone, where noise can act.
    """

    needs: tuple[str, ...] = ()
    psi_sides: tuple[Literal["client", "server"], ...] = ("client", "server")
    mirrored: bool = False
    partial: bool = True
    proximal: bool = False
    needs_strong_convexity: bool = False
    needs_convex_psi: bool = False
    deterministic: bool = False
    hierarchy: Literal["some", "only", "graph", ""] = ""
    restores_domain: bool = False
    exact: Literal["smooth", "composite", ""] = ""
    exact_with_one_step: Literal["smooth", "composite", ""] = ""
    robust_to_uneven_steps: bool = False
    hessian: Literal["linear model", "constant", ""] = ""
    uploads: Literal["updates", "increments", "points", "changes", "exact"] = "updates"
    feedback: Literal["ef21", "diana", ""] = ""
    growing_broadcasts: bool = False
    local_fits: bool = False
    reveals_uploads: bool = False
    reveals_personal: bool = False
    personal_psi: bool = False
    public_uploads: tuple[str, ...] | None = None
    sums_messages: bool = False
    gradient_uploads: Literal["primal", "dual", ""] = ""
    gradient_steps: bool = False

    def __post_init__(self):
        for name, hint in type_hints(Traits).items():
            check_value(getattr(self, name), hint, f"traits.{name}")

    @property
    def needs_whole_messages(self) -> bool:
        """True if no message of the method may be compressed."""
        return bool(self.hessian) or self.uploads in ("changes", "exact")

    @property
    def loses_sum_of_messages(self) -> bool:
        """True if the server applies psi to its state in each round, as far as the method says no other."""
        return "server" in self.psi_sides and not self.sums_messages

    @property
    def why_means_only(self) -> str:
        """A clause on why the method takes no other rule of ``aggregate`` than the mean; "" for no reason."""
        if self.hessian:
            return "sends Hessians, whose mean alone is that of F"
        if self.feedback:
            return "takes the mean of what client and server remember of each upload"
        return {
            "increments": "adds up the mean increments of its clients' states",
            "points": "sends points or gradients, of which another rule than the mean makes another method",
            "exact": "sends messages of which the mean alone has a meaning",
        }.get(self.uploads, "")


# the traits of methods that reach the optimum by whole data of all clients, for a convex psi on the server
EXACT_BY_WHOLE_DATA = Traits(
    psi_sides=("server",), needs_convex_psi=True, partial=False, deterministic=True, exact="composite"
)
