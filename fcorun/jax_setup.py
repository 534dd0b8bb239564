"""What is set in JAX before the first array."""

import jax

from fcorun.cache import cache_dir


def set_up_jax() -> None:
    """Keep compiled programs on disk, so that the second start of the same kind of run does not compile."""
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
