"""The precision in which JAX computes, and how much XLA optimizes its programs."""

import jax
import jax.numpy as jnp
import pytest

from fcorun.base.system import machine
from fcorun.base.system.machine import compile_program, compile_quickly, use_precision


@pytest.mark.parametrize(("precision", "type_"), [("float32", "f32"), ("float64", "f64")])
def test_products_of_matrices_are_of_full_precision(precision, type_):
    """A GPU multiplies factors of float32 by TF32 unless the program asks for the highest precision."""
    with use_precision(precision):
        text = jax.jit(lambda x: x @ x).lower(jnp.ones((2, 2), precision)).as_text()
    assert "HIGHEST" in text
    assert f"tensor<2x2x{type_}>" in text


def test_programs_of_checks_have_the_options_that_this_xla_knows(monkeypatch):
    """The emitters of fusions take more than half of the time to compile; an unknown option changes nothing."""
    options = {}
    monkeypatch.setattr(machine, "_compiler_options", options)
    before = jax.config.read("jax_disable_most_optimizations")
    try:
        compile_quickly()
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    assert options == {"xla_cpu_use_fusion_emitters": False}
    assert compile_program(lambda x: x + 1, jnp.zeros(2))(jnp.ones(2)).tolist() == [2, 2]
    options["xla_has_no_such_option"] = True
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_has_no_such_option"):
        compile_program(lambda x: x + 1, jnp.zeros(2))
