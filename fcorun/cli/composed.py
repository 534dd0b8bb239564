"""What Hydra composes of a command line, and its run or sweep."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from fcorun.cli.failures import report
from fcorun.cli.jobs import point_of, refuse_sweep, remove_empty, run_one, run_points
from fcorun.composing.compose import OLD, plain, register_resolvers
from fcorun.composing.folders import conf_dir
from fcorun.composing.jobs import filled
from fcorun.composing.overrides import checked
from fcorun.errors import UserError
from fcorun.system.interruption import interruptible_at_once

_HYDRA: dict[str, Any] = {"version_base": "1.3"} if OLD else {"execution_whitelist": []}


def sweep(arguments: list[str]) -> None:
    """``fcorun -m`` with these arguments, in this process. What goes wrong is said; raises KeyboardInterrupt."""
    given, sys.argv = sys.argv, [sys.argv[0], "-m", *arguments]
    try:
        sys.argv[1:] = checked(sys.argv[1:])
        failures = composed_and_run()
        for error in failures:
            if not isinstance(error, SystemExit):
                report(error)
    except UserError as error:
        failures = [error]
        report(error)
    finally:
        sys.argv = given
    if any(isinstance(error, KeyboardInterrupt) for error in failures):
        raise KeyboardInterrupt


def _with(arguments: list[str], command: Callable[[], Any]) -> None:
    sys.argv[1:] = arguments
    command()


def composed_and_run() -> list[BaseException]:
    """Have Hydra compose what the command line asks for, and run it; what went wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of printing them
    register_resolvers()
    failures: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            refuse_sweep(config)
            run_one(plain(config), Path(HydraConfig.get().runtime.output_dir))
        except BaseException as error:
            failures.append(error)
            remove_empty(Path(HydraConfig.get().runtime.output_dir))
            if isinstance(error, KeyboardInterrupt):
                raise

    def sweep(points: list, config: DictConfig, launcher: dict[str, Any], part: bool = False) -> Sequence[float | None]:
        try:
            with interruptible_at_once():
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
        command = hydra.main(config_path=conf_dir(), config_name="config", **_HYDRA)(task)
        filled(sys.argv[1:], lambda arguments: _with(arguments, command))
        if {"--cfg", "-c"} & {argument.partition("=")[0] for argument in sys.argv}:
            print("# fcorun help KEY explains a key")
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
