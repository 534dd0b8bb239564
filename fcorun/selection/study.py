"""Study: a path that runs on many subsets of the rows; its folder, its fits, and its description.

``fcorun select`` and ``fcorun stability`` are studies.
"""

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
    """Subsets of the rows, a path to run on each of them, and a folder for the fits.

    Attributes:
        param_name, values: the field of the regularizer that varies, and its values, (P,).
        subset_makers: by the name of a subset, the function that makes it.
        max_client_rows: the largest number of rows that a client has in any subset.
        folder, study_file: the folder, and the name of the JSON file in it with the identity of the study.
        identity: a hash of all that the fits depend on.
        label: the command and its choices, for messages.
    """

    experiment: Experiment
    data: FederatedData
    param_name: str
    values: np.ndarray
    subset_makers: Mapping[str, Callable[[], RowSubset]]
    max_client_rows: int
    folder: Path
    study_file: str
    identity: str
    label: str

    @classmethod
    def create(
        cls,
        command: str,
        experiment: Experiment,
        data: FederatedData,
        path: RegularizationPath,
        *,
        without_strength: Experiment,
        dependencies: Any,
        row_arrays: Iterable[np.ndarray],
        subset_makers: Mapping[str, Callable[[], RowSubset]],
        max_client_rows: int,
        study_file: str,
        out: str | Path | None,
    ) -> "Study":
        """Create the study of a command, with its identity and its default folder.

        The identity depends on ``without_strength``, the experiment at a strength that does not matter, on
        ``dependencies``, such as options of the command, and on ``row_arrays``, the rows of the subsets. The rows are
        needed, since the identity of a baseline does not depend on the seed that draws them.
        """
        names = experiment.names
        row_hashes = [hashlib.sha256(array.tobytes()).hexdigest() for array in row_arrays]
        content = [
            command,
            without_strength.identity,
            experiment.settings.tail_rounds,
            RESULTS_VERSION,
            solver.VERSION,
            dependencies,
            row_hashes,
        ]
        identity = hashlib.sha256(repr(content).encode()).hexdigest()
        default_folder = Path("outputs") / names["data"] / f"{command}-{names['algo']}-{identity[:8]}"
        return cls(
            experiment=experiment,
            data=data,
            param_name=path.param_name,
            values=path.values,
            subset_makers=subset_makers,
            max_client_rows=max_client_rows,
            folder=Path(out or default_folder),
            study_file=study_file,
            identity=identity,
            label=f"{command} algo={names['algo']} data={names['data']} reg={names['reg']}",
        )

    def describe_progress(self) -> str:
        """Say how many fits exist and how many remain to be computed."""
        n_fits = len(self.subset_makers)
        n_existing = 0
        if read_json(self.folder / self.study_file).get("identity") == self.identity:
            n_existing = sum(PathFit.load(self._fit_file(name)) is not None for name in self.subset_makers)
        return f"{n_existing} of {n_fits} fits exist, {n_fits - n_existing} to run ({self.folder})"

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Lock the folder for this process while the context lasts.

        Raises:
            UserError: the folder has other files or another study, cannot be written, or is locked.
        """
        folder, force = self.folder, self.experiment.settings.force
        existing = read_json(folder / self.study_file)
        files = [path.name for path in folder.iterdir() if path.name != locks.LOCK_FILE] if folder.is_dir() else []
        if files and not existing:
            raise UserError(f"out={folder} has a file {min(files)} that is not of such a study; choose another folder")
        if existing and existing.get("identity") != self.identity and not force:
            raise UserError(
                f"out={folder} holds another study ({existing.get('label')}); choose another folder, or give "
                "force=true to replace it"
            )
        try:
            (folder / FITS).mkdir(parents=True, exist_ok=True)
            lock = locks.try_lock(folder)
        except OSError as error:
            raise UserError(f"out={folder} cannot be written ({error.strerror}); choose another folder") from error
        if lock is None:
            raise UserError(f"{folder} {locks.IN_USE}")
        try:
            if force:
                for path in (folder / FITS).glob("*.npz"):
                    path.unlink()
            if force or not existing:
                content = {"identity": self.identity, "label": self.label, "status": "running"}
                write_atomically(folder / self.study_file, json_text(content))
            yield
        finally:
            (folder / locks.LOCK_FILE).unlink(missing_ok=True)
            lock.release()

    def compute_fits(self, reduce_fit: ReduceFit, log: Log) -> dict[str, PathFit]:
        """Return the fits of all subsets by name: read from the folder, or else computed and saved.

        ``reduce_fit`` takes the name of a subset and its fit, and returns the fit without the arrays that are not
        needed later.
        """
        fits = {}
        for name in self.subset_makers:
            fit = PathFit.load(self._fit_file(name))
            if fit is not None:
                fits[name] = fit
        n_fits = len(self.subset_makers)
        missing = [name for name in self.subset_makers if name not in fits]
        if fits:
            log(f"{len(fits)} of {n_fits} fits exist: reused (force=true recomputes)")

        def on_fit(i: int, fit: PathFit) -> None:
            name = missing[i]
            fits[name] = reduce_fit(name, fit)
            fits[name].save(self._fit_file(name))
            if len(missing) <= 10 or (i + 1) % (len(missing) // 10) == 0:
                log(f"{i + 1} of {len(missing)} fits of {len(self.values)} runs each")

        if missing:
            fitter = PathFitter(self.experiment, self.data, self.param_name, self.values, self.max_client_rows)
            try:
                fitter.fit([self.subset_makers[name] for name in missing], on_fit)
            except KeyboardInterrupt:
                log(f"interrupted: {self.folder} has {len(fits)} of {n_fits} fits; the same command resumes")
                raise
        return {name: fits[name] for name in self.subset_makers}

    def _fit_file(self, name: str) -> Path:
        return self.folder / FITS / f"{name}.npz"


def sum_costs(fits: Mapping[str, PathFit]) -> dict[str, int]:
    """Return the runs, rounds, bytes_up and bytes_down of all fits together."""
    cost = {"runs": sum(len(fit.end_state) for fit in fits.values())}
    for name in ("rounds", "bytes_up", "bytes_down"):
        cost[name] = int(sum(fit.counts[name].sum() for fit in fits.values()))
    return cost


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Result of a study.

    Attributes:
        study: the study, with its folder.
        path: the values of the path.
        cost: runs, rounds, bytes_up and bytes_down, of all runs of the study.
        warnings: a sentence each.
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


def describe_study(study: Study, path: RegularizationPath, subsets: str, by: str, use: str) -> list[str]:
    """Return the lines to print before a study begins.

    Args:
        subsets: the subsets in words, such as "5 folds".
        by: "rows", "clients", or "data.fold".
        use: the use of validation and test rows, which a study leaves aside.
    """
    experiment = study.experiment
    lines = [
        f"{study.label}: {len(path.values)} values of {path.param_name} from {path.values[0]:.4g} to "
        f"{path.values[-1]:.4g} ({path.range_description}), {subsets} by {by} of "
        f"{describe_rows(experiment, study.data, use)}"
    ]
    if by != "clients" and experiment.data.dependence_warning:
        lines.append(f"data={experiment.names['data']}: {experiment.data.dependence_warning}")
    return lines
