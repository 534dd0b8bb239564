"""The execution of what Hydra has composed: one run, or the points of a sweep."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fcorun.configuration.compose import KNOWN_RUN_IDS, to_plain_values
from fcorun.configuration.overrides import override_key
from fcorun.errors import UserError

if TYPE_CHECKING:
    from fcorun.runs.sweep_points import SweepPoint

# The keys of hosts that differ from host to host; the rest of the command must be the same on all of them.
_HOST_KEYS = ("address", "count", "rank", "timeout", "gpus", "secret_file")


def refuse_sweep_as_run(config: DictConfig) -> None:
    """Raise UserError if the command asks for a single run of an experiment that has axes."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.RUN:
        return
    given_keys = {override_key(text) for text in hydra.overrides.task}
    params = hydra.sweeper.get("params") or {}
    axes = [key for key in params if key not in given_keys]
    if not axes and (params or not hydra.sweeper.get("also")):
        return
    experiment = hydra.runtime.choices.get("experiment")
    source = f"experiment={experiment}" if experiment else "hydra.sweeper"
    figure_advice = f", or fcorun figure {experiment} for its picture" if config.get("figure") else ""
    run_advice = f"; for one run of it, give {', '.join(axes)}" if axes else ""
    raise UserError(f"{source} is a sweep: give -m{figure_advice}{run_advice}")


def join_other_hosts(hosts: Mapping[str, Any] | None, dry_run: bool) -> None:
    """Connect to the other hosts, if several are configured, before JAX begins to compute.

    On a follower this call executes the leader's commands to the end, and raises SystemExit. Raises UserError as
    ``join_hosts`` does.
    """
    from fcorun.system.cluster import resolve_hosts
    from fcorun.system.hosts import current_hosts
    from fcorun.system.rendezvous import join_hosts
    from fcorun.system.subprocess_guard import continue_in_child

    options = resolve_hosts(hosts)
    if options is None or current_hosts():
        return
    if not hasattr(os, "fork"):
        raise UserError("several hosts need Linux or macOS: this system starts no process by fork; give hosts.count=1")
    if dry_run:  # the leader alone prints what would be run
        if options.rank:
            raise SystemExit(0)
        return
    if options.rank:
        continue_in_child()
    host_options = tuple(f"hosts.{key}=" for key in _HOST_KEYS)
    command = [text for text in sys.argv[1:] if not text.lstrip("+").startswith(host_options)]
    if join_hosts(options, command).rank:
        from fcorun.runs.hosts.follower import run_follower

        raise SystemExit(run_follower())


def run_single(config: dict[str, Any], folder: Path) -> None:
    """Run a configuration into a folder; with ``dry_run``, print what would be done."""
    from fcorun.cli.console import Console
    from fcorun.experiment.prepare import prepare
    from fcorun.records.folder import RunFolder
    from fcorun.runs.batching import check_devices
    from fcorun.runs.run import run
    from fcorun.system.interruption import interruptible_at_once
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    with interruptible_at_once():
        experiment = prepare(config)  # ``run`` prepares again: here errors are raised before other hosts are awaited
        join_other_hosts(experiment.settings.hosts, experiment.settings.dry_run)
    verbose = config.get("verbose", True) is not False
    try:
        relative_folder = folder.relative_to(Path.cwd())
    except ValueError:
        relative_folder = folder
    with Console(verbose) as console:
        if config.get("dry_run") is True:
            check_devices([experiment])
            folder_state = RunFolder(folder, experiment.identity).inspect(experiment.settings.force)
            text = {"finished": "done", "resume": "resumes", "new": "to run"}[folder_state]
            console.out.print(f"{experiment.label}: {text} ({relative_folder})")
            remove_empty_folders(folder)
            return
        run(config, relative_folder, console)


def make_point(overrides: str, config: DictConfig, values: dict[str, Any] | None) -> "SweepPoint":
    """Return a point of a sweep from its composed configuration, and from its plain values if they are known."""
    from fcorun.experiment.prepare import prepare
    from fcorun.runs.sweep_points import SweepPoint
    from fcorun.system.interruption import interruptible_at_once

    with interruptible_at_once():
        experiment = prepare(values or to_plain_values(config))
    KNOWN_RUN_IDS[id(config)] = experiment.identity[:8]  # for the resolver ${run_id:} in the folder's name
    try:
        folder = Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir)
    finally:
        del KNOWN_RUN_IDS[id(config)]
    return SweepPoint(overrides, folder, experiment)


def run_points(
    points: list, config: DictConfig, launcher: dict[str, Any], part: bool = False
) -> tuple[int, Sequence[float | None]]:
    """Run a sweep; return the exit code, and the tail average of the metric for each point.

    For ``part`` of a search no report is made, and no values are returned.
    """
    from fcorun.cli.console import SweepConsole
    from fcorun.cli.html_report import write_report
    from fcorun.config import build, keys_outside_identity
    from fcorun.errors import UnknownMetric
    from fcorun.runs.sweep import run_sweep
    from fcorun.runs.sweep_points import SweepOptions, tail_value
    from fcorun.system.cluster import require_single_host
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    option_names = [field.name for field in dataclasses.fields(SweepOptions)]
    root_values = {name: config[name] for name in option_names if name in keys_outside_identity()}
    launcher_values: Any = OmegaConf.to_container(OmegaConf.create(launcher), resolve=True)
    build(SweepOptions, launcher_values, "hydra.launcher")  # names a wrong key as it was given
    options = build(SweepOptions, root_values | launcher_values)
    hosts: Any = OmegaConf.to_container(config.hosts, resolve=True) if config.get("hosts") else None
    if options.executor != "inline":
        require_single_host(f"hydra.launcher.executor={options.executor}", hosts)
    for point in points:
        if isinstance(point.error, UnknownMetric):  # the same error for all points: raised once, before any is written
            raise point.error
    join_other_hosts(hosts, options.dry_run)
    with SweepConsole(options.verbose) as console:
        folder = Path(str(config.hydra.sweep.dir))
        code = run_sweep(points, folder, options, console, part)
        if config.get("report") is not False and code != 2 and not (part or options.dry_run):
            for line in write_report(folder, [point.folder for point in points]):
                console.show_if_verbose(line)
    return code, [] if part else [tail_value(point, options) for point in points]


def remove_empty_folders(folder: Path) -> None:
    """Remove the folder that Hydra made, and its parents below the current folder, as far as they are empty."""
    for path in (folder, *(parent for parent in folder.parents if Path.cwd() in parent.parents)):
        try:
            path.rmdir()
        except OSError:
            return
