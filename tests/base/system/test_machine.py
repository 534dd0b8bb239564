"""The precision in which JAX computes."""

import jax
import jax.numpy as jnp
import pytest

from fcorun.base.system.machine import use_precision


@pytest.mark.parametrize(("precision", "type_"), [("float32", "f32"), ("float64", "f64")])
def test_products_of_matrices_are_of_full_precision(precision, type_):
    """A GPU multiplies factors of float32 by TF32 unless the program asks for the highest precision."""
    with use_precision(precision):
        text = jax.jit(lambda x: x @ x).lower(jnp.ones((2, 2), precision)).as_text()
    assert "HIGHEST" in text
    assert f"tensor<2x2x{type_}>" in text
