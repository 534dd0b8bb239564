"""Programs that engines share in one process: most tests run configurations that other tests run, too."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import jax
import numpy as np
import pytest

from fcorun.engine.engine import Engine
from fcorun.engine.federation import Federation
from fcorun.system.hosts import current_hosts

MAX_FEDERATIONS = 50  # whose programs are kept
UNRELATED = ("fcorun.reports", "fcorun.cli", "fcorun.selection", "sys", "_pytest")  # modules that no program depends on

_values = OrderedDict()  # by a federation's content
_patches = set()  # the MonkeyPatch objects that have changed what a program may depend on


def share_programs() -> None:
    """Let engines of equal federations share their compiled programs, unless a test has patched fcorun."""
    Engine._compile = _share(Engine._compile)
    trace_shapes = Federation.shapes.func
    setattr(Federation, "shapes", property(lambda self: _share_shapes(self, trace_shapes)))  # noqa: B010
    pytest.MonkeyPatch.setattr = _note(pytest.MonkeyPatch.setattr)
    pytest.MonkeyPatch.undo = _forget(pytest.MonkeyPatch.undo)


def _share(compile_program):
    def compile_or_share(self, function, *arguments):
        if _may_share(self.federation):
            self.programs.compiled = _shared(self.federation).setdefault(self.devices, self.programs.compiled)
        return compile_program(self, function, *arguments)

    return compile_or_share


def _share_shapes(federation, trace_shapes):
    known = _shared(federation) if _may_share(federation) else vars(federation)
    if "shapes" not in known:
        known["shapes"] = trace_shapes(federation)
    return known["shapes"]


def _may_share(federation):
    return not (_patches or federation.debug or current_hosts())


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
    """Return a key that is equal for federations whose functions are equal; computed once."""
    if "content" not in vars(federation):
        vars(federation)["content"] = _content(federation)
    return vars(federation)["content"]


def _content(value):
    """Return a hashable key of a value's content; of an object of unknown content, the object itself."""
    if isinstance(value, np.ndarray | jax.Array):
        array: Any = np.ascontiguousarray(value)
        return array.shape, str(array.dtype), array.tolist() if array.dtype == object else sha256(array).hexdigest()
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
