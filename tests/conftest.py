"""Fixtures of every test: a cache of the session, an empty current folder, and programs that compile fast."""

import gc
import importlib
import mmap
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path

import jax
import jaxlib
import platformdirs
import pytest
from fast_compilation import speed_up_compilation
from fast_composition import speed_up_composition
from fast_pictures import speed_up_pictures
from sampled_tests import HELP, PARTS, choose_slow_tests, is_in_part
from shape_checks import check_shapes

from fcorun.base.records.record import Record, RunFolder
from fcorun.base.system.machine import use_precision


def known_flags(flags: list[str]) -> list[str]:
    """Return the flags of XLA that this jaxlib knows: an unknown one would end the process."""
    library = max(Path(jaxlib.__file__).parent.glob("*.so"), key=lambda path: path.stat().st_size)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = [flag.strip("-").split("=")[0].encode() for flag in flags]
        return [flag for flag, name in zip(flags, names, strict=True) if content.find(b"\0" + name + b"\0") >= 0]


# Most programs of the tests run for milliseconds, and would be optimized for half a second each. Set XLA_FLAGS='' in
# the environment to compile them as users' programs are. Processes that tests start compile fast, too.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
FLAGS = " ".join(known_flags([*FLAGS, "--xla_cpu_parallel_codegen_split_count=1"]))
os.environ.setdefault("XLA_FLAGS", FLAGS)

# Processes that tests start compile the sources of fcorun once, not each anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Arrays are not broadcast to a higher rank implicitly: fcorun adds axes explicitly.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Rows are arguments of a program: as its constants they would be saved on disk with it. JAX warns, which is an error.
jax.config.update("jax_captured_constants_warn_bytes", 2**13)

check_shapes()  # before what imports fcorun's engine

importlib.import_module("matplotlib.figure")  # then the command draws in this process: starting another takes longer

WEEK = 7 * 24 * 3600.0  # seconds

gc.set_threshold(50_000)  # tracing creates many objects that stay


speed_up_compilation()
speed_up_composition()
speed_up_pictures()
importlib.import_module("shared_programs").share_programs()


def pytest_addoption(parser):
    """Add the option that chooses slow tests."""
    choices = ["all", "sample", *(str(part + 1) for part in range(PARTS))]
    parser.addoption("--slow-tests", choices=choices, metavar="all|sample|PART", help=HELP)


def pytest_configure(config):
    """Decide which slow tests this session runs. A process of pytest-xdist receives the decision."""
    decided = getattr(config, "workerinput", {}).get("slow_tests")
    config.option.slow_tests = decided or choose_slow_tests(config)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node):
    """Send the decision to a process of pytest-xdist."""
    node.workerinput["slow_tests"] = node.config.option.slow_tests


def pytest_terminal_summary(terminalreporter, config):
    """Say that the session ran a part of the slow tests."""
    part = config.option.slow_tests
    if part != "all":
        terminalreporter.write_line(f"slow tests: part {part} of {PARTS}, by the commit; --slow-tests=all runs all")


def pytest_collection_modifyitems(config, items):
    """Deselect the slow tests of other parts."""
    part = config.option.slow_tests
    if part == "all":
        return
    others = [item for item in items if item.get_closest_marker("slow") and not is_in_part(item.nodeid, int(part))]
    config.hook.pytest_deselected(items=others)
    skipped = set(others)
    items[:] = [item for item in items if item not in skipped]


def pytest_collection_finish():
    """Let the garbage collector pass over modules and tests, which stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    """The cache of this session, whose optima are reused by later tests.

    All processes and later sessions of a user share the programs that tests compile in their own process. Commands that
    tests start, and kill, have those of the session.
    """
    folder, several = tmp_path_factory.mktemp("cache"), "PYTEST_XDIST_WORKER" in os.environ
    programs = (tmp_path_factory.getbasetemp().parent if several else folder) / "programs"
    programs.mkdir(exist_ok=True)
    if several:
        (folder / "programs").symlink_to(programs)
    with pytest.MonkeyPatch.context() as patch:
        jax.devices()  # fixes their number to one: the command makes cores devices only before the first use
        patch.setenv("FCORUN_CACHE", str(folder))
        jax.config.update("jax_compilation_cache_dir", str(folder_of_programs()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # their folder would be part of each key
        jax.numpy.zeros(1)  # JAX keeps the folder of its first program, whatever folder a command names later
        yield folder


def folder_of_programs() -> Path:
    """Return the user's folder of programs compiled on this machine, without programs of over a week ago."""
    programs = Path(platformdirs.user_cache_dir("fcorun-tests"), platform.node())
    programs.mkdir(parents=True, exist_ok=True)
    for path in programs.iterdir():
        with suppress(FileNotFoundError):  # another process removes programs, too
            if path.stat().st_mtime < time.time() - WEEK:
                path.unlink()
    return programs


@pytest.fixture(autouse=True)
def empty_folder(session_cache, tmp_path, monkeypatch):
    """Run each test in an empty folder, and keep it away from the user's cache and ledger of sites."""
    monkeypatch.setenv("FCORUN_CACHE", str(session_cache))
    monkeypatch.setenv("FCORUN_STATE", str(tmp_path.with_name(f"{tmp_path.name}-state")))
    monkeypatch.setenv("MPLCONFIGDIR", str(session_cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if folder]
    )  # as a command, without the current folder


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache for this test."""
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))


def begin_empty_pictures(job, coefficients, subjects):
    """Return functions that return a run's pictures by file name, all of them empty."""
    names = ["curves.png", *["coefficients.png"] * (coefficients is not None), *["inference.png"] * len(subjects)]
    return [lambda: dict.fromkeys(names, b"")]


@pytest.fixture(autouse=True)
def declared_records(monkeypatch):
    """Hold that each record that a test completes has values of the declared types."""

    def release(folder):
        is_complete = folder.lock is not None and Record(folder.path).finished
        real_release(folder)
        if is_complete:
            Record(folder.path).check()

    real_release = RunFolder.release
    monkeypatch.setattr(RunFolder, "release", release)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Draw pictures in this process, since drawing processes would outlive the test."""
    monkeypatch.setattr("fcorun.reports.pictures.drawing_processes.start_drawing_processes", lambda: None)


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Skip the drawing of pictures, except for tests that look at them."""
    looks_at_pictures = request.path.parent.name in ("cli", "reports") and "undrawn" not in request.keywords
    if not looks_at_pictures and "drawn" not in request.keywords:
        # Functions are replaced where they are called: a module first imported meanwhile would keep another function.
        monkeypatch.setattr("fcorun.runs.finish._begin_pictures", begin_empty_pictures)
        monkeypatch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: [])
        if request.path.parent.name in ("docs", "selection"):
            monkeypatch.setattr(
                "fcorun.studies.selection.selection_result._begin_pictures",
                lambda *_: lambda: {"selection.png": b""},
            )
            monkeypatch.setattr("fcorun.studies.selection.stability.draw_stability", lambda *_: {"stability.png": b""})


@pytest.fixture(autouse=True)
def no_page(request, monkeypatch):
    """Skip the report page of sweeps and figures, except for tests that look at it."""
    if "drawn" not in request.keywords:
        monkeypatch.setattr("fcorun.reports.page.write.write_report", lambda *_: [])


@pytest.fixture
def x64():
    """Compute in double precision."""
    with use_precision("float64"):
        yield


@pytest.fixture
def compiled_well(monkeypatch):
    """Let processes that the test starts compile as those of users do."""
    monkeypatch.delenv("XLA_FLAGS")


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A function (name, source) that writes a module of the user's and imports it, as a program of the user's would."""
    written = set()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would not notice a change within a second

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        written.add(name)
        with suppress(Exception):  # a module that is meant to fail fails again where it is used
            importlib.import_module(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
