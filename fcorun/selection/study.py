"""What selection and stability have in common: a folder of fits, what comes of them, what is said before."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import RowSubset
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.problem import solver
from fcorun.records import locks
from fcorun.records.formats import json_text, read_json
from fcorun.selection.fitting import PathFit, PathFitter
from fcorun.selection.folds import describe_rows
from fcorun.selection.path import RegularizationPath
from fcorun.system.files import write_atomically

FITS = "fits"
Log = Callable[[str], Any]
ReduceFit = Callable[[str, PathFit], PathFit]


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
    parts: Mapping[str, Callable[[], RowSubset]]
    width: int
    folder: Path
    mark: str
    identity: str
    label: str

    @classmethod
    def create(
        cls,
        command: str,
        experiment: Experiment,
        data: FederatedData,
        *,
        without_strength: Experiment,
        dependencies: Any,
        row_arrays: Iterable[np.ndarray],
        out: str | Path | None,
        **fields: Any,
    ) -> "Study":
        """That of a command. ``fixed`` is the experiment with a strength that is not looked at, ``asked`` what else the
        fits depend on, ``rows`` say which rows the parts have: a baseline's identity knows no seed."""
        names = experiment.names
        drawn = [hashlib.sha256(each.tobytes()).hexdigest() for each in row_arrays]
        content = [
            command,
            without_strength.identity,
            experiment.settings.tail_rounds,
            RESULTS_VERSION,
            solver.VERSION,
            dependencies,
            drawn,
        ]
        identity = hashlib.sha256(repr(content).encode()).hexdigest()
        folder = Path(out or Path("outputs") / names["data"] / f"{command}-{names['algo']}-{identity[:8]}")
        label = f"{command} algo={names['algo']} data={names['data']} reg={names['reg']}"
        return cls(experiment, data, folder=folder, identity=identity, label=label, **fields)

    def describe_progress(self) -> str:
        """What of it is there, and what is to run."""
        mine = read_json(self.folder / self.mark).get("identity") == self.identity
        there = sum(PathFit.load(self._kept(name)) is not None for name in self.parts) if mine else 0
        return f"{there} of {len(self.parts)} fits are there, {len(self.parts) - there} to run ({self.folder})"

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Within it the folder is this process's. Raises UserError where it holds something else, or another process is
        at it."""
        folder, force = self.folder, self.experiment.settings.force
        held = read_json(folder / self.mark)
        theirs = [path.name for path in folder.iterdir() if path.name != locks.LOCK_FILE] if folder.is_dir() else []
        if theirs and not held:
            raise UserError(f"out={folder} has a file {min(theirs)} that is not of such a study; choose another folder")
        if held and held.get("identity") != self.identity and not force:
            raise UserError(f"out={folder} holds another study ({held.get('label')}); choose another folder, or give "
                            "force=true to replace it")  # fmt: skip
        try:
            (folder / FITS).mkdir(parents=True, exist_ok=True)
            lock = locks.try_lock(folder)
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
                write_atomically(folder / self.mark, json_text(begins))
            yield
        finally:
            (folder / locks.LOCK_FILE).unlink(missing_ok=True)
            lock.release()

    def compute_fits(self, reduce_fit: ReduceFit, log: Log) -> dict[str, PathFit]:
        """The fits of all parts by name: those that are kept in the folder are read, the others computed and kept, as
        ``slim`` leaves them."""
        found = {name: kept for name in self.parts if (kept := PathFit.load(self._kept(name))) is not None}
        missing = [name for name in self.parts if name not in found]
        if found:
            log(f"{len(found)} of {len(self.parts)} fits are there: reused (force=true recomputes)")

        def done(place: int, fitted: PathFit) -> None:
            name = missing[place]
            found[name] = reduce_fit(name, fitted)
            found[name].save(self._kept(name))
            if len(missing) <= 10 or (place + 1) % (len(missing) // 10) == 0:
                log(f"{place + 1} of {len(missing)} fits of {len(self.values)} runs each")

        if missing:
            fitter = PathFitter(self.experiment, self.data, self.number, self.values, self.width)
            try:
                fitter.fit([self.parts[name] for name in missing], done)
            except KeyboardInterrupt:
                log(f"interrupted: {self.folder} keeps {len(found)} of {len(self.parts)} fits, and the same command "
                     "goes on")  # fmt: skip
                raise
        return {name: found[name] for name in self.parts}

    def _kept(self, name: str) -> Path:
        return self.folder / FITS / f"{name}.npz"


def sum_costs(fitted: Mapping[str, PathFit]) -> dict[str, int]:
    """Runs, rounds, bytes_up and bytes_down of all fits together."""
    each = fitted.values()
    return {"runs": sum(len(one.end_state) for one in each)} | {
        name: int(sum(one.counts[name].sum() for one in each)) for name in ("rounds", "bytes_up", "bytes_down")
    }


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A study that is done.

    Attributes:
        study: its parts and its folder.
        cost: runs, rounds, bytes_up and bytes_down, of all of its runs.
        remarks: a sentence each.
    """

    study: Study
    path: RegularizationPath
    cost: dict[str, int]
    warnings: list[str]

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def experiment(self) -> Experiment:
        return self.study.experiment

    @property
    def data(self) -> FederatedData:
        return self.study.data


def describe_study(study: Study, path: RegularizationPath, parts: str, by: str, aside: str) -> list[str]:
    """What is said before a study begins: of its path, its ``parts`` ``by`` rows or clients, its rows, and what those
    that are left aside do."""
    experiment, data = study.experiment, study.data
    ends = "{:.4g} to {:.4g}".format(*path.values[[0, -1]])
    said = [
        f"{study.label}: {len(path.values)} values of {path.param_name} from {ends} ({path.range_description}), "
        f"{parts} by {by} of "
        f"{describe_rows(experiment, data, aside)}"
    ]
    if by != "clients" and experiment.data.dependence_warning:
        said.append(f"data={experiment.names['data']}: {experiment.data.dependence_warning}")
    return said
