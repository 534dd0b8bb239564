"""The command ``fcorun``."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from fcorun.cli import commands
from fcorun.cli.failures import report
from fcorun.cli.jobs import point_of, refuse_sweep, remove_empty, run_one, run_points
from fcorun.cli.signals import interruptible
from fcorun.composing.compose import OLD, plain, register_resolvers
from fcorun.composing.folders import conf_dir, own, replaced, see_plugins
from fcorun.composing.jobs import filled
from fcorun.composing.overrides import checked
from fcorun.errors import UserError, nearest
from fcorun.system.hosts import joined, leave

_HYDRA: dict[str, Any] = {"version_base": "1.3"} if OLD else {"execution_whitelist": []}


def main() -> None:
    """The command ``fcorun``. Exits with 2 for bad input, 1 for a failure, 130 when interrupted."""
    code: Any = 0
    try:
        _command()
    except SystemExit as end:
        code = end.code or 0
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    except BaseException:
        code = 1
        if joined():  # leaving them ends this process
            import traceback

            traceback.print_exc()
        raise
    finally:
        leave(code)


def _command() -> None:
    folder, arguments = _own_folder(sys.argv[1:])
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"fcorun {version('fcorun')}")
        return
    if not arguments:
        print(_short_help())
        return
    if completing := arguments[0] in ("-sc", "--shell-completion") and any("query=" in word for word in arguments):
        folder, whole = _completed(os.environ.get("COMP_LINE", ""))
        if whole:
            return
    if arguments[0] in commands.COMMANDS:
        sys.exit(commands.main([arguments[0], *(["--config-dir", folder] if folder else []), *arguments[1:]]))
    if not re.search("[=~]|^-", arguments[0]):
        known = nearest(arguments[0], commands.COMMANDS)
        sys.exit(report(UserError(f"'{arguments[0]}' is neither KEY=VALUE nor a command: {known}")))
    try:
        with own(folder), interruptible():
            sys.argv[1:] = checked(arguments)
            if (files := replaced()) and not completing:
                print(f"fcorun: {folder} has its own {', '.join(files)}, used instead of fcorun's", file=sys.stderr)
            failures = _composed_and_run()
    except UserError as error:
        failures = [error]
    if failures:
        sys.exit(max([int(e.code or 0) if isinstance(e, SystemExit) else report(e) for e in failures]))


def _completed(line: str) -> tuple[str | None, bool]:
    """Print what the tab key may complete of a command line that is one of a command's; the folder that --config-dir
    names on it, if there is one, and whether that is all."""
    from fcorun.cli.completing import completions

    folder, words = _own_folder(line.split(" "))
    folder = folder if folder and Path(folder).is_dir() else None
    with own(folder):
        found, whole = completions(" ".join(words))
    print(*found, sep="\n", end="\n" if found else "")
    return folder, whole


def _own_folder(arguments: list[str]) -> tuple[str | None, list[str]]:
    """What --config-dir names, and the other arguments."""
    folder, others, given = None, [], iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value if equals else next(given, "")
        else:
            others.append(argument)
    return folder, others


def _short_help() -> str:
    """The examples of ``fcorun --help``, without the choices and keys."""
    help = yaml.safe_load(Path(conf_dir(), "hydra", "help", "fcorun.yaml").read_text())
    return f"{help['header']}  fcorun --help                                        choices, and the most used keys"


def _with(arguments: list[str], command: Callable[[], Any]) -> None:
    sys.argv[1:] = arguments
    command()


def _composed_and_run() -> list[BaseException]:
    """Have Hydra compose what the command line asks for, and run it; what went wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on instead of printing them
    see_plugins()
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
