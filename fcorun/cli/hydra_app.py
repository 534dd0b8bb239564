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

from fcorun.cli.error_report import report_error
from fcorun.cli.execution import make_point, refuse_sweep_as_run, remove_empty_folders, run_points, run_single
from fcorun.configuration.compose import HYDRA_1_3, register_resolvers, to_plain_values
from fcorun.configuration.overrides import normalize_overrides
from fcorun.configuration.search_path import packaged_config_dir
from fcorun.configuration.sweep_jobs import compose_with_defaults
from fcorun.errors import UserError
from fcorun.system.interruption import interruptible_at_once

_HYDRA: dict[str, Any] = {"version_base": "1.3"} if HYDRA_1_3 else {"execution_whitelist": []}


def run_sweep_command(arguments: list[str]) -> None:
    """``fcorun -m`` with these arguments, in this process. What goes wrong is said; raises KeyboardInterrupt."""
    given, sys.argv = sys.argv, [sys.argv[0], "-m", *arguments]
    try:
        sys.argv[1:] = normalize_overrides(sys.argv[1:])
        failures = compose_and_run()
        for error in failures:
            if not isinstance(error, SystemExit):
                report_error(error)
    except UserError as error:
        failures = [error]
        report_error(error)
    finally:
        sys.argv = given
    if any(isinstance(error, KeyboardInterrupt) for error in failures):
        raise KeyboardInterrupt


def _with(arguments: list[str], command: Callable[[], Any]) -> None:
    sys.argv[1:] = arguments
    command()


def compose_and_run() -> list[BaseException]:
    """Have Hydra compose what the command line asks for, and run it; what went wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of printing them
    register_resolvers()
    failures: list[BaseException] = []

    def task(config: DictConfig) -> None:
        try:
            refuse_sweep_as_run(config)
            run_single(to_plain_values(config), Path(HydraConfig.get().runtime.output_dir))
        except BaseException as error:
            failures.append(error)
            remove_empty_folders(Path(HydraConfig.get().runtime.output_dir))
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
    task.sweep, task.point = sweep, make_point  # type: ignore[attr-defined]
    try:
        command = hydra.main(config_path=packaged_config_dir(), config_name="config", **_HYDRA)(task)
        compose_with_defaults(sys.argv[1:], lambda arguments: _with(arguments, command))
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
