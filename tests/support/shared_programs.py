"""Programs that engines and solvers share in one process: most tests run what other tests run, too."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import jax
import numpy as np
import pytest

from fcorun.base.config import numeric_fields
from fcorun.base.system.machine import current_hosts
from fcorun.engine.engine import Engine
from fcorun.engine.federation import Federation
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_duality_gap

MAX_FEDERATIONS = 50  # whose programs are kept
MAX_PROBLEMS = 50  # whose programs are kept
# Modules that no program depends on.
UNRELATED = (
    "fcorun.reports",
    "fcorun.runs.finish",
    "fcorun.interface.cli",
    "fcorun.studies.selection",
    "sys",
    "_pytest",
)

_values = OrderedDict()  # by a federation's content
_solvers = OrderedDict()  # by a problem's content
_patches = set()  # the MonkeyPatch objects that have changed what a program may depend on


def share_programs() -> None:
    """Let equal federations and equal problems share their compiled programs, unless a test has patched fcorun."""
    Engine._compile = _share(Engine._compile)
    trace_shapes = Federation.shapes.func
    setattr(Federation, "shapes", property(lambda self: _share_shapes(self, trace_shapes)))  # noqa: B010
    solver.compile_programs = _share_solver(solver.compile_programs)
    pytest.MonkeyPatch.setattr = _note(pytest.MonkeyPatch.setattr)
    pytest.MonkeyPatch.undo = _forget(pytest.MonkeyPatch.undo)


def _share(compile_program):
    def compile_or_share(self, function, *arguments):
        if _may_share(self.federation) and _has_all_numbers(arguments[0], self.federation):
            self.programs.compiled = _shared(self.federation).setdefault(self.devices, self.programs.compiled)
        return compile_program(self, function, *arguments)

    return compile_or_share


def _share_solver(compile_programs):
    def compile_or_share(problem, features):
        if _patches:
            return compile_programs(problem, features)
        mirror, has_gap = _content(problem.mirror), has_duality_gap(problem, features)
        key = _content_of_problem(problem), mirror, features, has_gap
        if key not in _solvers:
            _solvers[key] = compile_programs(problem, features)
        _solvers.move_to_end(key)
        if len(_solvers) > MAX_PROBLEMS:
            _solvers.popitem(last=False)
        return _solvers[key]

    return compile_or_share


def _share_shapes(federation, trace_shapes):
    known = _shared(federation) if _may_share(federation) else vars(federation)
    if "shapes" not in known:
        known["shapes"] = trace_shapes(federation)
    return known["shapes"]


def _may_share(federation):
    return not (_patches or federation.debug or current_hosts())


def _has_all_numbers(numbers, federation):
    """Return whether no number of a plug-in is a constant of the program."""
    problem = federation.problem
    plugins = {"algo": federation.algorithm, "reg": problem.regularizer, "mirror": problem.mirror}
    plugins |= {"uplink": federation.uplink, "downlink": federation.downlink, "aggregate": federation.aggregate}
    plugins |= {"faults": federation.schedule.faults, "privacy": federation.privacy}
    return isinstance(numbers, dict) and all(
        numeric_fields(plugin).keys() <= numbers.get(section, {}).keys() for section, plugin in plugins.items()
    )


def _shared(federation):
    """Return the dictionary that federations of equal content share: programs by the number of devices, and shapes."""
    key = _content_of(federation), jax.config.read("jax_enable_x64")
    values = _values.setdefault(key, {})
    _values.move_to_end(key)
    if len(_values) > MAX_FEDERATIONS:
        _values.popitem(last=False)
    return values


def _note(set_attribute):
    def set_and_note(self, target, *rest, **options):
        set_attribute(self, target, *rest, **options)
        module = target if isinstance(target, str) else getattr(target, "__module__", None) or target.__name__
        if not module.startswith(UNRELATED):
            _patches.add(id(self))

    return set_and_note


def _forget(undo):
    def undo_and_forget(self):
        undo(self)
        _patches.discard(id(self))

    return undo_and_forget


def _content_of(federation: Federation):
    """Return a key that is equal for federations whose functions of numbers are equal; computed once."""
    if "content" not in vars(federation):
        rest = tuple(_content(each) for name, each in _fields(federation) if name not in ("algorithm", "problem"))
        template = _content_without_numbers(federation.algorithm), _content_of_problem(federation.problem)
        vars(federation)["content"] = *template, rest
    return vars(federation)["content"]


def _content_of_problem(problem):
    rest = tuple(_content(each) for name, each in _fields(problem) if name not in ("regularizer", "mirror"))
    return _content_without_numbers(problem.regularizer), _content_without_numbers(problem.mirror), rest


def _content_without_numbers(plugin):
    """Return a key of a plug-in whose numbers are arguments of the programs."""
    numbers = numeric_fields(plugin)
    rest = tuple(_content(each) for name, each in _fields(plugin) if name not in numbers)
    return type(plugin), tuple(numbers), rest


def _fields(value):
    return [(field.name, getattr(value, field.name)) for field in fields(value)]


def _content(value):
    """Return a hashable key of a value's content; of an object of unknown content, the object itself."""
    if isinstance(value, np.ndarray | jax.Array):
        array: Any = np.ascontiguousarray(value)
        return (
            array.shape,
            str(array.dtype),
            tuple(array.ravel().tolist()) if array.dtype == object else sha256(array).hexdigest(),
        )
    if isinstance(value, Mapping):
        return "dict", tuple((name, _content(each)) for name, each in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_content, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_content(getattr(value, field.name)) for field in fields(value))
    if type(value).__module__.startswith("fcorun.") and hasattr(value, "__dict__"):
        return type(value), _content(vars(value))
    if value is None or isinstance(value, bool | int | float | str | type):
        return type(value), value
    return _Itself(value)


class _Itself:
    """An object that equals itself alone."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self):
        return id(self.value)
