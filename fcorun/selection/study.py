"""What selection and stability have in common: what they ask of an experiment, and a folder of fits."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fcorun.datasets.base import FederatedData
from fcorun.datasets.part import Part
from fcorun.engine.engine import VERSION
from fcorun.errors import UserError
from fcorun.experiment.build import load
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.problem import solver
from fcorun.records import locks
from fcorun.records.formats import json_text, read_json
from fcorun.selection.fitting import Fitted, Fitter, with_value
from fcorun.selection.path import number_of
from fcorun.system.files import write_whole

FITS = "fits"
Tell = Callable[[str], Any]
Slim = Callable[[str, Fitted], Fitted]


def begun(config: Mapping[str, Any], command: str) -> tuple[Experiment, FederatedData, Experiment]:
    """The experiment of a configuration, its data, and the experiment whose identity does not know the strength.

    Raises UserError for what cannot be divided into parts.
    """
    experiment = prepare(config)
    settings, number = experiment.settings, number_of(experiment)
    if settings.start:
        raise UserError(f"start={settings.start} may have seen rows that {command} holds out: leave it out")
    if "suboptimality" in (settings.stop or {}):
        raise UserError(f"stop.suboptimality is the gap to one optimum, and {command} has many problems: "
                        "give stop={change:1e-5}, or null")  # fmt: skip
    data = load(experiment)
    fixed = replace(experiment, reg=with_value(experiment.reg, number, 1.0))
    return replace(experiment, settings=replace(settings, reference=False)), data, fixed


def standardized_by_itself(experiment: Experiment) -> bool:
    """Whether features were standardized, if they were, by the rows themselves, and not as another record's were."""
    return getattr(experiment.data, "scaling", None) is None


@contextmanager
def claimed(folder: Path, mark: str, identity: str, label: str, force: bool) -> Iterator[None]:
    """Within it the folder is this process's, with a file ``mark`` that says whose fits it holds.

    Raises UserError where it holds something else, or another process is at it.
    """
    held = read_json(folder / mark)
    theirs = [path.name for path in folder.iterdir() if path.name != locks.LOCK] if folder.is_dir() else []
    if theirs and not held:
        raise UserError(f"out={folder} has a file {min(theirs)} that is not of such a study; choose another folder")
    if held and held.get("identity") != identity and not force:
        raise UserError(f"out={folder} holds another study ({held.get('label')}); choose another folder, or give "
                        "force=true to replace it")  # fmt: skip
    try:
        (folder / FITS).mkdir(parents=True, exist_ok=True)
        lock = locks.take(folder)
    except OSError as error:
        raise UserError(f"out={folder} cannot be written ({error.strerror}); choose another folder") from error
    if lock is None:
        raise UserError(f"{folder} is being computed by another process; wait for it to end")
    try:
        if force:
            for path in (folder / FITS).glob("*.npz"):
                path.unlink()
        if force or not held:
            write_whole(folder / mark, json_text({"identity": identity, "label": label, "status": "running"}))
        yield
    finally:
        (folder / locks.LOCK).unlink(missing_ok=True)
        lock.release()


def identity_parts(experiment: Experiment) -> list:
    """What makes two studies of an experiment, whose strength is not looked at, the same."""
    return [experiment.identity, experiment.settings.tail_rounds, VERSION, solver.VERSION]


def fits(
    fitter: Fitter, folder: Path, parts: Mapping[str, Callable[[], Part]], slim: Slim, tell: Tell
) -> dict[str, Fitted]:
    """The fits of all parts by name: those that are kept in the folder are read, the others computed and kept."""
    found = {name: kept for name in parts if (kept := Fitted.kept(folder / FITS / f"{name}.npz")) is not None}
    missing = [name for name in parts if name not in found]
    if found and missing:
        tell(f"{len(found)} of {len(parts)} fits are there: reused")

    def done(place: int, fitted: Fitted) -> None:
        name = missing[place]
        found[name] = slim(name, fitted)
        found[name].keep(folder / FITS / f"{name}.npz")
        if len(missing) <= 10 or (place + 1) % (len(missing) // 10) == 0:
            tell(f"{place + 1} of {len(missing)} fits of {len(fitter.values)} runs each")

    if missing:
        fitter.fit([parts[name] for name in missing], done)
    return {name: found[name] for name in parts}


def cost(fitted: Mapping[str, Fitted]) -> dict[str, int]:
    """Runs, rounds, bytes_up and bytes_down of all fits together."""
    each = fitted.values()
    return {"runs": sum(len(one.end) for one in each)} | {
        name: int(sum(one.counts[name].sum() for one in each)) for name in ("rounds", "bytes_up", "bytes_down")
    }
