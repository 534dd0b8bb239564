"""What every test gets: a cache of its session, an empty folder to run in, programs that are compiled fast."""

import gc
import importlib
import mmap
import os
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import jax
import jaxlib
import pytest
import yaml
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource as Packages
from hydra._internal.hydra import Hydra
from shape_checks import check_shapes


def known(flags: list[str]) -> list[str]:
    """Those of XLA's flags that this jaxlib has: one that it has not would end the process."""
    library = max(Path(jaxlib.__file__).parent.glob("*.so"), key=lambda path: path.stat().st_size)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [flag for flag in flags if content.find(flag.strip("-").split("=")[0].encode()) >= 0]


# Most programs of the tests run for milliseconds, and would be optimized for half a second each. XLA_FLAGS='' in the
# environment has them compiled as those of users are. Processes that tests start compile fast, too.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
FLAGS = " ".join(known([*FLAGS, "--xla_cpu_parallel_codegen_split_count=1"]))
os.environ.setdefault("XLA_FLAGS", FLAGS)

# An array of one axis does not become a matrix by itself: fcorun says where an axis is added.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Rows are arguments of a program: as constants of it they would be kept on disk with it. It warns, which is an error.
jax.config.update("jax_captured_constants_warn_bytes", 2**13)

check_shapes()

gc.set_threshold(50_000)  # as in the command: tracing makes many objects that stay


def parsed_once(parse):
    """``yaml.load`` that parses files with the same text once: composing reads some twenty, for each test."""
    kept = {}

    def load(stream, Loader):
        if not hasattr(stream, "read"):
            return parse(stream, Loader)
        key = (stream.read(), Loader.__name__)
        stream.seek(0)
        if key not in kept:
            kept[key] = parse(stream, Loader)
        return deepcopy(kept[key])

    return load


yaml.load = parsed_once(yaml.load)


def looked_up_once(look):
    """Whether a package has a configuration file: Hydra asks packages first, some thirty times for each test."""
    kept = {}

    def found(self, config_path):
        if (self.path, config_path) not in kept:
            kept[self.path, config_path] = look(self, config_path)
        return kept[self.path, config_path]

    return found


Packages.is_config, Packages.is_group = map(looked_up_once, (Packages.is_config, Packages.is_group))

# Hydra composes each command once more before, to see hydra.mode, which no test sets.
Hydra.get_mode = lambda *_, **__: None


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    """The cache of this session: compiled programs and optima are used again by later tests, programs by those of all
    processes of pytest-xdist."""
    folder, several = tmp_path_factory.mktemp("cache"), "PYTEST_XDIST_WORKER" in os.environ
    programs = (tmp_path_factory.getbasetemp().parent if several else folder) / "programs"
    programs.mkdir(exist_ok=True)
    if several:
        (folder / "programs").symlink_to(programs)
    with pytest.MonkeyPatch.context() as patch:
        jax.devices()  # of which there is one from now on: the command makes cores devices only before
        patch.setenv("FCORUN_CACHE", str(folder))
        jax.config.update("jax_compilation_cache_dir", str(programs))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield folder


@pytest.fixture(autouse=True)
def elsewhere(session_cache, tmp_path, monkeypatch):
    """The current folder is an empty one, and no test writes into the user's cache."""
    monkeypatch.setenv("FCORUN_CACHE", str(session_cache))
    monkeypatch.setenv("MPLCONFIGDIR", str(session_cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # without the current folder, as a command


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache for this test."""
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Runs leave an empty picture and sweeps none, which takes no time, but where pictures are looked at."""
    rooms = ("cli", "figures", "reports")
    looked_at = request.path.parent.name in rooms and "undrawn" not in request.keywords
    if not looked_at and "drawn" not in request.keywords:
        monkeypatch.setattr("fcorun.reports.pictures.run_curves.draw_run", lambda *_, **__: b"")
        nothing = {"coefficients.png": b""}
        monkeypatch.setattr("fcorun.reports.pictures.coefficients.draw_model", lambda *_, **__: nothing)
        monkeypatch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: [])
        if request.path.parent.name == "selection":
            monkeypatch.setattr("fcorun.selection.files.draw_selection", lambda *_: {"selection.png": b""})
            monkeypatch.setattr("fcorun.selection.stability.files.draw_stability", lambda *_: {"stability.png": b""})


@pytest.fixture(autouse=True)
def no_page(request, monkeypatch):
    """Sweeps and figures in this process leave no page, but where it is looked at."""
    if "drawn" not in request.keywords:
        monkeypatch.setattr("fcorun.cli.html_report.write_report", lambda *_: [])


@pytest.fixture
def x64():
    """Arrays may have double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compiled_well(monkeypatch):
    """Processes that the test starts compile as those of users do."""
    monkeypatch.delenv("XLA_FLAGS")


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A function (name, source) that writes a module of the user's, or writes it anew, and imports it as the user does
    whose program names its classes."""
    written = set()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file changed within a second would be taken for the old

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        written.add(name)
        with suppress(Exception):  # a module that is to fail does so again where it is named
            importlib.import_module(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
