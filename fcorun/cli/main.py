"""The command ``fcorun``."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from fcorun.cli import commands
from fcorun.cli.failures import report
from fcorun.cli.jobs import point_of, remove_empty, run_one, run_points
from fcorun.errors import UserError, nearest
from fcorun.experiment.compose import OLD, conf_dir, plain, register_resolvers

_HYDRA: dict[str, Any] = {"version_base": "1.3"} if OLD else {"execution_whitelist": []}


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
        sys.exit(report(UserError(f"'{sys.argv[1]}' is neither KEY=VALUE nor a command: {known}")))
    failures = _composed_and_run()
    if failures:
        sys.exit(max([int(e.code or 0) if isinstance(e, SystemExit) else report(e) for e in failures]))


def _composed_and_run() -> list[BaseException]:
    """Have Hydra compose what the command line asks for, and run it; what went wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of printing them
    sys.path.insert(0, os.getcwd())  # a user's own plug-ins
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    register_resolvers()
    failures: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            run_one(plain(config), Path(HydraConfig.get().runtime.output_dir))
        except BaseException as error:
            failures.append(error)
            remove_empty(Path(HydraConfig.get().runtime.output_dir))
            if isinstance(error, KeyboardInterrupt):
                raise

    def sweep(points: list, config: DictConfig, launcher: dict[str, Any], part: bool = False) -> Sequence[float | None]:
        try:
            code, values = run_points(points, config, launcher, part)
        except BaseException as error:
            failures.append(error)
            raise
        if code:
            failures.append(SystemExit(code))
        return values

    task.__module__ = "fcorun.cli.main"
    task.sweep, task.point = sweep, point_of  # type: ignore[attr-defined]
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
    return failures
