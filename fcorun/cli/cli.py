"""The command line: the only place that knows Hydra and OmegaConf."""

import dataclasses
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException

from fcorun.cli import commands
from fcorun.errors import UserError, describe, nearest

# Hydra 1.3 wants version_base and does not know execution_whitelist; 1.4 the other way round. Nothing is ever executed
# by name through Hydra here, so the whitelist is empty.
_OLD = hydra.__version__.startswith("1.3")
_HYDRA: dict[str, Any] = {"version_base": "1.3"} if _OLD else {"execution_whitelist": []}
_IDENTITIES: dict[int, str] = {}  # of configurations in hand, for run_id
_BAD_INPUT = (UserError, HydraException, OmegaConfBaseException)


def conf_dir() -> str:
    """The folder of the configuration files: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent.parent / "conf"
    return str(inside if inside.is_dir() else inside.parent.parent / "conf")


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration that ``fcorun OVERRIDES`` would run, as plain values.

    >>> compose(["algo=fedmid", "rounds=20"])["algo"]["name"]
    'fedmid'

    Raises UserError, as the command line would say it.
    """
    try:
        with hydra.initialize_config_dir(conf_dir(), **({"version_base": "1.3"} if _OLD else {})):
            return plain(hydra.compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(sentence(error)) from error


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved. Raises UserError."""
    try:
        values = {}
        for key in (str(key) for key in config if key != "hydra"):
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (InterpolationKeyError, InterpolationResolutionError) as error:
        from fcorun.config import build_plugin

        data: Any = OmegaConf.to_container(config.data, resolve=True)
        build_plugin("data", data)  # a wrong data.task is what to say first
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}; set {error.full_key} itself") from error
    return values


def run_id(*, _root_: DictConfig) -> str:
    """Eight digits of the identity of the run that a configuration describes; the resolver behind hydra.run.dir."""
    from fcorun.experiment.experiment import prepare

    return _IDENTITIES.get(id(_root_)) or prepare(plain(_root_)).identity[:8]


def sentence(error: BaseException) -> str:
    """One sentence for what Hydra or OmegaConf did not like, with the nearest valid name."""
    user = _cause(error, UserError)
    if user is not None:
        return str(user)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = error.options or []
        return f"there is no {group}={name}: {nearest(name, options)}" if group else str(error).splitlines()[0]
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Ambiguous value" in str(error):
        return f"{text[0]}; several values are a sweep, fcorun -m"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {text[0]}"
    key = re.search(r"Could not override '([^']+)'", str(error))
    cause = _cause(error, OmegaConfBaseException)
    parent = getattr(cause, "parent_node", None)
    if key and parent is not None and hasattr(parent, "keys"):
        prefix, _, last = key[1].rpartition(".")
        valid = [str(name) for name in parent if name != "hydra"]
        if key[1] in ("topology.edges", "topology.rounds", "topology.map"):
            return f"{key[1]} is of topology=tree: give that too"
        return f"unknown option '{key[1]}': {nearest(last, valid)}" + (f" in {prefix}" if prefix else "")
    if key:
        return f"unknown option '{key[1]}'; fcorun --cfg job shows every key"
    return text[0] + (f" ({text[1]})" if len(text) > 1 else "")


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is one that the user can mend."""
    return _cause(error, _BAD_INPUT) is not None


def _cause(error: BaseException | None, kind: type | tuple[type, ...]) -> Any:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def main() -> None:
    """The command ``fcorun``. Exits with 2 for bad input, 1 for a failure, 130 when interrupted."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"fcorun {version('fcorun')}")
        return
    if sys.argv[1:2] and sys.argv[1] in commands.COMMANDS:
        sys.exit(commands.main(sys.argv[1:]))
    if sys.argv[1:2] and not re.search("[=~]|^-", sys.argv[1]):
        known = nearest(sys.argv[1], commands.COMMANDS)
        sys.exit(_report(UserError(f"'{sys.argv[1]}' is neither KEY=VALUE nor a command: {known}")))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of printing them
    sys.path.insert(0, os.getcwd())  # a user's own plug-ins
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    register: Any = OmegaConf.register_new_resolver if _OLD else OmegaConf.register_resolver
    register("run_id", run_id, replace=True)
    register("sweep_name", _sweep_name, replace=True)
    failures: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            _run(plain(config), Path(HydraConfig.get().runtime.output_dir))
        except BaseException as error:
            failures.append(error)
            _remove_empty(Path(HydraConfig.get().runtime.output_dir))
            if isinstance(error, KeyboardInterrupt):
                raise

    def sweep(points: list, config: DictConfig, launcher: dict[str, Any]) -> list[float | None]:
        try:
            code, values = _sweep(points, config, launcher)
        except BaseException as error:
            failures.append(error)
            raise
        if code:
            failures.append(SystemExit(code))
        return values

    task.__module__ = "fcorun.cli.cli"
    task.sweep, task.point = sweep, _point  # type: ignore[attr-defined]
    try:
        hydra.main(config_path=conf_dir(), config_name="config", **_HYDRA)(task)()
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, BrokenPipeError) and not failures:  # the reader of --help or --cfg has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        if isinstance(error, OSError) and not isinstance(error, HydraException) and not failures:  # Hydra makes folders
            error = UserError(f"hydra.run.dir: cannot write {error.filename} ({error.strerror}); choose another folder")
        if error not in failures:
            failures.append(error)
    if failures:
        sys.exit(max([int(e.code or 0) if isinstance(e, SystemExit) else _report(e) for e in failures]))


def _run(config: dict[str, Any], folder: Path) -> None:
    from fcorun.cli.console import Console
    from fcorun.experiment.experiment import prepare
    from fcorun.records.folder import RunFolder
    from fcorun.runs.runner import run
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    verbose = config.get("verbose", True) is not False
    try:
        shown = folder.relative_to(Path.cwd())
    except ValueError:
        shown = folder
    with Console(verbose) as console:
        if config.get("dry_run") is True:
            experiment = prepare(config)
            found = RunFolder(folder, experiment.identity).look(experiment.settings.force)
            state = {"finished": "done", "resume": "goes on", "new": "to run"}[found]
            console.out.print(f"{experiment.label}: {state} ({shown})")
            _remove_empty(folder)
            return
        run(config, shown, console)


def _point(overrides: str, config: DictConfig, values: dict[str, Any] | None):
    """A point of a sweep from its composed configuration, and its plain values if they are known."""
    from fcorun.experiment.experiment import prepare
    from fcorun.runs.sweep import Point

    experiment = prepare(values or plain(config))
    _IDENTITIES[id(config)] = experiment.identity[:8]
    try:
        folder = Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir)
    finally:
        del _IDENTITIES[id(config)]
    return Point(overrides, folder, experiment)


def _sweep(points: list, config: DictConfig, launcher: dict[str, Any]) -> tuple[int, list[float | None]]:
    """Run a sweep: the exit code, and the tail average of the metric for each point."""
    from fcorun.config import build, how_keys
    from fcorun.runs.sweep import Options, run_sweep, value_of
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    root = {f.name: config[f.name] for f in dataclasses.fields(Options) if f.name in how_keys()}
    executor: Any = OmegaConf.to_container(OmegaConf.create(launcher), resolve=True)
    build(Options, executor, "hydra.launcher")  # says the right name of a key that is wrong
    options = build(Options, root | executor)
    code = run_sweep(points, Path(str(config.hydra.sweep.dir)), options)
    return code, [value_of(point, options) for point in points]


def _sweep_name(*, _root_: DictConfig) -> str:
    """Where a sweep goes, below outputs: a figure's runs beside the figure, others by what they are."""
    from hydra_plugins.fcorun import sweep_name

    if _root_.get("figure"):
        return f"figures/{_root_.figure.get('runs') or _root_.hydra.runtime.choices.experiment}/runs"
    return "sweeps/" + sweep_name(list(_root_.hydra.overrides.task))


def _report(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    if "debug=true" in sys.argv or "debug=True" in sys.argv:
        import traceback

        traceback.print_exception(error)
    elif isinstance(error, KeyboardInterrupt):
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
    elif is_bad_input(error):
        print(f"fcorun: {sentence(error)}", file=sys.stderr)
    else:
        print(f"fcorun: {describe(error)}{_place(error)} (debug=true shows the traceback)", file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if is_bad_input(error) else 1


def _place(error: BaseException) -> str:
    """Where in a user's own file an error came up, if it did."""
    from traceback import extract_tb

    ours, theirs = str(Path(__file__).parent.parent), ("site-packages", "<", "lib/python")
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    own = [f for f in frames if not any(part in f.filename for part in theirs)]
    return f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""


def _remove_empty(folder: Path) -> None:
    """Take back the folder that Hydra made, and those above it under the current one, where they are empty."""
    for path in (folder, *(parent for parent in folder.parents if Path.cwd() in parent.parents)):
        try:
            path.rmdir()
        except OSError:
            return
