"""What the command does once Hydra has composed: one run, or the points of a sweep."""

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


def refuse_sweep_as_run(config: DictConfig) -> None:
    """Raises UserError where an experiment brings axes along, and one run of the many is asked for."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.RUN:
        return
    given = {override_key(text) for text in hydra.overrides.task}
    axes = [key for key in hydra.sweeper.get("params") or {} if key not in given]
    if not axes and (hydra.sweeper.get("params") or not hydra.sweeper.get("also")):
        return
    name = hydra.runtime.choices.get("experiment")
    figure = f", or fcorun figure {name} for its picture" if config.get("figure") else ""
    one = f"; for one run of it, give {', '.join(axes)}" if axes else ""
    raise UserError(f"{f'experiment={name}' if name else 'hydra.sweeper'} is a sweep: give -m{figure}{one}")


def join_other_hosts(hosts: Mapping[str, Any] | None, dry_run: bool) -> None:
    """Come together with the other hosts, if there are any, before JAX begins to compute. On one that is not the first,
    do what that one says to the end: raises SystemExit. Raises UserError as ``join`` does."""
    from fcorun.system.cluster import resolve_hosts
    from fcorun.system.hosts import current_hosts
    from fcorun.system.rendezvous import join_hosts
    from fcorun.system.subprocess_guard import continue_in_child

    asked = resolve_hosts(hosts)
    if asked is None or current_hosts():
        return
    if not hasattr(os, "fork"):
        raise UserError("several hosts need Linux or macOS: this system starts no process by fork; give hosts.count=1")
    if dry_run:  # which the first one does alone
        if asked.rank:
            raise SystemExit(0)
        return
    if asked.rank:
        continue_in_child()
    own = tuple(f"hosts.{key}=" for key in ("address", "count", "rank", "timeout", "gpus", "secret_file"))
    if join_hosts(asked, [text for text in sys.argv[1:] if not text.lstrip("+").startswith(own)]).rank:
        from fcorun.runs.hosts.follower import run_follower

        raise SystemExit(run_follower())


def run_single(config: dict[str, Any], folder: Path) -> None:
    """Run a configuration into a folder, or say what would be done."""
    from fcorun.cli.console import Console
    from fcorun.experiment.prepare import prepare
    from fcorun.records.folder import RunFolder
    from fcorun.runs.batching import check_devices
    from fcorun.runs.run import run
    from fcorun.system.interruption import interruptible_at_once
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    with interruptible_at_once():
        experiment = prepare(config)  # as ``run`` does again: what is wrong is said before others are waited for
        join_other_hosts(experiment.settings.hosts, experiment.settings.dry_run)
    verbose = config.get("verbose", True) is not False
    try:
        shown = folder.relative_to(Path.cwd())
    except ValueError:
        shown = folder
    with Console(verbose) as console:
        if config.get("dry_run") is True:
            check_devices([experiment])
            found = RunFolder(folder, experiment.identity).inspect(experiment.settings.force)
            state = {"finished": "done", "resume": "goes on", "new": "to run"}[found]
            console.out.print(f"{experiment.label}: {state} ({shown})")
            remove_empty_folders(folder)
            return
        run(config, shown, console)


def make_point(overrides: str, config: DictConfig, values: dict[str, Any] | None) -> "SweepPoint":
    """A point of a sweep from its composed configuration, and its plain values if they are known."""
    from fcorun.experiment.prepare import prepare
    from fcorun.runs.sweep_points import SweepPoint
    from fcorun.system.interruption import interruptible_at_once

    with interruptible_at_once():
        experiment = prepare(values or to_plain_values(config))
    KNOWN_RUN_IDS[id(config)] = experiment.identity[:8]
    try:
        folder = Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir)
    finally:
        del KNOWN_RUN_IDS[id(config)]
    return SweepPoint(overrides, folder, experiment)


def run_points(
    points: list, config: DictConfig, launcher: dict[str, Any], part: bool = False
) -> tuple[int, Sequence[float | None]]:
    """Run a sweep: the exit code, and the tail average of the metric for each point. Of a ``part`` of a search nothing
    is reported."""
    from fcorun.cli.console import SweepConsole
    from fcorun.cli.html_report import write_report
    from fcorun.config import build, keys_outside_identity
    from fcorun.errors import UnknownMetric
    from fcorun.runs.sweep import run_sweep
    from fcorun.runs.sweep_points import SweepOptions, tail_value
    from fcorun.system.cluster import require_single_host
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    root = {f.name: config[f.name] for f in dataclasses.fields(SweepOptions) if f.name in keys_outside_identity()}
    executor: Any = OmegaConf.to_container(OmegaConf.create(launcher), resolve=True)
    build(SweepOptions, executor, "hydra.launcher")  # says the right name of a key that is wrong
    options = build(SweepOptions, root | executor)
    hosts: Any = OmegaConf.to_container(config.hosts, resolve=True) if config.get("hosts") else None
    if options.executor != "inline":
        require_single_host(f"hydra.launcher.executor={options.executor}", hosts)
    for point in points:
        if isinstance(point.error, UnknownMetric):  # it is that of all points: said once, and nothing is written
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
    """Take back the folder that Hydra made, and those above it under the current one, where they are empty."""
    for path in (folder, *(parent for parent in folder.parents if Path.cwd() in parent.parents)):
        try:
            path.rmdir()
        except OSError:
            return
