"""The effect of an algorithm's numbers: whether its functions compute with a number whose change changes nothing."""

import contextlib
from dataclasses import fields, replace
from typing import Literal, get_args, get_origin, get_type_hints

import jax

from fcorun.base.errors import UserError
from fcorun.engine.federation import Federation
from fcorun.engine.round import trace_message_shapes
from fcorun.interface.checks.property_check import Violation
from fcorun.methods.algorithms.algorithm import Algorithm


def explain_same_solution(federation: Federation, key: str) -> str:
    """Return the remark why another value of a number of an algorithm may lead to the same solution.

    Raises Violation if the algorithm computes with the number under no choice of an option.
    """
    algorithm = federation.algorithm
    if _uses_number(federation, algorithm, key):
        return (f"another algo.{key} leads to the same solution here, where it may not bind, as a threshold: check it "
                f"where it does, algo.{key}=VALUE")  # fmt: skip
    hints = get_type_hints(type(algorithm))
    for field in fields(algorithm):
        if get_origin(hints[field.name]) is not Literal:
            continue
        for choice in get_args(hints[field.name]):
            with contextlib.suppress(UserError):  # a choice that needs other options
                if _uses_number(federation, replace(algorithm, **{field.name: choice}), key):
                    present = getattr(algorithm, field.name)
                    return (f"algo.{field.name}={present} leaves algo.{key} out, which algo.{field.name}={choice} "
                            "uses: check that, too")  # fmt: skip
    raise Violation(f"another algo.{key} should lead to another solution, and leads to the same: no function of the "
                    "algorithm computes with the number; if one does with another option, check it with that, "
                    "algo.OPTION=VALUE")  # fmt: skip


def _uses_number(federation: Federation, algorithm: Algorithm, key: str) -> bool:
    """Return whether the program of a first round of an algorithm computes with a number of it."""

    def trace_round(number: jax.Array) -> None:
        parts = (replace(algorithm, **{key: number}), federation.problem, federation.data, federation.schedule)
        trace_message_shapes(*parts, dtype=federation.precision, shape_of=lambda functions: functions())

    program = jax.make_jaxpr(trace_round)(getattr(algorithm, key))
    return any(variable is program.jaxpr.invars[0] for eqn in program.jaxpr.eqns for variable in eqn.invars)
