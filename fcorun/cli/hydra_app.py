"""The run or sweep of a command line, composed and started by Hydra."""

import os
import sys
from collections.abc import Sequence
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

_VERSION_OPTIONS: dict[str, Any] = {"version_base": "1.3"} if HYDRA_1_3 else {"execution_whitelist": []}


def run_sweep_command(arguments: list[str]) -> None:
    """Run ``fcorun -m`` with some arguments in this process, and print its errors. Raises KeyboardInterrupt."""
    argv = sys.argv
    sys.argv = [argv[0], "-m", *arguments]
    try:
        try:
            sys.argv[1:] = normalize_overrides(sys.argv[1:])
            failures = compose_and_run()
        except UserError as error:
            failures = [error]
        for error in failures:
            if not isinstance(error, SystemExit):
                report_error(error)  # reads debug=true from sys.argv
    finally:
        sys.argv = argv
    if any(isinstance(error, KeyboardInterrupt) for error in failures):
        raise KeyboardInterrupt


def compose_and_run() -> list[BaseException]:
    """Have Hydra compose the command line, and run it; return the errors."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors instead of printing them
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
    task.sweep, task.point = sweep, make_point  # type: ignore[attr-defined] # called by the launcher
    try:
        command = hydra.main(config_path=packaged_config_dir(), config_name="config", **_VERSION_OPTIONS)(task)

        def run_hydra(arguments: list[str]) -> None:
            sys.argv[1:] = arguments
            command()

        compose_with_defaults(sys.argv[1:], run_hydra)
        if {"--cfg", "-c"} & {argument.partition("=")[0] for argument in sys.argv}:
            print("# fcorun help KEY explains a key")
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, BrokenPipeError) and not failures:  # the reader of --help or --cfg has gone away
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        if isinstance(error, OSError) and not isinstance(error, HydraException) and not failures:
            # raised when Hydra makes the folder of a run
            error = UserError(f"hydra.run.dir: cannot write {error.filename} ({error.strerror}); choose another folder")
        if error not in failures:
            failures.append(error)
    return failures
