"""The properties of a regularizer: value, prox, and the optional methods.

Call the checks within ``jax.enable_x64(True)``: numbers are in float64, and in float32 where precision matters.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import build_plugin, field_marks, numeric_fields
from fcorun.base.errors import UserError
from fcorun.interface.checks.problems import Config, check_rounds, small
from fcorun.interface.checks.property_check import (
    Checked,
    find_checks,
    require,
    require_at_least,
    require_at_most,
    require_close,
    require_finite,
    skip_unless,
)
from fcorun.methods.regularizers.regularizer import Constraint, Regularizer

SHAPES = ((12,), (4, 3))  # of the parameters that are tested
POINTS = 16  # the number of points that a compiled program takes


@dataclass
class RegularizerCase:
    """A regularizer, and the shape of the parameter that it is tested on.

    Attributes:
        precisions: the dtypes that are tested.
        programs: the compiled methods, which the cases of one regularizer may share.
    """

    reg: Regularizer
    shape: tuple[int, ...]
    precisions: tuple[str, ...] = ("float64", "float32")
    programs: dict[str, Callable] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if any(field.name == "strength" for field in fields(self.reg)):
            self.reg = replace(self.reg, strength=0.7)

    @property
    def is_constraint(self) -> bool:
        return isinstance(self.reg, Constraint)

    @property
    def is_convex(self) -> bool:
        return vars(type(self.reg)).get("convex") is True

    def skip_without(self, *methods: str) -> None:
        """Raise NotApplicable for a regularizer that lacks one of these optional methods."""
        for method in methods:
            skip_unless(hasattr(self.reg, method), f"it has no {method}()")

    def draw_points(self, rng: np.random.Generator, count: int = 8) -> np.ndarray:
        """Draw random points of several sizes, with some zero entries."""
        size = 10 ** rng.uniform(-1, 1, (count, *[1] * len(self.shape)))
        return rng.standard_normal((count, *self.shape)) * size * (rng.random((count, *self.shape)) < 0.8)

    def evaluate(self, method: str, *arrays: np.ndarray, precision: str = "float64", **changes: Any) -> np.ndarray:
        """Return ``method`` at each of at most 16 points, with ``changes`` of the regularizer's numbers."""
        if method not in self.programs:

            def at_one(values, *arrays):
                return getattr(replace(self.reg, **values), method)(*arrays)

            self.programs[method] = jax.jit(
                lambda values, *arrays: jax.vmap(lambda *point: at_one(values, *point))(*arrays)
            )
        values = {
            name: jnp.asarray(value, precision) for name, value in numeric_fields(self.with_changes(**changes)).items()
        }
        padded = [jnp.asarray(np.resize(array, (POINTS, *np.shape(array)[1:])), precision) for array in arrays]
        return np.asarray(self.programs[method](values, *padded))[: len(arrays[0])]

    def with_changes(self, **changes: Any) -> Regularizer:
        """Return the regularizer with the changes of its fields; other changes are ignored."""
        names = {field.name for field in fields(self.reg)}
        return replace(self.reg, **{name: value for name, value in changes.items() if name in names})


def regularizer_cases(reg: Regularizer) -> list[RegularizerCase]:
    """Return a case for each of ``SHAPES`` that a regularizer accepts, the first one in float32 too."""
    programs: dict[str, Callable] = {}
    shapes = []
    for shape in SHAPES:
        with suppress(ValueError):
            getattr(reg, "check", lambda shape: None)(shape)
            shapes.append(shape)
    precisions = (("float64", "float32"), ("float64",))
    return [RegularizerCase(reg, shape, kinds, programs) for shape, kinds in zip(shapes, precisions, strict=False)]


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the inner product of each pair of points."""
    return (np.asarray(x, float) * np.asarray(y, float)).reshape(len(x), -1).sum(1)


def _norm(x: np.ndarray) -> np.ndarray:
    return np.sqrt(_dot(x, x))


def _random() -> np.random.Generator:
    return np.random.default_rng(5)


# ---------------------------------------------------------------- the properties


def check_value(case: RegularizerCase) -> None:
    """Require a finite, nonnegative psi on its domain, and a penalty of 0 at 0."""
    members = case.evaluate("prox", case.draw_points(_random()), np.full(8, 0.3))
    values = case.evaluate("value", members)
    require(values.shape == (8,), f"value(w) should be one number and has the shape {values.shape[1:]}")
    require_finite("value(w) at a point that prox() has returned", values)
    require_at_least("value(w)", values, 0)
    if not case.is_constraint:
        require_close("value(0)", case.evaluate("value", np.zeros((1, *case.shape)))[0], 0)


def check_prox_minimizes(case: RegularizerCase) -> None:
    """Require that prox(z, t) minimizes t psi(u) + ||u - z||^2 / 2, for a convex psi by ||u - prox||^2 / 2 at least."""
    for precision in case.precisions:
        slack = 1e-11 if precision == "float64" else 1e-5
        rng = _random()
        z = case.draw_points(rng, POINTS)
        t = 10 ** rng.uniform(-1.5, 1, POINTS)
        best = case.evaluate("prox", z, t, precision=precision)
        require(
            best.shape == z.shape, f"prox(z, t) should have the shape of z, {z.shape[1:]}, and has {best.shape[1:]}"
        )
        require(best.dtype == precision, f"prox(z, t) of a z in {precision} should be in {precision}, too, and is in "
                                         f"{best.dtype}")  # fmt: skip
        z = z.astype(precision).astype(float)

        def objective(u, z=z, t=t, precision=precision):
            return t * case.evaluate("value", u, precision=precision) + _dot(u - z, u - z) / 2

        others = [case.evaluate("prox", case.draw_points(rng, POINTS), t, precision=precision) for _ in range(3)]
        if case.is_convex:
            others += [best + share * (others[0] - best) for share in (1e-3, 0.1)]
        if not case.is_constraint:
            others += [best + size * rng.standard_normal(best.shape) for size in (1e-4, 1e-2, 1)]
            others += [z, np.zeros_like(z), 0.99 * best, 1.01 * best]
        for u in others:
            lead = _dot(u - best, u - best) / 2 if case.is_convex else 0
            require_at_least(f"t psi(u) + ||u - z||^2 / 2 in {precision}, at a u that is not prox(z, t),", objective(u),
                     objective(best) + lead, slack * (1 + objective(u) + _dot(z, z)))  # fmt: skip


def check_prox_nonexpansive(case: RegularizerCase) -> None:
    """Require that prox is firmly nonexpansive: ||p - q||^2 <= <p - q, x - y>, p = prox(x, t), q = prox(y, t)."""
    skip_unless(case.is_convex, "its class does not declare convex = True")
    for precision in case.precisions:
        slack = 1e-12 if precision == "float64" else 1e-5
        rng = _random()
        x = case.draw_points(rng)
        y = case.draw_points(rng)
        t = np.full(8, 0.6)
        p, q = (case.evaluate("prox", point, t, precision=precision) for point in (x, y))
        require_at_least(f"<p - q, x - y> in {precision}, for p = prox(x, t) and q = prox(y, t),", _dot(p - q, x - y),
                 _dot(p - q, p - q), slack * (1 + _dot(x - y, x - y)))  # fmt: skip


def check_projection(case: RegularizerCase) -> None:
    """Require that project() returns members of the set, keeps members, and that violation() is the distance."""
    skip_unless(case.is_constraint and not hasattr(case.reg, "strength"), "it is no Constraint")
    for precision in case.precisions:
        rng = _random()
        z = np.concatenate([case.draw_points(rng), 100 * case.draw_points(rng)])
        w = case.evaluate("project", z, precision=precision)
        size = 1 + _norm(z)
        rounding = 20 * np.finfo(precision).eps * size
        require_close("prox(z, t)", case.evaluate("prox", z, np.full(POINTS, 3.0), precision=precision), w)
        require_close("value(project(z))", case.evaluate("value", w, precision=precision), np.zeros(POINTS))
        require_at_most("violation(project(z))", case.evaluate("violation", w, precision=precision), 0, rounding)
        projected = case.evaluate("project", w, precision=precision)
        require_at_most("||project(project(z)) - project(z)||", _norm(projected - w), 0, rounding)
        distance = _norm(z - w)
        violation = case.evaluate("violation", z, precision=precision)
        require_close("violation(z)", violation, distance, rtol=1e-4, atol=rounding.max())
        outside = distance > 1e-3 * size
        require(bool(outside.any()), "some of 16 random points, up to 100 times a normal one, should be outside of the "
                                     "set, and project() has moved none")  # fmt: skip
        require_close("value(z) outside of the set", case.evaluate("value", z, precision=precision)[outside],
              np.full(outside.sum(), np.inf))  # fmt: skip
        if case.is_convex:
            middle = (w.astype(float) + w.astype(float)[::-1]) / 2
            require_close(
                "project() of the middle of two members", case.evaluate("project", middle), middle, atol=rounding.max()
            )


def check_conjugate(case: RegularizerCase) -> None:
    """Require value(w) + conjugate(v) >= <w, v>, with equality for w = prox(z, 1) and its subgradient v = z - w."""
    case.skip_without("conjugate", "dual_scale")
    rng = _random()
    z = case.draw_points(rng)
    w = case.evaluate("prox", z, np.ones(8))
    v = z - w
    require_close("dual_scale(z - prox(z, 1))", case.evaluate("dual_scale", v), np.ones(8), rtol=1e-12)
    total = case.evaluate("value", w) + case.evaluate("conjugate", v)
    require_close("value(w) + conjugate(v), with w = prox(z, 1) and v = z - w,", total, _dot(w, v), atol=1e-10)
    other = case.evaluate("prox", case.draw_points(rng), np.full(8, 0.1))
    require_at_least(
        "value(u) + conjugate(v)", case.evaluate("value", other) + case.evaluate("conjugate", v), _dot(other, v), 1e-11
    )
    far = 100 * rng.standard_normal(z.shape)
    scale = case.evaluate("dual_scale", far)
    require_at_least("dual_scale(v)", scale, 0)
    require_at_most("dual_scale(v)", scale, 1)
    far *= scale.reshape(-1, *[1] * len(case.shape))
    require_at_least(
        "value(w) + conjugate(s v), with s = dual_scale(v),",
        case.evaluate("value", w) + case.evaluate("conjugate", far),
        _dot(w, far),
        1e-10,
    )
    if not case.is_constraint or hasattr(case.reg, "strength"):
        beyond = case.evaluate("prox", 1.01 * far, np.ones(8))
        require(bool(((scale == 1) | beyond.any(axis=tuple(range(1, beyond.ndim)))).all()),
                "dual_scale(v) should be the largest s at which conjugate(s v) is finite: prox(1.01 s v, 1) is 0, so "
                "that a larger one would do")  # fmt: skip


def check_subgradient(case: RegularizerCase) -> None:
    """Require psi(u) >= psi(w) + <subgradient(w), u - w>, at w = 0 too."""
    case.skip_without("subgradient")
    rng = _random()
    w = np.concatenate([case.draw_points(rng), np.zeros((1, *case.shape))])
    subgradient = case.evaluate("subgradient", w)
    shape = subgradient.shape
    require(shape == w.shape, f"subgradient(w) should have the shape of w and has {shape[1:]}")
    for u in (2 * w, w / 2, *(case.draw_points(rng, 9) for _ in range(5))):
        require_at_least(
            "value(u)", case.evaluate("value", u), case.evaluate("value", w) + _dot(subgradient, u - w), 1e-10
        )


def check_strength_max(case: RegularizerCase) -> None:
    """Require that 0 minimizes <gradient, w> + psi(w) just above strength_max(gradient), and not just below."""
    case.skip_without("strength_max")
    for gradient in case.draw_points(_random()):
        largest = float(case.evaluate("strength_max", gradient[None])[0])
        for factor, side, moves in ((1.0001, "above", False), (0.9999, "below", True)):
            moved = bool(case.evaluate("prox", -gradient[None], np.ones(1), strength=factor * largest).any())
            wanted = "have nonzero entries" if moves else "be 0"
            require(moved == moves, f"prox(-gradient, 1) should {wanted} with a strength just {side} "
                                    f"strength_max(gradient) = {largest:.6g}")  # fmt: skip


def check_relative_strength(case: RegularizerCase) -> None:
    """Require strength_max() of a regularizer with a relative strength."""
    skip_unless(hasattr(case.reg, "relative"), "it has no field relative")
    require(hasattr(case.reg, "strength_max"), "a regularizer with the field relative should have strength_max(), the "
                                               "strength that it is relative to, and has none")  # fmt: skip


def check_vmap(case: RegularizerCase) -> None:
    """Require that one program for runs with different numbers gives the results of single runs."""
    methods = ["value", "prox"]
    methods += [n for n in ("subgradient", "conjugate", "dual_scale", "violation") if hasattr(case.reg, n)]
    marks = field_marks(type(case.reg))
    for precision in case.precisions:
        rtol = 1e-12 if precision == "float64" else 1e-5
        z = jnp.asarray(_random().standard_normal((3, *case.shape)), precision)
        settings = []
        for factor in (1, 0.5, 0):
            numbers = {}
            for name, value in numeric_fields(case.reg).items():  # those that must be positive grow instead
                numbers[name] = value * (2 - factor if "positive" in marks[name] else factor)
            settings.append(numbers)
        stacked = jax.tree.map(lambda *v, precision=precision: jnp.asarray(v, precision), *settings)
        time = jnp.full(1, 0.3, precision)

        def evaluate_all(values, z, time=time):
            reg = replace(case.reg, **values)
            return {name: getattr(reg, name)(z, *([time[0]] if name == "prox" else [])) for name in methods}

        batch = jax.jit(jax.vmap(evaluate_all, in_axes=(0 if stacked else None, 0)))(stacked, z)
        for g in range(3):
            for name in methods:
                arrays = [np.asarray(array) for array in (z[g : g + 1], *([time] if name == "prox" else []))]
                expected = case.evaluate(name, *arrays, precision=precision, **settings[g])[0]
                require(expected.dtype == precision, f"{name}() of an array in {precision} should be in {precision}, "
                                                     f"too, and is in {expected.dtype}")  # fmt: skip
                require(not np.isnan(expected).any(), f"{name}() in {precision} should be a number and is NaN")
                require_close(f"{name}() under jax.vmap in {precision}", batch[name][g], expected, rtol=rtol, atol=1e-6)


def check_zero_strength(case: RegularizerCase) -> None:
    """Require prox(z, 0) = z, and psi = 0 with strengths of 0."""
    skip_unless(not case.is_constraint, "it is a Constraint")
    strengths = [name for name, marks in field_marks(type(case.reg)).items() if "non-negative" in marks]
    off = {name: 0.0 for name in strengths if name in numeric_fields(case.reg)}
    for precision in case.precisions:
        z = case.draw_points(_random(), 3).astype(precision)
        require_close("prox(z, 0)", case.evaluate("prox", z, np.zeros(3), precision=precision), z)
        if hasattr(case.reg, "strength"):
            require_close(
                "prox(z, 2) with strength=0", case.evaluate("prox", z, np.full(3, 2), precision=precision, **off), z
            )
            require_close(
                "value(z) with strength=0", case.evaluate("value", z, precision=precision, **off), np.zeros(3)
            )


def check_linear_minimizer(case: RegularizerCase) -> None:
    """Require a point of the domain from linear_minimizer(g), and no point s of the domain with a smaller <g, s>.

    The minimum is minus the conjugate at -g, for constraints that have a conjugate.
    """
    case.skip_without("linear_minimizer")
    rng = _random()
    for precision in case.precisions:
        slack = 1e-11 if precision == "float64" else 1e-5
        gradient = case.draw_points(rng)
        points = case.evaluate("linear_minimizer", gradient, precision=precision)
        require(points.shape == gradient.shape, f"linear_minimizer(g) should have the shape of g, "
                                                f"{gradient.shape[1:]}, and has {points.shape[1:]}")  # fmt: skip
        require_finite("value(linear_minimizer(g))", case.evaluate("value", points, precision=precision))
        lowest = _dot(gradient, points)
        allowed = slack * (1 + np.abs(lowest))
        for _ in range(4):
            others = case.evaluate("prox", case.draw_points(rng), np.full(8, 0.3), precision=precision)
            require_at_least("<g, s> at another point of the domain", _dot(gradient, others), lowest, allowed)
        if hasattr(case.reg, "conjugate"):
            conjugates = case.evaluate("conjugate", -gradient, precision=precision)
            require_close("<g, linear_minimizer(g)>, and minus the conjugate at -g,", lowest, -conjugates, rtol=slack)
    at_zero = case.evaluate("linear_minimizer", np.zeros((1, *case.shape)))
    require_finite("value(linear_minimizer(0))", case.evaluate("value", at_zero))
    size = case.reg.minimizer_bytes(case.shape, 8)
    require(isinstance(size, int) and 0 < size <= 8 * np.prod(case.shape), "minimizer_bytes should be a whole number "
            f"of at most the array's bytes, and is {size!r}")  # fmt: skip


def check_structure(case: RegularizerCase) -> None:
    """Require scalars from structure(): the violation of a constraint, and a density above the cutoff."""
    w = jnp.asarray([0, 1e-5, -1e-5, 2e-3, -3, 5.0] * 2).reshape(case.shape)
    metrics = jax.jit(case.reg.structure)(w, 1e-4)
    for name, value in metrics.items():
        require(jnp.shape(value) == (), f"structure()['{name}'] should be one number and has {jnp.shape(value)}")
    require_close("structure()['density'] of entries of which half exceed the cutoff", metrics.get("density", 0.5), 0.5)
    require(("violation" in metrics) == case.is_constraint, "structure() of a constraint, and of nothing else, should "
                                                          "have 'violation'")  # fmt: skip


CHECKS = find_checks(__name__)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``reg=NAME`` on a vector, on a matrix, and in a run.

    Raises UserError for a regularizer that takes neither.
    """
    cases = regularizer_cases(build_plugin("reg", small(f"reg={name}", *overrides)["reg"]))
    if not cases:
        tried = " nor ".join(f"an array of shape {shape}" for shape in SHAPES)
        raise UserError(f"reg={name} takes neither {tried}, the only shapes that are checked")
    for case in cases:
        yield f"reg={name} on an array of shape {case.shape}", CHECKS, case

    def configure(_: Path) -> Config:
        skip_unless(len(cases[0].shape) == 1, "it takes no vector")
        fixed = ("algo=fedmid", "algo.client_lr=0.01", "algo.server_lr=0.5", "rounds=2")
        return small(f"reg={name}", *overrides, *fixed)

    yield f"reg={name} in a run", [check_rounds], configure
