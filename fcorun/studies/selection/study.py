"""Study: a path that runs on many subsets of the rows, with its folder, fits, result, refit and parts of pictures.

``fcorun select`` and ``fcorun stability`` are kinds of a study, ``fcorun permute`` has its folder and subsets, and
``fcorun compare`` has a selection for each candidate. ``StudyPlan.run`` takes the steps of all kinds in their order.
"""

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fcorun.base.errors import UserError, word
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records.few_rows import simulates
from fcorun.base.records.formats import json_text, read_json
from fcorun.base.records.record import (
    IN_USE,
    LOCK_FILE,
    PAGE_FILES,
    PERMUTATION_FILE,
    REFIT_FOLDER,
    SELECTION_FILE,
    STABILITY_FILE,
    STUDY_FILES,
    VOXEL_FILES,
    Record,
    RunFolder,
    try_lock,
)
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import RowSubset, take_subset
from fcorun.engine.engine import RESULTS_VERSION, CompiledPrograms
from fcorun.experiment.build import bind_objective, load_data
from fcorun.experiment.experiment import MIN_EVALUATIONS, PreparedExperiment
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.problem import solver
from fcorun.runs.batch import check_devices
from fcorun.runs.executors.dask import PROBE, study_workers
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments
from fcorun.studies.selection.fitting import PathFit, PathFitter, SubsetFits, find_runs, keeps_held_out
from fcorun.studies.selection.folds import SubsetMasks, count_rows, marks_whole_clients
from fcorun.studies.selection.path import RegularizationPath, find_path_parameter
from fcorun.studies.selection.study_checks import check_settings

FITS = "fits"
# the files that are written after the refit
_PICTURE_FILES = (*name_picture_files("selection", "stability", "brain"), *VOXEL_FILES)
_STUDY_FILES = {"select": SELECTION_FILE, "stability": STABILITY_FILE, "permute": PERMUTATION_FILE}
Log = Callable[[str], Any]
ReduceFit = Callable[[str, PathFit], PathFit]
Result = TypeVar("Result", bound="StudyResult")


class PreparedStudy(NamedTuple):
    """The command of a study, its experiment and data, and the identity of the experiment at strength 1."""

    command: str
    experiment: PreparedExperiment
    data: FederatedData
    identity: str


def prepare_study(
    experiment: PreparedExperiment, command: str, varies_strength: bool = True, keeps_strength: bool = False
) -> PreparedStudy:
    """Prepare the experiment of a study, whose path replaces ``reg.strength``, and load its data.

    Without ``varies_strength``, the study has one strength, which the algorithm may ignore. With ``keeps_strength`` it
    is that of the experiment, which then belongs to the identity.

    Raises:
        UserError: the rows cannot be divided, or the machine has fewer devices than the experiment wants.
    """
    check_devices([experiment])
    check_settings(experiment, command)
    parameter = "" if keeps_strength else find_path_parameter(experiment, varies_strength)
    data = load_data(experiment)
    reason = data.train.why_not_in_memory
    if reason and not data.train.stays_at_sites:  # sites compute their parts of the fits
        raise UserError(f"{command} needs all rows in memory, and those of `data={experiment.names['data']}` {reason}")
    if reason := data.train.why_not_dense:
        raise UserError(f"{command} needs dense rows, and those of `data={experiment.names['data']}` {reason}; or run "
                        "`reg.strength=NUMBER,NUMBER` as a sweep")  # fmt: skip
    identity = experiment.with_resolved(reg=experiment.reg.with_value(parameter, 1.0)).identity
    experiment = bind_objective(experiment, data)
    experiment = experiment.with_resolved(settings=replace(experiment.settings, reference=False))
    return PreparedStudy(command, experiment, data, identity)


@dataclass(frozen=True)
class Study:
    """Subsets of the rows, a path to run on each of them, and a folder for the fits.

    Attributes:
        path: the values that the runs of a subset differ in.
        subsets: the rows of each subset, by its name.
        folder, study_file: the folder, and the name of the JSON file in it with the identity of the study.
        identity: a hash of all that the fits depend on.
        label: the command and its choices, for messages.
    """

    experiment: PreparedExperiment
    data: FederatedData
    path: RegularizationPath
    subsets: Mapping[str, SubsetMasks]
    folder: Path
    study_file: str
    identity: str
    label: str

    @classmethod
    def create(
        cls,
        prepared: PreparedStudy,
        path: RegularizationPath,
        subsets: Mapping[str, SubsetMasks],
        *,
        dependencies: Any,
        row_arrays: Iterable[np.ndarray],
        out: str | Path | None,
    ) -> "Study":
        """Create the study of a command, with its identity and its default folder.

        The identity depends on the prepared experiment, on ``dependencies``, such as options of the command, and on
        ``row_arrays``, which tell the rows of the subsets. The rows are needed, since the identity of a baseline does
        not depend on the seed that draws them.
        """
        command, experiment, data, experiment_identity = prepared
        names, tail_rounds = experiment.names, experiment.settings.tail_rounds
        row_hashes = [hashlib.sha256(array.tobytes()).hexdigest() for array in row_arrays]
        content = [command, experiment_identity, tail_rounds, RESULTS_VERSION, solver.VERSION, dependencies, row_hashes]
        if data.features.cells is not None:
            content.append("fills and levels by subset")
        identity = hashlib.sha256(repr(content).encode()).hexdigest()
        default_folder = Path("outputs") / names["data"] / f"{command}-{names['algo']}-{identity[:8]}"
        return cls(
            experiment=experiment,
            data=data,
            path=path,
            subsets=subsets,
            folder=Path(out or default_folder),
            study_file=_STUDY_FILES[command],
            identity=identity,
            label=f"{command} algo={names['algo']} data={names['data']} reg={names['reg']}",
        )

    @property
    def keeps_held_out(self) -> bool:
        """True if the fits have outputs for the rows that their subsets hold out."""
        return keeps_held_out(self.data, len(self.path.values), len(self.data.train))

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Lock the folder for this process while the context lasts.

        Report pages are deleted, since they may show another choice, the rows that a killed study left for workers, and
        with ``force`` all that a study has written.

        Raises:
            UserError: the folder has other files or another study, cannot be written, or is locked.
        """
        folder = self.folder
        force = self.experiment.settings.force
        existing = read_json(folder / self.study_file)
        # a killed process may have left the lock, and temporary files, before the study's first file
        names = [path.name for path in folder.glob("*")]
        files = [name for name in names if not name.startswith(LOCK_FILE) and not name.endswith(".tmp")]
        if files and not existing:
            raise UserError(f"`out={folder}` has a file {min(files)} that is not of such a study; choose another "
                            "folder")  # fmt: skip
        if existing and existing.get("identity") != self.identity and not force:
            raise UserError(f"`out={folder}` holds another study ({existing.get('label')}); choose another folder, or "
                            "give `force=true` to replace it")  # fmt: skip
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = try_lock(folder)
        except OSError as error:
            raise UserError(f"`out={folder}` cannot be written ({error.strerror}); choose another folder") from error
        if lock is None:
            raise UserError(f"{folder} {IN_USE}")
        with lock:
            delete_files(folder, PAGE_FILES)
            delete_files(folder, [path.name for path in folder.glob(f"{PROBE}*")])
            if force:  # the fits, the result and the refit, maybe of another study
                for path in (folder / FITS).glob("*.npz"):
                    path.unlink()
                delete_files(folder, chain.from_iterable(STUDY_FILES.values()))
                _remove_refit(folder)
            if force or not existing:
                content = {"identity": self.identity, "label": self.label, "status": "running"}
                write_atomically(folder / self.study_file, json_text(content))
            (folder / FITS).mkdir(exist_ok=True)  # last: a folder of fits without the study's file is refused
            yield

    def compute_fits(self, reduce_fit: ReduceFit, log: Log) -> dict[str, PathFit]:
        """Return the fits of all subsets by name: read from the folder, or else computed and saved.

        ``reduce_fit`` takes the name of a subset and its fit, and returns the fit without the arrays that are not
        needed later.
        """
        fits = self.load_fits()
        missing = [name for name in self.subsets if name not in fits]
        began = time.monotonic()
        computed = self.fit_subsets(missing)
        with self.reporting_fits(lambda: len(fits), len(self.subsets), log), closing(computed):
            for i, name in enumerate(missing, start=1):
                fits[name] = reduce_fit(name, next(computed))
                fits[name].save(self.fit_file(name))
                if len(missing) <= 10 or i == 1 or i % (len(missing) // 10) == 0:
                    n_runs = len(self.path.runs.values)
                    left = (time.monotonic() - began) / i * (len(missing) - i) / 60
                    minutes = np.format_float_positional(left, precision=1, fractional=False, trim="-")
                    remaining = f", about {minutes} min left" if left > 0.25 else ""
                    log(f"{i} of {len(missing)} fits of {n_runs} {'run' if n_runs == 1 else 'runs'} each{remaining}")
        return {name: fits[name] for name in self.subsets}

    @contextmanager
    def reporting_fits(self, count: Callable[[], int], n_fits: int, log: Log) -> Iterator[None]:
        """Say how many fits exist before the context, and after an interruption; ``count`` returns the number."""
        if n_existing := count():
            log(word(f"{n_existing} of {n_fits} fits exist: reused (`force=true` recomputes)"))
        try:
            yield
        except KeyboardInterrupt:
            log(word(f"interrupted: {self.folder} has {count()} of {n_fits} fits; `the same command` resumes"))
            raise

    def fit_subsets(
        self, names: Sequence[str], programs: dict[str, CompiledPrograms] | None = None
    ) -> Generator[PathFit, None, None]:
        """Run the path on these subsets, and yield the fit of each in their order.

        ``programs`` keeps the compiled programs for other studies of the same shapes.
        """
        first_rows = self.data.train.offsets[:-1]  # of each client
        row_counts = [np.add.reduceat(subset.train, first_rows, dtype=np.int64) for subset in self.subsets.values()]
        programs = {} if programs is None else programs
        fitter = PathFitter(self.experiment, self.data, self.path, np.max(row_counts, axis=0), programs)
        if workers := study_workers.get():
            work = SubsetFits(fitter, self.take_subset)
            yield from workers.compute_parts(work, names, self.experiment, self.folder)
        else:
            yield from fitter.fit([partial(self.take_subset, name) for name in names])

    def begin_refit(self) -> None:
        """Tell those who have the rows that a run on all of them begins; rows in memory need no word."""

    def take_subset(self, name: str) -> RowSubset:
        """Take the rows of a subset.

        The training rows of a subset teach its fills and levels, and standardize its features anew, unless they are
        all rows, or the scaling is that of a record.
        """
        subset = self.subsets[name]
        has_given_scaling = getattr(self.experiment.data, "scaling", None) is not None
        restandardize = not has_given_scaling and not subset.train.all()
        return take_subset(self.data, subset.train, subset.validation, restandardize)

    def load_fits(self) -> dict[str, PathFit]:
        """Read the fits that exist, by the name of their subset."""
        fits = {name: PathFit.load(self.fit_file(name)) for name in self.subsets}
        return {name: fit for name, fit in fits.items() if fit is not None}

    def fit_file(self, name: str) -> Path:
        """Return the file of the fit of a subset."""
        return self.folder / FITS / f"{name}.npz"


def delete_files(folder: Path, names: Iterable[str]) -> None:
    """Delete the files of these names that are in a folder."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def describe_few_rows(study: Study) -> dict[str, Any]:
    """Return what the study file says about clients with few rows, as summary.json does, of which no number is sent."""
    if simulates(study.experiment.config["data"]):
        return {}
    return {"data": {"few_rows": study.data.few_rows}}


def describe_study(
    study: Study, subsets: str, by: str, use: str, notes: Iterable[str], strength: str = ""
) -> list[str]:
    """Return the lines to print before a study begins.

    Args:
        subsets: the subsets in words, such as "5 folds".
        by: "rows", "clients", or "data.fold".
        use: the use of validation and test rows, which a study leaves aside.
        notes: lines of the command, which precede those about the data.
        strength: the strength of a study without a path, "strength=0.1"; empty: the study has a path.
    """
    experiment, data, path = study.experiment, study.data, study.path
    values = f"{path.length} values of {path.param_name}"
    if path.second is not None:
        numbers = ", ".join(f"{value:g}" for value in path.second.values[:: path.length])
        values += f" for each {path.second.name} of {numbers},"
    first, last = sorted((path.values.min(), path.values.max()), reverse=path.param_name == "strength")
    counts = count_rows(data)
    rows = f"{counts.pop('training'):,} training rows"
    if data.train.group is not None:
        groups = "groups" if data.train.stays_at_sites else f"{len(np.unique(data.train.group)):,} groups"
        rows += word(f" in {groups} (`data.group`), whose rows stay together")
    left_aside = [f"{count:,} {name} rows" for name, count in counts.items() if count]
    if left_aside:
        rows += f"; {' and '.join(left_aside)} are left aside and {use}"
    values += f" from {first:.4g} to {last:.4g} ({path.range_description})"
    lines = [f"{study.label}: {strength or values}, {subsets} by {by} of {rows}"]
    keeps_clients_whole = by == "clients" or (by == "data.fold" and marks_whole_clients(data))
    if not keeps_clients_whole and experiment.data.dependence_warning:
        lines.append(word(f"`data={experiment.names['data']}`: {experiment.data.dependence_warning}"))
    return [*lines, *notes, *data.warnings]


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyResult(ABC):
    """Result of a study.

    Attributes:
        study: the study, with its folder.
        path: the values of the path that the result is about.
        fits: the fit of each subset, by name.
        warnings: a sentence each.
        record: the refit; None without one, and while it is not computed.
        refit_warnings: one sentence for each way in which the refit has not converged.
    """

    study: Study
    path: RegularizationPath
    fits: Mapping[str, PathFit]
    warnings: Sequence[str]
    record: Record | None = None
    refit_warnings: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.folder}')"

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def experiment(self) -> PreparedExperiment:
        return self.study.experiment

    @property
    def data(self) -> FederatedData:
        return self.study.data

    @property
    def computed_fits(self) -> Mapping[str, PathFit]:
        """All fits that the study has computed, by the name of their subset."""
        return self.fits

    @property
    def is_complete(self) -> bool:
        """Return whether the refit, if the study has one, is done."""
        return self.record is not None and self.record.status.get("status") == "done"

    @property
    def end_of_refit(self) -> str:
        """The status of the refit and its reason."""
        status = {} if self.record is None else self.record.status
        return ", ".join(filter(None, (status.get("status"), status.get("reason"))))

    @property
    def cost(self) -> dict[str, int]:
        """The runs, rounds, bytes_up and bytes_down of all fits together; if sites send one upload for all runs, it
        counts once."""
        fits = self.computed_fits.values()
        n_tables = max(self.experiment.settings.imputations, 1)
        cost = {"runs": len(fits) * len(self.study.path.runs.values) * n_tables}
        for name in ("rounds", "bytes_up", "bytes_down"):
            shared = name == "bytes_up" and self.experiment.algo.has_common_uploads
            add = np.max if shared and self.data.train.stays_at_sites else np.sum
            cost[name] = int(sum(add(fit.counts[name]) for fit in fits))
        return cost

    def write_summary(self, seconds: float | None = None) -> None:
        """Write the study file: "running", or "done" with the ``seconds`` that the study and its refit took."""
        study = self.study
        path = self.path
        content = {
            "identity": study.identity,
            "label": study.label,
            "status": "running" if seconds is None else "done",
            "param_name": path.param_name,
            "range": path.range_description,
            **self.summarize(),
            "rows": count_rows(study.data),
            **describe_few_rows(study),
            "cost": self.cost,
            "warnings": [*self.warnings, *self.refit_warnings],
        }
        if seconds is not None:
            content["seconds"] = seconds
        write_atomically(study.folder / study.study_file, json_text(content))

    @abstractmethod
    def summarize(self) -> dict[str, Any]:
        """Return the keys of the study file that studies of this kind have."""

    @abstractmethod
    def write_files(self) -> Callable[[], None]:
        """Write tables, and the study file, which says "running", and begin to draw the pictures.

        The function returned writes the pictures.
        """

    @abstractmethod
    def describe(self) -> Iterator[str]:
        """Yield the lines to print at the end."""


def warn_unconverged(fits: Mapping[str, PathFit], falling_advice: str, index: int | None = None) -> list[str]:
    """Return a warning about the runs whose objective was still falling, and about those without a certificate.

    Pass ``index``, a position of the path, to count the runs at this value, too.
    """
    warnings = []
    advice_by_state = {"falling": falling_advice, "not certified": word("a larger `algo.max_iterations` may help")}
    for state, advice in advice_by_state.items():
        runs = find_runs(fits, state)
        if runs.any():
            at_choice = "" if index is None else f", {runs[:, index].sum()} of {len(runs)} at the chosen value"
            description = "objective still falling" if state == "falling" else state
            warnings.append(f"{description}: {runs.sum()} of {runs.size} runs{at_choice}: {advice}")
    return warnings


def warn_few_evaluations(experiment: PreparedExperiment) -> list[str]:
    """Return a warning if runs have too few evaluations for a judgement of their convergence.

    An algorithm that is done after a few rounds has no more.
    """
    algo, settings = experiment.algo, experiment.settings
    evaluations = -(-settings.rounds // settings.eval_every) + 1
    has_few_rounds = isinstance(algo, Baseline) or (algo.computed_rounds or MIN_EVALUATIONS) < MIN_EVALUATIONS
    if has_few_rounds or evaluations >= MIN_EVALUATIONS:
        return []
    return [word(f"convergence was not judged, since runs have fewer than {MIN_EVALUATIONS} evaluations: a smaller "
                 "`eval_every` gives more")]  # fmt: skip


def format_cost(cost: Mapping[str, int]) -> str:
    """Return runs, rounds and bytes as text."""
    text = f"{cost['runs']} runs, {cost['rounds']:,} rounds"
    if not cost["bytes_up"]:
        return text
    amounts = []
    for count in (cost["bytes_up"], cost["bytes_down"]):
        power = min(int(math.log10(max(count, 1))) // 3, 4)
        amounts.append(f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}")
    return f"{text}, {amounts[0]} up and {amounts[1]} down"


@dataclass(frozen=True, kw_only=True)
class StudyPlan(ABC, Generic[Result]):
    """A study that is ready to run. Each kind says what it keeps of a fit, what it concludes, and what it writes.

    Attributes:
        experiment: the experiment of which the refit is made.
        messages: lines to print before the study begins.
    """

    experiment: PreparedExperiment
    study: Study
    messages: list[str]

    def describe_progress(self) -> list[str]:
        """Say how many fits exist and how many remain to be computed."""
        study = self.study
        n_fits = len(self.study.subsets)
        n_existing = 0
        if read_json(study.folder / study.study_file).get("identity") == study.identity:
            n_existing = len(study.load_fits())
        return [f"{n_existing} of {n_fits} fits exist, {n_fits - n_existing} to run ({study.folder})"]

    def run(self, log: Log = lambda line: None, watch: Watcher | None = None) -> Result:
        """Compute the missing fits, draw the conclusion, write the files, and fit the refit if the kind has one.

        Raises:
            UserError: every value diverged on a subset, or the folder cannot be used.
        """
        began = time.perf_counter()
        with self.study.claim():
            result = self.conclude(self.study.compute_fits(self.reduce_fit, log))
            delete_files(self.study.folder, _PICTURE_FILES)  # those of another choice
            write_pictures = result.write_files()
            try:
                experiment = self.apply(result)
                if experiment is not None:
                    self.study.begin_refit()
                    if _remove_refit(self.study.folder, keep=experiment.identity):  # that of another choice
                        log(word("the intervals of the former refit are deleted: `fcorun infer` computes the new ones"))
                    (record,) = run_experiments([experiment], [self.study.folder / REFIT_FOLDER], watch)
                    result = replace(result, record=record, refit_warnings=self.warn_about_refit(record))
            finally:
                write_pictures()  # drawn by other processes during the refit, which may fail
            result.write_summary(time.perf_counter() - began)
        return result

    @abstractmethod
    def reduce_fit(self, name: str, fit: PathFit) -> PathFit:
        """Return the fit of a subset, by its name, without the arrays that are not needed later."""

    @abstractmethod
    def conclude(self, fits: dict[str, PathFit]) -> Result:
        """Return the result of the fits of all subsets, with warnings about it."""

    @abstractmethod
    def apply(self, result: Result) -> PreparedExperiment | None:
        """Return the experiment of the refit by a result of this plan; None without a refit."""

    def warn_about_refit(self, record: Record) -> list[str]:
        """Return warnings about the refit."""
        return []


def _remove_refit(folder: Path, keep: str = "") -> bool:
    """Remove the record in FOLDER/refit, unless its identity is ``keep``, and return whether it had intervals."""
    identity = Record(folder / REFIT_FOLDER).status.get("identity")
    if not identity or identity == keep:
        return False
    had_intervals = (folder / REFIT_FOLDER / "inference.csv").exists()
    RunFolder(folder / REFIT_FOLDER, identity).remove()
    return had_intervals
