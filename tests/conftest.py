"""What every test gets: a cache of its session, an empty folder to run in."""

import importlib
import sys

import jax
import pytest


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    """The cache of this session: compiled programs and optima are used again by later tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FCORUN_CACHE", str(folder))
        jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield folder


@pytest.fixture(autouse=True)
def elsewhere(session_cache, tmp_path, monkeypatch):
    """The current folder is an empty one, and no test writes into the user's cache."""
    monkeypatch.setenv("FCORUN_CACHE", str(session_cache))
    monkeypatch.setenv("MPLCONFIGDIR", str(session_cache))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A function (name, source) that writes a module of the user's, or writes it anew, where Python finds it."""
    written = set()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file changed within a second would be taken for the old

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        written.add(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
