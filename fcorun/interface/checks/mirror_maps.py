"""The properties of a mirror map: to_dual, to_primal, and retrieve with each supported regularizer.

Call the checks within ``jax.enable_x64(True)``: numbers are in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import build_plugin, numeric_fields
from fcorun.base.errors import UserError
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.checks.problems import check_rounds, small
from fcorun.interface.checks.property_check import Checked, require, require_at_least, require_close, require_finite
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.regularizers.regularizer import Constraint, NoRegularizer, Regularizer

SIZE = 10  # the number of the parameters that the checks draw


@dataclass
class PairCase:
    """A mirror map with a supported regularizer, whose strength becomes 0.6."""

    mirror: MirrorMap
    reg: Regularizer

    def __post_init__(self) -> None:
        if hasattr(self.reg, "strength"):
            self.reg = replace(self.reg, strength=0.6)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a parameter that the regularizer accepts."""
        try:
            getattr(self.reg, "check", lambda shape: None)((SIZE,))
        except ValueError:
            return (SIZE, 3)
        return (SIZE,)


def domain_points(mirror: MirrorMap, shape: tuple[int, ...] = (SIZE,)) -> jax.Array:
    """Return eight points of the domain of h, which is either the whole space or the nonnegative orthant."""
    w = jnp.asarray(np.random.default_rng(2).standard_normal((8, *shape)))
    return w if bool(jnp.isfinite(mirror.to_dual(w[0])).all()) else jnp.abs(w)


# ---------------------------------------------------------------- the properties of a map


def check_to_primal(mirror: MirrorMap) -> None:
    """Require to_primal(to_dual(w)) = w."""
    for w in domain_points(mirror):
        require_close("to_primal(to_dual(w))", mirror.to_primal(mirror.to_dual(w)), w, rtol=1e-10)


def check_to_dual(mirror: MirrorMap) -> None:
    """Require a strictly monotone to_dual with a symmetric Jacobian: the gradient of a strictly convex function."""
    for w, u in pairwise(domain_points(mirror)):
        slope = float(((mirror.to_dual(w) - mirror.to_dual(u)) * (w - u)).sum())
        require(slope > 0, f"<to_dual(w) - to_dual(u), w - u> should be above 0 and is {slope:.8g}")
        steps = 1e-5 * jnp.eye(SIZE)
        to_dual = jax.vmap(mirror.to_dual)
        jacobian = (to_dual(w[None] + steps) - to_dual(w[None] - steps)) / 2e-5
        require_close("the Jacobian of to_dual", jacobian, jacobian.T, rtol=1e-6, atol=1e-6)


def check_retrieve_without_psi(mirror: MirrorMap) -> None:
    """Require retrieve() without a regularizer to be to_primal()."""
    for w in domain_points(mirror):
        z = mirror.to_dual(w)
        require_close(
            "retrieve(z, t, no psi)", mirror.retrieve(z, 0.8, NoRegularizer()), mirror.to_primal(z), rtol=1e-12
        )


# ---------------------------------------------------------------- the properties of a pair


def check_retrieve_minimizes(case: PairCase) -> None:
    """Require w = retrieve(z, t, psi) in the domains, such that (z - to_dual(w)) / t is a subgradient of psi at w."""
    mirror = case.mirror
    reg = case.reg
    shape = case.shape
    rng = np.random.default_rng(3)
    z = jax.vmap(mirror.to_dual)(domain_points(mirror, shape)) * 10 ** rng.uniform(-0.5, 0.7, (8, *[1] * len(shape)))
    t = jnp.asarray(10 ** rng.uniform(-1, 0.5, 8))
    retrieve = jax.jit(jax.vmap(lambda z, t: mirror.retrieve(z, t, reg)))
    value = jax.jit(jax.vmap(reg.value))
    w = retrieve(z, t)
    require(w.shape == z.shape, f"retrieve(z, t, psi) should have the shape of z, {z.shape[1:]}, and has {w.shape[1:]}")
    require_finite("psi(retrieve(z, t, psi))", value(w))
    subgradient = (z - jax.vmap(mirror.to_dual)(w)) / t.reshape(-1, *[1] * len(shape))
    prox = jax.jit(jax.vmap(lambda z: reg.prox(z, 1.0)))(w + subgradient)  # w, if it is a subgradient
    require_close("prox(w + (z - to_dual(w)) / t, 1), with w = retrieve(z, t, psi),", prox, w, rtol=1e-8,
          atol=1e-8 * float(1 + jnp.abs(subgradient).max()))  # fmt: skip
    if reg.convex is False:  # psi has no subgradients; the checks of regularizers compare its prox with a grid
        return
    feasible_points = [w[::-1], retrieve(jnp.asarray(rng.standard_normal(z.shape)), t), w + 0.1 * (w[::-1] - w)]
    is_defined_everywhere = bool(jnp.isfinite(mirror.to_dual(-jnp.ones(SIZE))).all())
    if is_defined_everywhere and not isinstance(reg, Constraint):
        feasible_points += [
            jnp.zeros_like(w),
            *(w + s * jnp.asarray(rng.standard_normal(w.shape)) for s in (1e-3, 0.1, 1)),
        ]
    for u in feasible_points:
        slope = (subgradient * (u - w)).reshape(8, -1).sum(1)
        require_at_least("psi(u), with (z - to_dual(w)) / t as a subgradient at w = retrieve(z, t, psi),", value(u),
                 value(w) + slope, 1e-9)  # fmt: skip


def check_traced_numbers(case: PairCase) -> None:
    """Require retrieve(0, 0) in the domains of h and psi, and one float32 program for two runs.

    The runs differ in psi's strength or radius, if it has one. The numbers of h are equal, for those of a plug-in may
    have only a narrow range.
    """
    mirror = case.mirror
    shape = case.shape
    halved = {name: v / 2 for name, v in numeric_fields(case.reg).items() if name in ("strength", "radius")}
    regs = (case.reg, replace(case.reg, **halved))
    z = jnp.asarray(np.random.default_rng(4).standard_normal((2, *shape)), jnp.float32).at[0].set(0)
    runs = [(numeric_fields(mirror), numeric_fields(reg)) for reg in regs]
    stacked = jax.tree.map(lambda *v: jnp.asarray(v, jnp.float32), *runs)

    def call(values, z, t):
        return replace(mirror, **values[0]).retrieve(z, t, replace(case.reg, **values[1]))

    batch = jax.jit(jax.vmap(call))(stacked, z, jnp.asarray([0, 0.3], jnp.float32))
    require(batch.dtype == jnp.float32, f"retrieve() in float32 should stay in it and is in {batch.dtype}")
    require_finite("retrieve(z, t, psi) in float32", batch)
    expected = [mirror.retrieve(z[g].astype("float64"), t, regs[g]) for g, t in enumerate((0, 0.3))]
    require_close("retrieve(z, t, psi) under jax.vmap in float32", batch, expected, rtol=2e-5, atol=5e-6)
    start = mirror.to_dual(batch[0])
    require_finite("to_dual(retrieve(0, 0, psi))", start)
    require(start.dtype == jnp.float32, f"to_dual() of an array in float32 should stay in it and is in {start.dtype}")
    require_finite("psi(retrieve(0, 0, psi))", case.reg.value(batch[0]))


CHECKS = (check_to_primal, check_to_dual, check_retrieve_without_psi)
PAIR_CHECKS = (check_retrieve_minimizes, check_traced_numbers)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``mirror=NAME`` alone, with each regularizer that it supports, and in a run."""
    mirror = build_plugin("mirror", small("reg=none", f"mirror={name}", *overrides)["mirror"])
    yield f"mirror={name}", CHECKS, mirror
    for other in find_choices("reg"):
        try:
            reg = build_plugin("reg", small(f"reg={other}")["reg"])
        except UserError:  # the regularizer has required keys
            continue
        if mirror.supports(reg):
            yield f"mirror={name} reg={other}", PAIR_CHECKS, PairCase(mirror, reg)
    fixed = ("reg=none", "algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=2")
    yield f"mirror={name} in a run", [check_rounds], lambda _: small(f"mirror={name}", *overrides, *fixed)
