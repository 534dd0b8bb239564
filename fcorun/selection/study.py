"""What selection and stability have in common: what they ask of an experiment, and a folder of fits."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.algorithms.one_client import OneClient
from fcorun.datasets.base import FederatedData
from fcorun.datasets.part import Part, check_classes
from fcorun.engine.engine import VERSION
from fcorun.engine.footprint import upload_bytes
from fcorun.errors import UserError
from fcorun.experiment.build import engine_for, load, resolved
from fcorun.experiment.ending import FEW
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.metrics import PERSONAL
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
    for name in settings.stop or {}:
        if name.removeprefix(PERSONAL).startswith("val_"):
            raise UserError(f"stop.{name} is not measured where {command} trains on all rows, or on halves: give "
                            "stop={change:1e-5}, or null")  # fmt: skip
    if "suboptimality" in (settings.stop or {}):
        raise UserError(f"stop.suboptimality is the gap to one optimum, and {command} has many problems: "
                        "give stop={change:1e-5}, or null")  # fmt: skip
    data = load(experiment)
    if data.population is not None:
        raise UserError(f"{command} divides rows, and data={experiment.names['data']} stores none but those of a few "
                        "clients: choose a smaller data set")  # fmt: skip
    fixed = replace(experiment, reg=with_value(experiment.reg, number, 1.0))
    return replace(experiment, settings=replace(settings, reference=False)), data, fixed


def check_parts(
    experiment: Experiment, data: FederatedData, masks: Iterable[np.ndarray], by: str, held: bool = False
) -> None:
    """Raises UserError for what parts that keep the rows of masks, (N,), would refuse when their turn comes.

    That is: rows without a class, or of a client, or if the others are ``held`` out those, without weight; too few
    clients for a cohort or for edges; and what is said of clients by their number, where parts have some of them.
    """
    asked = experiment.settings.clients_per_round or 0
    numbers = next(iter(experiment.reg.per_client or {}), None)
    if by == "clients" and numbers:
        raise UserError(f"reg.per_client.{numbers} has a value for each client, and by=clients leaves some out: give "
                        "by=rows, or leave it out")  # fmt: skip
    if by == "clients" and isinstance(experiment.algo, OneClient):
        raise UserError("algo=one_client is another client wherever by=clients leaves some out: give by=rows")
    for k, kept in enumerate(masks):
        check_classes(data, kept)
        _check_weights(data, kept, k + 1 if held else None)
        there = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
        left = int((there > 0).sum())
        if asked > left and isinstance(experiment.algo, Algorithm):
            raise UserError(f"clients_per_round={asked} is more than the {left} clients that by=clients leaves: lower "
                            "it, or set it to null for all of them")  # fmt: skip
        if by == "clients":
            names = tuple(name for name, rows in zip(data.names, there, strict=True) if rows)
            ends = np.append(0, np.cumsum(there[there > 0]))
            try:
                experiment.topology.edge_of(replace(data, offsets=ends, clients=names))
            except UserError as error:
                raise UserError(
                    f"{error} (by=clients leaves {left} of {len(there)} clients; by=rows leaves all)"
                ) from error


def _check_weights(data: FederatedData, kept: np.ndarray, fold: int | None) -> None:
    """Raises UserError where what is kept of a client weighs nothing, or what is held out in a ``fold``."""
    if data.weight is None:
        return
    rows, weight = (np.add.reduceat(each, data.offsets[:-1]) for each in (kept.astype(int), kept * data.weight))
    if len(without := np.flatnonzero((rows > 0) & (weight <= 0))):
        raise UserError(f"client {data.names[without[0]]}: all its rows that are left in a fold or a half have weight "
                        "0: give by=clients, or leave its rows of weight 0 out of the data")  # fmt: skip
    if fold and not data.weight[~kept].any():
        raise UserError(f"fold {fold}: all rows that it holds out have weight 0: give fewer folds, or leave rows of "
                        "weight 0 out of the data")  # fmt: skip


def together(experiment: Experiment, data: FederatedData) -> bool:
    """Whether runs make a model of all clients, and not only models of their own, of which nothing is sent."""
    if not experiment.algo.personalises:
        return True
    experiment = resolved(experiment, data)[0]
    assert isinstance(experiment.algo, Algorithm)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        return upload_bytes(engine_for(experiment, data).federation, experiment.algo) > 0


def check_together(experiment: Experiment, data: FederatedData, why: str) -> None:
    """Raises UserError, with what is wanted of a model of all clients, where there is none."""
    if not together(experiment, data):
        raise UserError(f"clients of algo={experiment.names['algo']} have models of their own and none together, and "
                        f"{why}")  # fmt: skip


def unjudged(experiment: Experiment) -> list[str]:
    """That nothing is known of whether runs had come to an end, where they are evaluated too seldom."""
    settings = experiment.settings
    if isinstance(experiment.algo, Baseline) or -(-settings.rounds // settings.eval_every) + 1 >= FEW:
        return []
    return [f"whether runs had come to an end was not judged, for they have fewer than {FEW} evaluations: a smaller "
            "eval_every gives more"]  # fmt: skip


def standardized_by_itself(experiment: Experiment) -> bool:
    """Whether features were standardized, if they were, by the rows themselves, and not as another record's were."""
    return getattr(experiment.data, "scaling", None) is None


@dataclass(frozen=True)
class Study:
    """Parts of the data, a path to run on each, and a folder for the fits.

    Attributes:
        number, values: what varies along the path, and its values, (P,).
        parts: makes each part, by name.
        width: how many rows a client has at most in a part.
        folder, mark: where it lies, and the file there that says whose fits it holds.
        identity: a hash of what the fits depend on.
        label: says which study it is.
    """

    experiment: Experiment
    data: FederatedData
    number: str
    values: np.ndarray
    parts: Mapping[str, Callable[[], Part]]
    width: int
    folder: Path
    mark: str
    identity: str
    label: str

    @classmethod
    def of(cls, command: str, experiment: Experiment, data: FederatedData, *, fixed: Experiment, asked: Any,
           rows: Iterable[np.ndarray], out: str | Path | None, **fields: Any) -> "Study":  # fmt: skip
        """That of a command. ``fixed`` is the experiment with a strength that is not looked at, ``asked`` what else the
        fits depend on, ``rows`` say which rows the parts have: a baseline's identity knows no seed."""
        names = experiment.names
        drawn = [hashlib.sha256(each.tobytes()).hexdigest() for each in rows]
        content = [command, fixed.identity, experiment.settings.tail_rounds, VERSION, solver.VERSION, asked, drawn]
        identity = hashlib.sha256(repr(content).encode()).hexdigest()
        folder = Path(out or Path("outputs") / names["data"] / f"{command}-{names['algo']}-{identity[:8]}")
        label = f"{command} algo={names['algo']} data={names['data']} reg={names['reg']}"
        return cls(experiment, data, folder=folder, identity=identity, label=label, **fields)

    def look(self) -> str:
        """What of it is there, and what is to run."""
        mine = read_json(self.folder / self.mark).get("identity") == self.identity
        there = sum(Fitted.kept(self._kept(name)) is not None for name in self.parts) if mine else 0
        return f"{there} of {len(self.parts)} fits are there, {len(self.parts) - there} to run ({self.folder})"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Within it the folder is this process's. Raises UserError where it holds something else, or another process is
        at it."""
        folder, force = self.folder, self.experiment.settings.force
        held = read_json(folder / self.mark)
        theirs = [path.name for path in folder.iterdir() if path.name != locks.LOCK] if folder.is_dir() else []
        if theirs and not held:
            raise UserError(f"out={folder} has a file {min(theirs)} that is not of such a study; choose another folder")
        if held and held.get("identity") != self.identity and not force:
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
                begins = {"identity": self.identity, "label": self.label, "status": "running"}
                write_whole(folder / self.mark, json_text(begins))
            yield
        finally:
            (folder / locks.LOCK).unlink(missing_ok=True)
            lock.release()

    def fits(self, slim: Slim, tell: Tell) -> dict[str, Fitted]:
        """The fits of all parts by name: those that are kept in the folder are read, the others computed and kept, as
        ``slim`` leaves them."""
        found = {name: kept for name in self.parts if (kept := Fitted.kept(self._kept(name))) is not None}
        missing = [name for name in self.parts if name not in found]
        if found:
            tell(f"{len(found)} of {len(self.parts)} fits are there: reused (force=true recomputes)")

        def done(place: int, fitted: Fitted) -> None:
            name = missing[place]
            found[name] = slim(name, fitted)
            found[name].keep(self._kept(name))
            if len(missing) <= 10 or (place + 1) % (len(missing) // 10) == 0:
                tell(f"{place + 1} of {len(missing)} fits of {len(self.values)} runs each")

        if missing:
            fitter = Fitter(self.experiment, self.data, self.number, self.values, self.width)
            try:
                fitter.fit([self.parts[name] for name in missing], done)
            except KeyboardInterrupt:
                tell(f"interrupted: {self.folder} keeps {len(found)} of {len(self.parts)} fits, and the same command "
                     "goes on")  # fmt: skip
                raise
        return {name: found[name] for name in self.parts}

    def _kept(self, name: str) -> Path:
        return self.folder / FITS / f"{name}.npz"


def cost(fitted: Mapping[str, Fitted]) -> dict[str, int]:
    """Runs, rounds, bytes_up and bytes_down of all fits together."""
    each = fitted.values()
    return {"runs": sum(len(one.end) for one in each)} | {
        name: int(sum(one.counts[name].sum() for one in each)) for name in ("rounds", "bytes_up", "bytes_down")
    }
