"""The run or sweep of a command line, composed by Hydra."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb, print_exception
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fcorun.base.config import build, keys_outside_identity
from fcorun.base.errors import HostLost, UserError, WriteError, describe_error, escape_controls, words_of_command
from fcorun.base.system.files import interruptible_at_once
from fcorun.experiment.configuration.compose import (
    HYDRA_1_3,
    compose_config,
    compose_with_defaults,
    describe_hydra_error,
    is_user_error,
    normalize_overrides,
    override_key,
    refuse_sweep,
    register_resolvers,
    remember_last,
    resolve_settings,
    to_plain_values,
)
from fcorun.experiment.configuration.search_path import packaged_config_dir, user_config_dir

if TYPE_CHECKING:
    from fcorun.base.system.hosts import Hosts
    from fcorun.experiment.experiment import PreparedExperiment
    from fcorun.runs.sweep import SweepPoint

PointsCheck = Callable[[Sequence["SweepPoint"], Sequence[str]], None]  # raises UserError

_VERSION_OPTIONS: dict[str, Any] = {"version_base": "1.3"} if HYDRA_1_3 else {"execution_whitelist": []}


def run_sweep_command(arguments: list[str], check: PointsCheck | None = None) -> None:
    """Run ``fcorun -m`` with some arguments in this process, and print the errors of its runs.

    ``check`` receives all points before any is run, and the conditions. Raises its UserError, or that of a sweep that
    cannot start, and KeyboardInterrupt.
    """
    failures = compose_and_run(normalize_overrides(["-m", *arguments]), check)
    for error in failures:
        if isinstance(error, UserError):
            raise error
        if not isinstance(error, SystemExit):
            report_error(error, arguments)
    if any(isinstance(error, KeyboardInterrupt) for error in failures):
        raise KeyboardInterrupt


def report_error(error: BaseException, arguments: Sequence[str]) -> int:
    """Print an error as one line; return the exit code. With debug=true in ``arguments``, print its traceback too."""
    debug = any(text.lstrip("+").lower() == "debug=true" for text in arguments)
    if debug:
        print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130
    if isinstance(error, HostLost):
        message = f"failed: {error}"
    elif is_user_error(error):
        message = describe_hydra_error(error)
    elif isinstance(error, WriteError):
        message = str(error)
    else:
        message = describe_error(error) + ("" if debug else " (debug=true shows the traceback)")
    print(escape_controls(f"fcorun: {message}"), file=sys.stderr)
    return 2 if is_user_error(error) else 1


def compose_and_run(arguments: list[str], check: PointsCheck | None = None) -> list[BaseException]:
    """Have Hydra compose the arguments of a command line, and run the result; return the errors.

    ``check`` receives a sweep's points before any is run, and its conditions.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors instead of printing them

    prepare_once = remember_last(prepare_experiment)
    register_resolvers(prepare_once)
    failures: list[BaseException] = []

    def task(config: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            if HydraConfig.get().mode == RunMode.RUN:
                refuse_sweep(config, HydraConfig.get())
            with interruptible_at_once():
                experiment = prepare_once(to_plain_values(config))
            run_single(experiment, folder, arguments)
        except BaseException as error:
            failures.append(error)
            remove_empty_folders(folder)
            if isinstance(error, KeyboardInterrupt):
                raise

    def sweep(
        points: list, config: DictConfig, launcher: dict[str, Any], without_report: bool = False
    ) -> Sequence[float | None]:
        try:
            if check:
                if not launcher.get("wait", True):
                    raise UserError("`hydra.launcher.wait=false`: a figure waits for its runs, by which it judges "
                                    "claims: leave it out")  # fmt: skip
                check(points, config.hydra.sweeper.get("conditions") or ())
            with interruptible_at_once():
                code, values = run_points(points, config, launcher, arguments, without_report=without_report)
        except BaseException as error:
            failures.append(error)
            raise
        if code:
            failures.append(SystemExit(code))
        return values

    task.__module__ = "fcorun.interface.cli.main"
    # the launcher calls both
    task.sweep = sweep  # type: ignore[attr-defined]
    task.point = make_point  # type: ignore[attr-defined]
    command = hydra.main(config_path=packaged_config_dir(), config_name="config", **_VERSION_OPTIONS)(task)

    def run_hydra(current: list[str]) -> None:
        argv = sys.argv
        sys.argv = [argv[0], *current]  # where Hydra finds them: hydra.main can be given none
        try:
            command()
        finally:
            sys.argv = argv

    shows_config = bool({"--cfg", "-c"} & {argument.partition("=")[0] for argument in arguments})
    try:
        if shows_config and {"job", "--cfg=job", "-c=job"} & set(arguments):
            arguments = with_settings_of_data(arguments)
        with words_of_command():
            compose_with_defaults(arguments, run_hydra)
        if shows_config:
            print("# fcorun help KEY explains a key")
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, BrokenPipeError) and not failures:  # the reader of --help or --cfg has gone away
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        if isinstance(error, OSError) and not isinstance(error, (HydraException, WriteError)) and not failures:
            error = explain_file_error(error)
        if error not in failures:
            failures.append(error)
    return failures


def explain_file_error(error: OSError) -> Exception:
    """Return the error of a folder that Hydra cannot make, or of a file that it cannot read, as a UserError.

    Hydra makes no other folder, and opens all else to read. An error that names no file is returned as it is.
    """
    if error.filename is None:
        return error
    if any(frame.name in ("mkdir", "makedirs") for frame in extract_tb(error.__traceback__)):
        return UserError(f"out={error.filename} cannot be written ({error.strerror}); choose another folder")
    return UserError(f"{error.filename} cannot be read ({error.strerror}); make it readable, or leave it out")


def with_settings_of_data(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with overrides for the root keys that are "auto", so that --cfg job shows their numbers.

    Raises UserError.
    """
    is_override = [not text.startswith("-") and ("=" in text or text.startswith("~")) for text in arguments]
    overrides = [text for text, applies in zip(arguments, is_override, strict=True) if applies]
    values: Any = OmegaConf.to_container(compose_config(overrides, with_hydra=False))
    settings = [f"{key}={'null' if value is None else value}" for key, value in resolve_settings(values).items()]
    at = is_override.index(True) if overrides else len(arguments)  # Hydra takes overrides in one piece only
    return [*arguments[:at], *settings, *arguments[at:]]


def run_on_other_hosts(
    hosts: Mapping[str, Any] | None,
    launcher: Mapping[str, Any],
    arguments: Sequence[str],
    folder: Path,
    experiments: "Sequence[PreparedExperiment | BaseException]",
) -> None:
    """Run the command line on several hosts, if they are configured and this process is none of them.

    Raises SystemExit with the exit code then, UserError or HostLost as ``run_on_hosts``, and UserError on the leader of
    the hosts if its experiments are not those of the command.

    Args:
        launcher: the keys hydra.launcher, which give the Dask cluster.
        folder: that of the records.
        experiments: those of the command line; the error of a configuration that is not valid.
    """
    from fcorun.base.system.machine import current_hosts, read_hosts

    options = read_hosts(hosts)
    if options.count == 1:
        return
    identities = tuple("" if isinstance(one, BaseException) else one.identity for one in experiments)
    leader = current_hosts()
    if leader:
        if leader.identities != identities:
            _explain_other_runs(leader, identities, experiments)
        return
    from fcorun.runs.executors.dask_hosts import run_on_hosts
    from fcorun.runs.executors.executor import LauncherOptions

    config_dir = user_config_dir()
    if config_dir:
        arguments = [f"--config-dir={config_dir}", *arguments]
    raise SystemExit(run_on_hosts(options, build(LauncherOptions, launcher), arguments, folder, identities))


def _explain_other_runs(
    leader: "Hosts", identities: Sequence[str], experiments: "Sequence[PreparedExperiment | BaseException]"
) -> NoReturn:
    """Raise UserError for the first run of the leader that is not that of the command."""
    host = leader.describe_host(0)
    for of_command, identity, experiment in zip(leader.identities, identities, experiments, strict=False):
        if identity == of_command:
            continue
        if isinstance(experiment, BaseException):
            raise UserError(f"{host}: {describe_hydra_error(experiment)}") from experiment
        raise UserError(f"{experiment.label}: {host} has other configuration files, code or data than the command: "
                        "give both the same")  # fmt: skip
    raise UserError(f"{host} has another number of runs than the command: give both the same configuration files")


def prepare_experiment(values: Mapping[str, Any]) -> "PreparedExperiment":
    """Return the prepared experiment of plain values, by the Experiment that Python programs use. Raises UserError."""
    from fcorun.interface.api.experiment_object import experiment_of_config, prepare_objects

    return prepare_objects(vars(experiment_of_config(values)))


def run_single(experiment: "PreparedExperiment", folder: Path, arguments: Sequence[str]) -> None:
    """Run an experiment into a folder; with ``dry_run``, print what would be done."""
    from fcorun.base.records.record import RunFolder
    from fcorun.base.system.machine import read_hosts, set_up_jax
    from fcorun.interface.cli.console import Console
    from fcorun.runs.batch import check_devices
    from fcorun.runs.executors.executor import check_launcher_of_run
    from fcorun.runs.run_experiments import run_experiments

    set_up_jax()
    settings = experiment.settings
    hydra = HydraConfig.get()
    launcher: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    del launcher["_target_"]
    given = {override_key(text).removeprefix("hydra.launcher.") for text in hydra.overrides.hydra}
    check_launcher_of_run(launcher, given, read_hosts(settings.hosts).count > 1)
    if not settings.dry_run:
        run_on_other_hosts(settings.hosts, launcher, arguments, folder.parent, [experiment])
    try:
        relative_folder = folder.relative_to(Path.cwd())
    except ValueError:
        relative_folder = folder
    with Console(settings.verbose) as console:
        if settings.dry_run:
            check_devices([experiment])
            folder_state = RunFolder(folder, experiment.identity).inspect(settings.force)
            text = {"finished": "done", "resume": "resumes", "new": "to run"}[folder_state]
            console.show_if_verbose(f"{experiment.label}: {text} ({relative_folder})")
            remove_empty_folders(folder)
            return
        run_experiments([experiment], [relative_folder], console)


def make_point(overrides: str, config: DictConfig, values: dict[str, Any] | None) -> "SweepPoint":
    """Return a point of a sweep from its composed configuration, and from its plain values if they are known."""
    with interruptible_at_once():
        values = values or to_plain_values(config)
        experiment = prepare_experiment(values)
        from fcorun.runs.sweep import SweepPoint

    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.run_id = experiment.identity[:8]  # for the resolver ${run_id:} in the folder's name
    folder = Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir)
    return SweepPoint(overrides, folder, experiment)


def run_points(
    points: list,
    config: DictConfig,
    launcher: dict[str, Any],
    arguments: Sequence[str],
    *,
    without_report: bool = False,
) -> tuple[int, Sequence[float | None]]:
    """Run a sweep; return the exit code, and the tail average of the metric for each point.

    Args:
        without_report: for a search that goes on: no report is made, and no values are returned.
    """
    from fcorun.base.errors import MetricError
    from fcorun.base.records.record import Record
    from fcorun.base.system.machine import read_hosts, require_single_host, set_up_jax
    from fcorun.interface.cli.console import SweepConsole
    from fcorun.reports.page.write import update_report
    from fcorun.runs.executors.executor import check_launcher
    from fcorun.runs.sweep import SweepOptions, run_sweep, tail_value
    from fcorun.studies.selection.replicate_strengths import choose_strength

    set_up_jax()
    option_names = [field.name for field in dataclasses.fields(SweepOptions)]
    root_values = {name: config[name] for name in option_names if name in keys_outside_identity()}
    launcher_values: Any = OmegaConf.to_container(OmegaConf.create(launcher), resolve=True)
    hosts: Any = OmegaConf.to_container(config.hosts, resolve=True) if config.get("hosts") else None
    check_launcher(launcher_values, read_hosts(hosts).count > 1)
    if without_report and not launcher_values.get("wait", True):
        raise UserError("`hydra.launcher.wait=false`: a search waits for its points, whose results say what is next: "
                        "leave it out")  # fmt: skip
    conditions: Any = OmegaConf.to_container(OmegaConf.create({"keys": config.hydra.sweeper.get("conditions")}))
    options = build(SweepOptions, root_values | launcher_values | {"conditions": conditions["keys"]})
    if options.executor != "inline":
        require_single_host(f"hydra.launcher.executor={options.executor}", hosts)
    if any(point.experiment and point.experiment.settings.strength_study for point in points):
        require_single_host("study.strength", hosts)
    for point in points:
        if isinstance(point.error, MetricError):  # the same error for all points: raised once, before any is written
            raise point.error
    folder = Path(str(config.hydra.sweep.dir))
    if not options.dry_run:
        experiments: Any = [point.experiment or point.error for point in points]
        run_on_other_hosts(hosts, launcher_values, arguments, folder, experiments)
    with SweepConsole(options.verbose) as console:
        code = run_sweep(
            points,
            folder,
            options,
            console,
            without_report=without_report,
            choose_strength=choose_strength,
        )
        is_at_end = options.wait and not (without_report or options.dry_run)
        if code != 2 and is_at_end:
            records = [Record(point.folder) for point in points]
            for line in update_report(folder, records, is_wanted=config.get("report") is not False):
                console.show_if_verbose(line)
    return code, [] if without_report else [tail_value(point, options) for point in points]


def remove_empty_folders(folder: Path) -> None:
    """Remove the folder that Hydra made, and its parents below the current folder, as far as they are empty."""
    for path in (folder, *(parent for parent in folder.parents if Path.cwd() in parent.parents)):
        try:
            path.rmdir()
        except OSError:
            return
