"""``fcorun permute``: the cross-validation of permuted targets, in chunks that are not computed again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.base.metrics import IGNORES_PSI
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records.formats import READ_ERRORS, columns_csv, json_text, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import available_cores
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem.problem import Batch
from fcorun.methods.problem.solver import gather_rows, make_strength_max
from fcorun.reports.pictures.layout import make_figure, pt, render_picture, style_context
from fcorun.runs.executors.dask import study_workers
from fcorun.studies.selection.fitting import compute_in_threads
from fcorun.studies.selection.folds import (
    SubsetMasks,
    assign_folds,
    check_subsets,
    describe_majority,
    folds_follow_targets,
    list_marked_folds,
    split_by_fold,
)
from fcorun.studies.selection.path import RegularizationPath, build_path, find_path_parameter
from fcorun.studies.selection.permutation import (
    Exchanges,
    FoldScores,
    PermutationOptions,
    compute_p_values,
)
from fcorun.studies.selection.permuted_fits import DirectFits, PathFits
from fcorun.studies.selection.selection_result import ALL_ROWS, DEFAULT_FOLDS, SelectOptions
from fcorun.studies.selection.study import (
    FITS,
    Log,
    Study,
    delete_files,
    describe_few_rows,
    describe_study,
    prepare_study,
)
from fcorun.studies.selection.study_checks import check_permutable

MIN_RATIO = 0.05  # of the least strength to the largest: weaker ones fit permuted targets exactly, and take long
DEFAULT_POINTS = 10
_CHUNK = 10  # permutations in a file


@dataclass(frozen=True, eq=False)
class PermutationResult:
    """The statistics of the targets and of n permutations, in the folder of a study.

    Attributes:
        table: the statistics, (1 + n, S); row 0 is observed.
        statement: a sentence for each statistic, and those of the plan on the folds, the strength and the rows.
    """

    study: Study
    scores: FoldScores
    table: Float[np.ndarray, "1+n S"]
    statement: Sequence[str]
    warnings: Sequence[str]
    is_complete: bool = True

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def p_values(self) -> Mapping[str, float]:
        """The p value of each statistic by name."""
        return dict(zip(self.scores.names, compute_p_values(self.table).tolist(), strict=True))

    def write_files(self, seconds: float) -> None:
        """Write permutations.csv, the picture, and permutation.json, last."""
        names = self.scores.names
        columns: dict[str, Sequence] = {"permutation": range(len(self.table))}
        columns |= {name: values.tolist() for name, values in zip(names, self.table.T, strict=True)}
        contents: dict[str, Any] = {"permutations.csv": columns_csv(columns), **draw_permutations(self)}
        content = {
            "identity": self.study.identity,
            "label": self.study.label,
            "status": "done",
            "n": len(self.table) - 1,
            "observed": dict(zip(names, self.table[0].tolist(), strict=True)),
            "p": self.p_values,
            "statement": list(self.statement),
            **describe_few_rows(self.study),
            "warnings": list(self.warnings),
            "seconds": seconds,
        }
        contents[self.study.study_file] = json_text(content)
        delete_files(self.folder, name_picture_files("permutation"))  # in formats that are not drawn now, too
        for name, file_content in contents.items():
            write_atomically(self.folder / name, file_content)

    def describe(self) -> Iterator[str]:
        """Yield the lines to print at the end."""
        yield from self.statement
        for warning in self.warnings:
            yield f"warning: {warning}"
        yield f"permutations.csv, {self.study.study_file}, permutation.png in {self.folder}/"


def draw_permutations(result: PermutationResult) -> dict[str, bytes]:
    """Return the contents of the picture's files: a histogram of each statistic, and the observed value."""
    names = result.scores.labels
    n = len(result.table) - 1
    settings = result.study.experiment.settings
    with style_context(result.study.experiment.picture_style):
        title = f"{result.study.experiment.picture_title}: {n:,} permutations of the targets within clients"
        figure, axes = make_figure(len(names), len(names), height=1.8, title=[title])
        panels = zip(axes, names, result.table.T, compute_p_values(result.table), strict=True)
        for ax, name, values, p in panels:
            permuted = values[1:][np.isfinite(values[1:])]
            ax.hist(permuted, bins=30, color="0.75", linewidth=0)
            ax.axvline(values[0], color="C3", linewidth=pt(1.5))
            ax.set(xlabel=f"{name}\nline: observed {values[0]:.3g}, p = {p:.3g}", ylabel="permutations")
        return render_picture("permutation", figure, settings)


@dataclass(frozen=True, kw_only=True)
class PermutationPlan:
    """A permutation test that is ready to run.

    Attributes:
        fold: the fold of each row, from 0, (N,).
        moves_folds: whether rows exchange their folds with their targets, since the folds have the classes evenly: the
            features then tell nothing of both together.
        n: the number of permutations.
        sentences: on the folds, the strength of psi, and the rows that exchange their targets.
        warnings: a sentence each.
        rescales: whether each permutation has a path of its own, from the strength at which 0 is optimal for it.
        messages: lines to print before it begins.
    """

    study: Study
    exchanges: Exchanges
    scores: FoldScores
    fold: Int[np.ndarray, " N"]
    moves_folds: bool
    n: int
    sentences: Sequence[str]
    warnings: Sequence[str]
    rescales: bool
    messages: Sequence[str]

    def describe_progress(self) -> list[str]:
        """Say how many permutations are done, and how many remain."""
        n_done = sum(len(chunk) for chunk in self.chunks if self.load_chunk(chunk) is not None)
        return [f"{n_done} of {self.n + 1} fits exist (observed and permuted), {self.n + 1 - n_done} to run "
                f"({self.study.folder})"]  # fmt: skip

    @property
    def chunks(self) -> list[range]:
        """The numbers of the permutations that share a file; 0 is no permutation, but the observed targets."""
        return [range(start, min(start + _CHUNK, self.n + 1)) for start in range(0, self.n + 1, _CHUNK)]

    def chunk_file(self, chunk: range) -> Path:
        """Return the file of a chunk."""
        return self.study.folder / FITS / f"permutations{chunk.start}.npz"

    def load_chunk(self, chunk: range) -> Float[np.ndarray, "k S"] | None:
        """Return the statistics of a chunk; None if the file is missing, damaged or shorter."""
        try:
            table = read_npz(self.chunk_file(chunk))["table"]
        except READ_ERRORS:
            return None
        return table[: len(chunk)] if len(table) >= len(chunk) else None

    def run(self, log: Log = lambda line: None) -> PermutationResult:
        """Compute what is missing, and write the files. Raises UserError if the folder cannot be used."""
        began = time.perf_counter()
        with self.study.claim():
            table = self.compute(log)
            warnings = [*self.warnings]
            for name, values in zip(self.scores.labels, table.T, strict=True):
                if n_undefined := int(np.isnan(values[1:]).sum()):
                    warnings.append(f"{name} of {n_undefined} permutations is not defined in any fold: they count as "
                                    "at least as good")  # fmt: skip
            statement = [*self.scores.describe_test(table), *self.sentences]
            result = PermutationResult(self.study, self.scores, table, statement, warnings)
            result.write_files(time.perf_counter() - began)
        return result

    def compute(self, log: Log) -> Float[np.ndarray, "1+n S"]:
        """Return the statistics of all permutations: read from the folder, or else computed and saved in chunks."""
        tables: dict[range, np.ndarray] = {}
        for chunk in self.chunks:
            table = self.load_chunk(chunk)
            if table is not None:
                tables[chunk] = table
        missing = [chunk for chunk in self.chunks if chunk not in tables]
        with self.study.reporting_fits(lambda: sum(map(len, tables)), self.n + 1, log):
            if missing:
                self._compute_chunks(missing, tables, log)
        return np.concatenate([tables[chunk] for chunk in self.chunks])

    def _compute_chunks(self, missing: Sequence[range], tables: dict[range, np.ndarray], log: Log) -> None:
        """Add the statistics of the missing chunks to ``tables``, and save each."""
        workers = study_workers.get()
        work = PermutedChunks(self)
        if workers is not None:
            computed = workers.compute_parts(work, missing, self.study.experiment, self.study.folder)
        else:
            is_direct = isinstance(work.fits, DirectFits)  # the fits of a selection have threads of their own
            n_threads = available_cores() if is_direct else 1
            computed = compute_in_threads(work, missing, n_threads, blas_threads=1 if is_direct else None)
        began = time.monotonic()
        with closing(computed):
            for i, (chunk, table) in enumerate(zip(missing, computed, strict=True), start=1):
                tables[chunk] = table
                write_atomically(self.chunk_file(chunk), npz_bytes({"table": table}))
                if (i == 1 or i % max(len(missing) // 10, 1) == 0) and i < len(missing):
                    left = (time.monotonic() - began) / i * (len(missing) - i) / 60
                    log(f"{chunk.stop:,} of {self.n + 1:,} fits, about {left:.1f} min left")

    def compute_chunk(self, fits: DirectFits | PathFits, chunk: range) -> Float[np.ndarray, "k S"]:
        """Return the statistics of some permutations."""
        return np.stack([self.compute_one(fits, number) for number in chunk])

    def compute_one(self, fits: DirectFits | PathFits, number: int) -> Float[np.ndarray, " S"]:
        """Return the statistics of one permutation, or of the observed targets, number 0."""
        study = self.study
        seed = study.experiment.settings.seed
        y = self.exchanges.exchange(study.data.train.y, number, seed)
        fold = self.fold
        if self.moves_folds and number:
            fold = self.exchanges.exchange(fold, number, seed)
            study = replace(study, subsets=_list_subsets(fold))
        fitted = fits.fit(replace(study, path=self.path_of(y)), number, y)
        position = self.scores.choose(y, fitted.outputs)
        if position is not None:
            return self.scores.compute(y, fold, fitted.outputs[position], float(fitted.support[position]))
        if number == 0:
            raise UserError("a fold has no finite solution at any value of the path: give `range=[LOW,HIGH]`")
        return np.full(len(self.scores.names), np.nan)

    def path_of(self, y: Shaped[np.ndarray, " N"]) -> RegularizationPath:
        """Return the path of permuted targets, which begins where 0 is optimal for them."""
        path = self.study.path
        if not self.rescales or y is self.study.data.train.y:
            return path
        return replace(path, values=path.values * self._find_strength_max(y) / self._observed_strength_max)

    @cached_property
    def _observed_strength_max(self) -> float:
        return self._find_strength_max(self.study.data.train.y)

    def _find_strength_max(self, y: Shaped[np.ndarray, " N"]) -> float:
        """Return the smallest strength at which 0 is optimal for these targets."""
        study = self.study
        with jax.enable_x64(True):
            data = replace(study.data, train=replace(study.data.train, y=y))
            return self._strength_max(gather_rows(data, study.experiment.settings.client_weighting))

    @cached_property
    def _strength_max(self) -> Callable[[Batch], float]:
        study = self.study
        reg = study.experiment.reg.with_value(study.path.param_name, 1.0)
        problem = build_problem(study.experiment.with_resolved(reg=reg), study.data)
        return make_strength_max(problem, study.data.train.x.shape[1])


@dataclass
class PermutedChunks:
    """The fits of a permutation test as work for threads or workers: maps a chunk to its statistics, (k, S)."""

    plan: PermutationPlan

    @cached_property
    def fits(self) -> DirectFits | PathFits:
        """The fits, which all chunks share."""
        study = self.plan.study
        return DirectFits(study) if DirectFits.applies_to(study) else PathFits(study)

    def __call__(self, chunk: range) -> Float[np.ndarray, "k S"]:
        return self.plan.compute_chunk(self.fits, chunk)


def plan_permutations(
    config: Mapping[str, Any] | PreparedExperiment,
    options: PermutationOptions,
    out: str | Path | None = None,
    keeps_strength: bool = False,
) -> PermutationPlan:
    """Check a permutation test, and prepare its folds and exchanges, without writing anything. Raises UserError.

    With ``keeps_strength``, the strength, or radius, is that of the configuration; else each permutation chooses one.
    """
    given = prepare(config)
    reg = given.reg
    if reg.relative_or_none is not None:
        raise UserError("`reg.relative` follows from the targets, which are permuted: give `reg.strength=`, or leave "
                        "both out, so that each permutation chooses its own")  # fmt: skip
    chooses = bool(reg.path_field) and not keeps_strength and given.applies_regularizer
    prepared = prepare_study(given, "permute", keeps_strength=not chooses)
    experiment, data = prepared.experiment, prepared.data
    check_permutable(experiment, data)
    resolved = SelectOptions(folds=options.folds, by=options.by)
    resolved = resolved.resolve(len(data.train.sizes), list_marked_folds(data), data.train.group is not None)
    n_folds = resolved.folds or DEFAULT_FOLDS
    fold = assign_folds(data, n_folds, options.by, experiment.data.fold_seed(experiment.settings.seed))
    check_subsets(experiment, data, split_by_fold(fold), options.by)
    scores = FoldScores(experiment.objective, data, is_linear_model(type(experiment.objective)))
    _check_options(experiment, options, chooses)
    exchanges = Exchanges.of_data(data)
    if chooses:
        points = options.points or DEFAULT_POINTS
        path = build_path(experiment, data, points, options.range, MIN_RATIO)
        strength = f"each permutation chose its {path.param_name} anew, among {points}, by its loss out of fold"
    else:
        path, strength = _keep_strength(experiment)
    moves_folds = folds_follow_targets(data, options.by)
    dependencies = {
        "by": options.by,
        "folds": n_folds,
        "path": path.values.tolist(),
        "chooses": chooses,
        "seed": experiment.settings.seed,  # of the permutations; the identity of a baseline has none
        "moves folds": moves_folds,
    }
    study = Study.create(
        prepared,
        path,
        _list_subsets(fold),
        dependencies=[experiment.settings.cutoff, dependencies],
        row_arrays=[fold],
        out=out,
    )
    if not study.keeps_held_out:
        raise UserError(f"outputs out of fold of {len(fold):,} rows are too many for permutations: give fewer rows")
    by = "data.fold" if data.train.fold is not None else options.by
    fixed = "" if chooses else path.range_description
    note = f"{options.n:,} permutations of the targets within clients; {strength}"
    warnings = [*exchanges.warn_kept(), *exchanges.warn_few(data.train.y, options.n)]
    if majority := describe_majority(data):
        warnings.append(f"accuracy misleads here: {majority}")
    notes = [note, *exchanges.describe(), *(f"warning: {warning}" for warning in warnings)]
    return PermutationPlan(
        study=study,
        exchanges=exchanges,
        scores=scores,
        fold=fold,
        moves_folds=moves_folds,
        n=options.n,
        sentences=[f"scores are means over {n_folds} folds by {by}", strength, *exchanges.describe()],
        warnings=warnings,
        rescales=chooses and options.range is None,
        messages=describe_study(study, f"{n_folds} folds", by, "take no part", notes, strength=fixed),
    )


def _check_options(experiment: PreparedExperiment, options: PermutationOptions, chooses: bool) -> None:
    """Raise UserError for options that a permutation test would ignore, and for one that it lacks."""
    settings = experiment.settings
    if chooses and find_path_parameter(experiment) == "radius" and options.range is None:
        raise UserError("a path of radii follows from the targets, which are permuted: give `range=[LOW,HIGH]`, or "
                        "`reg.radius=`")  # fmt: skip
    if not chooses:
        for name in ("points", "range"):
            if getattr(options, name) is not None:
                raise UserError(f"`{name}=` is of the strengths among which each permutation chooses, and here nothing "
                                f"is chosen: leave `{name}=` out, or `reg.strength=`")  # fmt: skip
    if settings.metric is not None:
        raise UserError(f"`metric={settings.metric}`: fcorun permute tests each score of the task, and chooses a "
                        "strength by the loss: leave metric out")  # fmt: skip
    if settings.threshold != DEFAULT_THRESHOLD:
        raise UserError(f"`threshold={settings.threshold}`: fcorun permute predicts the class of the larger "
                        "probability: leave threshold out, and see the AUC")  # fmt: skip


def _list_subsets(fold: Int[np.ndarray, " N"]) -> dict[str, SubsetMasks]:
    """Return the masks of all rows, and of the folds."""
    all_rows = np.ones(len(fold), bool)
    return {ALL_ROWS: SubsetMasks(train=all_rows, validation=~all_rows), **split_by_fold(fold)}


def _keep_strength(experiment: PreparedExperiment) -> tuple[RegularizationPath, str]:
    """Return a path of the one strength, or radius, of an experiment, and a sentence on it."""
    reg = experiment.reg
    if not experiment.applies_regularizer:
        sentence = f"algo={experiment.names['algo']} {IGNORES_PSI}"
        return RegularizationPath("", np.ones(1), sentence), sentence
    name = reg.path_field
    if not name:
        sentence = f"reg={experiment.names['reg']} has no strength"
        return RegularizationPath("", np.ones(1), sentence), sentence
    value = float(getattr(reg, name))
    path = RegularizationPath(name, np.array([value]), f"{name}={value:g}")
    return path, f"{path.range_description} is that of the command: p is too small if these rows chose it"
