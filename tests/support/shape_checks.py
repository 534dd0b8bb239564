"""Checks of array shapes while tests run: every plug-in must keep the shapes that its base class declares."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import Array, Float, Shaped, install_import_hook, jaxtyped

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # accepts 1 for 1.0

# Modules whose functions are checked in every call.
TABLES = ["fcorun.data.tables.scaling", "fcorun.data.tables.splits"]
FUNCTIONS = [*TABLES, "fcorun.engine.evaluate"]


class OptionalOfRegularizers:
    """The optional methods of a regularizer, with their shapes."""

    def subgradient(self, w: Float[Array, "*shape"]) -> Float[Array, "*shape"]: ...
    def strength_max(self, gradient: Float[Array, "*shape"]) -> Float[Array, ""]: ...
    def dual_scale(self, v: Float[Array, "*shape"]) -> Float[Array, ""]: ...
    def conjugate(self, v: Float[Array, "*shape"]) -> Float[Array, ""]: ...


class OptionalOfObjectives:
    """The optional methods of an objective, with their shapes."""

    def conjugate(self, u: Float[Array, " n"], y: Shaped[Array, " n"]) -> Float[Array, " n"]: ...


def check_shapes() -> None:
    """Check array arguments and results from now on. To be called before fcorun is imported."""
    install_import_hook(FUNCTIONS, "shape_checks.typechecker")
    from fcorun.methods.mirror_maps import MirrorMap
    from fcorun.methods.objectives import Objective
    from fcorun.methods.regularizers import Regularizer

    for base, optional in ((Regularizer, OptionalOfRegularizers), (MirrorMap, None), (Objective, OptionalOfObjectives)):
        _check_class(base, base, optional)


def _check_class(base: type, cls: type, optional: type | None) -> None:
    """Check the methods of ``cls``, of its subclasses, and of subclasses that are defined later."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not getattr(method, "__isabstractmethod__", False):
            contract = _contract(cls, name, optional)
            if contract is not None and not hasattr(method, "__wrapped__"):
                setattr(cls, name, check_shapes_of(method, contract))
    for subclass in cls.__subclasses__():
        _check_class(base, subclass, optional)
    if cls is base:
        cls.__init_subclass__ = classmethod(lambda new, **_: _check_class(base, new, optional))  # type: ignore[assignment]


def _contract(cls: type, name: str, optional: type | None) -> Callable[..., Any] | None:
    """Return the method that declares the shapes of ``name``: the nearest parent's with annotated arrays."""
    for parent in (*cls.__mro__, *((optional,) if optional else ())):
        method = vars(parent).get(name)
        method = inspect.unwrap(method) if isinstance(method, FunctionType) else None
        if method is not None and "Array" in str(method.__annotations__.values()):
            return method
    return None


def check_shapes_of(method: FunctionType, contract: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` with a check of its arrays against the annotations of ``contract``; names may differ."""
    annotations = [p.annotation for p in inspect.signature(contract).parameters.values()]
    hints = dict(zip(inspect.signature(method).parameters, annotations, strict=False))
    copy = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__)
    update_wrapper(copy, method)
    copy.__kwdefaults__ = method.__kwdefaults__
    copy.__annotations__ = {k: v for k, v in hints.items() if v is not inspect.Parameter.empty}
    copy.__annotations__["return"] = contract.__annotations__["return"]
    del copy.__wrapped__  # the original method stays unchecked
    return jaxtyped(typechecker=typechecker)(copy)
