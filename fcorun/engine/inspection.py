"""Inspection of a traced ``local``: work that is lost or not counted, random numbers that are not ``data.key``'s."""

import re
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from fcorun.engine.device_rows import first_row
from fcorun.engine.federation import Federation
from fcorun.methods.algorithms.algorithm import LocalData
from fcorun.methods.problem.operation_counts import COUNTED, TracedProgram, has_marks, source_line, to_arrays

BOTH_SIDES = "gradients or proxes on both sides of a where are all computed, and all count"

_ROWS, _KEY = "rows", "key"
_DRAWS = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")
Origins = frozenset  # of _ROWS, _KEY, and the numbers of marks


def inspect_local(federation: Federation) -> list[str]:
    """Return what is doubtful of ``local`` of a federation's algorithm, a sentence each; it is traced, not computed."""
    jaxpr, again = (_trace(federation) for _ in "12")
    name = f"local() of {type(federation.algorithm).__name__}"
    texts = [re.sub("0x[0-9a-f]+", "", str(program)) for program in (jaxpr, again)]
    constants = zip(jaxpr.consts, again.consts, strict=False)
    if texts[0] != texts[1] or not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in constants):
        return [f"{name} is another program each time it is traced: it takes random numbers, or the time, from Python; "
                "draw from data.key by jax.random"]  # fmt: skip
    walk = _Walk()
    given = [_ROWS, _ROWS, _KEY, _KEY] + [None] * (len(jaxpr.jaxpr.invars) - 4)
    ends = walk.through(jaxpr.jaxpr, [Origins([origin] if origin else []) for origin in given])
    findings = [f"{name}: {sentence}" for sentence in dict.fromkeys(walk.findings)]
    if not has_marks(jaxpr.jaxpr) and any(_ROWS in origins for origins in ends):
        findings.append(f"{name} computes with rows, and no gradient of it is counted: take problem.gradient, or "
                     "derivatives of problem.loss")  # fmt: skip
    return findings


def _trace(federation: Federation) -> TracedProgram:
    """``local`` of a client with one row, as a function of x, y, the random numbers, and the states."""
    schedule, dtype = federation.schedule, federation.precision
    steps = {
        "full_batch_steps": schedule.full_batch_steps,
        "uneven_steps": schedule.uneven_steps,
        "frozen": federation.frozen,
    }
    numbers = jnp.zeros((1 if schedule.full_batch_steps else int(schedule.steps.max()), 1), jnp.int32)
    algorithm, problem = federation.algorithm, federation.problem

    def states():
        server, client = to_arrays(algorithm.init(replace(problem, key_bits=(0, 0)), problem.zeros(dtype)))
        first = algorithm.first_broadcast(server) if algorithm.has_two_exchanges else None
        return first, algorithm.broadcast(server), client

    def local(x, y, bits, chances, first_received, received, client):
        data = LocalData(x, y, numbers, dtype, **steps, key_bits=bits, shared_uniforms=chances).with_whole_data(
            numbers[0]
        )
        client_problem, first_upload = problem.for_side("client"), None
        if algorithm.has_two_exchanges:
            first_upload, client = algorithm.first_local(client_problem, first_received, client, data)
        return first_upload, *algorithm.local(client_problem, received, client, data)

    random = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((2,), np.dtype(dtype))
    return jax.make_jaxpr(local)(*first_row(federation.data, dtype), *random, *jax.eval_shape(states))


@dataclass
class _Walk:
    """Follows what each value of a program comes from.

    Attributes:
        findings: what is doubtful, a sentence each.
        marks: a number for each mark.
        called: where functions are called that are being followed, the innermost last; JAX traces them once for all.
    """

    findings: list[str] = field(default_factory=list)
    marks: dict[JaxprEqn, int] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)

    def through(self, jaxpr: Jaxpr, given: list[Origins]) -> list[Origins]:
        """Return the origins of the outputs of ``jaxpr``, given those of its arguments."""
        known = dict.fromkeys(jaxpr.constvars, Origins()) | dict(zip(jaxpr.invars, given, strict=True))

        def of(var):
            return Origins() if isinstance(var, Literal) else known[var]

        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "jit":
                self.called.append(source_line(eqn.source_info))
            ends = self._ends(eqn, [of(var) for var in eqn.invars])
            if eqn.primitive.name == "jit":
                self.called.pop()
            known.update(zip(eqn.outvars, ends, strict=True))
        return [of(var) for var in jaxpr.outvars]

    def _ends(self, eqn: JaxprEqn, origins: list[Origins]) -> list[Origins]:
        together, name = Origins().union(*origins), eqn.primitive.name
        if eqn.primitive in COUNTED:
            together |= {self.marks.setdefault(eqn, len(self.marks))}
        elif name == "select_n":
            sides = [{origin for origin in side if isinstance(origin, int)} for side in origins[1:]]
            if any(one - other and other - one for one in sides for other in sides):
                self.findings.append(f"{BOTH_SIDES}{self._place(eqn)}; take lax.cond")  # fmt: skip
        elif name in _DRAWS and _KEY not in together:
            self.findings.append(f"random numbers that are not drawn from data.key are the same for each client and in "
                              f"each round{self._place(eqn)}")  # fmt: skip
        inner = list(jaxprs_in_params(eqn.params))
        if name in ("scan", "while", "cond") or not inner:
            for jaxpr in inner:
                together = self._loop(jaxpr, together)
            return [together] * len(eqn.outvars)
        jaxpr = inner[0]
        if len(jaxpr.invars) != len(origins):
            return [self._loop(jaxpr, together)] * len(eqn.outvars)
        ends = self.through(jaxpr, origins)
        return ends if len(ends) == len(eqn.outvars) else [together.union(*ends)] * len(eqn.outvars)

    def _place(self, eqn: JaxprEqn) -> str:
        return next(filter(None, self.called), "") or source_line(eqn.source_info)

    def _loop(self, jaxpr: Jaxpr, together: Origins) -> Origins:
        """Return the origins of the outputs of a loop's body, which may take its outputs as its arguments."""
        for _ in range(2):
            together = together.union(*self.through(jaxpr, [together] * len(jaxpr.invars)))
        return together
