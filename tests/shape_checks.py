"""The shapes of arrays that signatures promise, checked while tests run: of every plug-in those of its contract."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import Array, Float, Shaped, install_import_hook, jaxtyped

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # 1 will do for 1.0

# Modules of functions: all their annotations are checked, in calls from anywhere.
FUNCTIONS = ["fcorun.tables.partition", "fcorun.engine.evaluate", "fcorun.objectives.matmul"]


class OptionalOfRegularizers:
    """The methods of a regularizer that its contract knows by name only."""

    def subgradient(self, w: Float[Array, "*shape"]) -> Float[Array, "*shape"]: ...
    def strength_max(self, gradient: Float[Array, "*shape"]) -> Float[Array, ""]: ...
    def dual_scale(self, v: Float[Array, "*shape"]) -> Float[Array, ""]: ...
    def conjugate(self, v: Float[Array, "*shape"]) -> Float[Array, ""]: ...


class OptionalOfObjectives:
    """The same of an objective."""

    def conjugate(self, u: Float[Array, " n"], y: Shaped[Array, " n"]) -> Float[Array, " n"]: ...


def check_shapes() -> None:
    """From here on, array arguments and results are checked. To be called before fcorun is imported."""
    install_import_hook(FUNCTIONS, "shape_checks.typechecker")
    from fcorun.mirror_maps import MirrorMap
    from fcorun.objectives import Objective
    from fcorun.regularizers import Regularizer

    for base, more in ((Regularizer, OptionalOfRegularizers), (MirrorMap, None), (Objective, OptionalOfObjectives)):
        _check_class(base, base, more)


def _check_class(base: type, kind: type, more: type | None) -> None:
    """Check the methods of ``kind``, of its subclasses, and of those that are yet to come."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not getattr(method, "__isabstractmethod__", False):
            contract = _contract(kind, name, more)
            if contract is not None and not hasattr(method, "__wrapped__"):
                setattr(kind, name, check_shapes_of(method, contract))
    for sub in kind.__subclasses__():
        _check_class(base, sub, more)
    if kind is base:
        kind.__init_subclass__ = classmethod(lambda new, **_: _check_class(base, new, more))  # type: ignore[assignment]


def _contract(kind: type, name: str, more: type | None) -> Callable[..., Any] | None:
    """The method that says which shapes ``name`` takes and gives: the nearest with annotations of arrays."""
    for place in (*kind.__mro__, *((more,) if more else ())):
        method = inspect.unwrap(vars(place)[name]) if isinstance(vars(place).get(name), FunctionType) else None
        if method is not None and "Array" in str(method.__annotations__.values()):
            return method
    return None


def check_shapes_of(method: FunctionType, contract: Callable[..., Any]) -> Callable[..., Any]:
    """``method``, which raises where its arrays have other shapes than ``contract`` says; names may differ."""
    taken = [p.annotation for p in inspect.signature(contract).parameters.values()]
    hints = dict(zip(inspect.signature(method).parameters, taken, strict=False))
    same = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__)
    update_wrapper(same, method)
    same.__kwdefaults__ = method.__kwdefaults__
    same.__annotations__ = {k: v for k, v in hints.items() if v is not inspect.Parameter.empty}
    same.__annotations__["return"] = contract.__annotations__["return"]
    del same.__wrapped__  # a copy, so that others may have the method as it is
    return jaxtyped(typechecker=typechecker)(same)
