"""The end of a run: final warnings, scores of held-out rows, the summary, and the files that complete the record."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fcorun.base.config import IDENTITY_SECTIONS
from fcorun.base.errors import UserError, first_line, word
from fcorun.base.metrics import COUNTERS, GAP_METRICS, OPTIONAL_COUNTERS, aggregate, to_json
from fcorun.base.records.few_rows import simulates
from fcorun.base.records.formats import csv_text, frame_parquet, json_text, npz_bytes, read_yaml, yaml_text
from fcorun.base.records.record import (
    AT_SITES,
    AWAY_FILE,
    BASELINE_HAZARD_FILE,
    PAGE_FILES,
    PERSONAL,
    PREDICTIONS_FILE,
    SHARED,
    Record,
    try_lock,
)
from fcorun.base.sources.catalogue import describe_source
from fcorun.base.system.machine import describe_environment
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.data.tables.encoding import ENCODING_FILE as ENCODING
from fcorun.data.tables.imputation.missing_by_outcome import MISSING_FILE
from fcorun.experiment.build import bind_objective, build_problem, connect_clients, resolve_factors
from fcorun.experiment.classifiers import warn_constant_prediction, warn_constant_scores, warn_unbounded_coefficients
from fcorun.experiment.experiment import (
    MIN_EVALUATIONS,
    PreparedExperiment,
    describe_few_evaluations,
    describe_remaining_descent,
    is_descending,
    measure_remaining_descent,
    metric_phrase,
    minimized_metric,
)
from fcorun.experiment.optimality_gap import can_measure_movement, describe_movement, list_rates, measure_movement
from fcorun.experiment.requirements import warn_wrong_psi_sides
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.communication.contracts import Identity
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.reports.pictures.picture import begin_pictures
from fcorun.results.model_outputs import Arrays
from fcorun.results.models.client_intercepts import add_client_intercepts, warn_intercepts
from fcorun.results.models.coefficients import (
    Coefficients,
    coefficient_files,
    coefficients_from,
    find_cutoff_factors,
    personal_only,
)
from fcorun.results.models.predictions import (
    ChosenThresholds,
    choose_thresholds,
    find_few_levels,
    fixed_thresholds,
    note_too_many_rows,
    predict_splits,
    predictions_csv,
    summarize_outcome,
    tabulate_scores,
)
from fcorun.runs.client_history import CLIENTS_FILE
from fcorun.runs.fault_notes import describe_faults
from fcorun.runs.job import Job
from fcorun.runs.relaxed_run import LASSO_METRICS_FILE, relax_run
from fcorun.runs.several_hosts import gather_predictions

if TYPE_CHECKING:
    from fcorun.results.models.score_curves import Curves

# Results of a run's model on the rows of its splits: thresholds, scores and predictions, as files of the record.


@dataclass(frozen=True)
class SplitResults:
    """The results of a run's model on the rows of its splits.

    Attributes:
        files: the contents of files by name. Without held-out rows, predictions.csv and curves are left out.
        thresholds: the thresholds between two classes, or None.
        note: a sentence for the log, or "".
        curves: the curves of two classes, or None.
        model_warnings: sentences on the model that follow from its scores.
    """

    files: dict[str, str]
    thresholds: ChosenThresholds | None = None
    note: str = ""
    curves: "Curves | None" = None
    model_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the reason of the status."""
        return self.model_warnings + (() if self.thresholds is None else self.thresholds.warnings)

    @property
    def summary(self) -> dict[str, Any]:
        """The sections of summary.json."""
        return {} if self.thresholds is None else {"threshold": self.thresholds.to_json()}


def score_splits(job: Job, data: FederatedData, solution: Arrays, models: Arrays | None) -> SplitResults:
    """Score a run's model on its rows. The test rows are read here, once, and nothing is chosen by them.

    Args:
        solution: the parameters by name.
        models: the clients' personal models by parameter, or None.
    """
    experiment = job.experiment
    if isinstance(data.train, SiteRows):
        from fcorun.results.site_scores import choose_site_threshold, compute_site_scores

        kinds = {SHARED: experiment.has_shared_model, PERSONAL: experiment.algo.has_personal_models}
        objective = experiment.objective
        thresholds, edge = choose_site_threshold(data, objective, solution, experiment.settings.threshold)
        scores = compute_site_scores(data, objective, solution, edge, [kind for kind in kinds if kinds[kind]])
        warnings = warn_constant_scores([row for row in scores if row["model"] == SHARED], data.classes)
        files = {"scores.csv": csv_text(scores)} if scores else {}
        return SplitResults(files, thresholds, model_warnings=warnings)
    gather = partial(gather_predictions, experiment.objective, data, solution)
    shared_model = solution if experiment.has_shared_model else None
    files = {}
    if data.target_task.has_events and shared_model is not None:
        from fcorun.results.survival import baseline_hazards

        files[BASELINE_HAZARD_FILE] = baseline_hazards(experiment.objective, data, shared_model)
    predictions = predict_splits(experiment.objective, data, shared_model, models, gather)
    if not predictions:
        has_number = experiment.settings.threshold != DEFAULT_THRESHOLD
        return SplitResults(files, fixed_thresholds(experiment.settings.threshold) if has_number else None)
    thresholds = None
    if predictions[0].probability is not None:
        unweighted = experiment.data.describe_unweighted()
        thresholds = choose_thresholds(predictions, experiment.settings.threshold, unweighted=unweighted)
        predictions = thresholds.apply(predictions)
    scores = tabulate_scores(predictions)
    files["scores.csv"] = csv_text(scores)
    note = note_too_many_rows(predictions)
    if not note:
        files[PREDICTIONS_FILE] = predictions_csv(predictions)
    curves = None
    if predictions[0].probability is not None:
        from fcorun.results.models.score_curves import compute_curves

        curves = compute_curves(predictions, scores)
    if curves is not None:
        files |= curves.files
    return SplitResults(files, thresholds, note, curves)


# The end of a run: final warnings, the summary, and the files that complete the record.

Drawings = list[Callable[[], dict[str, bytes]]]  # of which each waits for pictures, and returns them by file name


def finish_run(
    job: Job,
    data: FederatedData,
    solution: Arrays,
    models: Arrays | None,
    *,
    times: dict,
    files: Mapping[str, str] = MappingProxyType({}),
    sections: Mapping[str, Any] = MappingProxyType({}),
    subjects: Sequence[Any] = (),
) -> None:
    """Complete the record of a run that has ended, and set its status. The run fails if the record cannot be written.

    Args:
        models: the clients' personal models by parameter; None if they are not saved.
        times: the seconds of compilation and of rounds.
        files, sections: further files by name, and further sections of summary.json.
        subjects: further subjects of pictures, of those of ``fcorun.reports.pictures.picture``.
    """
    if not (job.divergence_round or personal_only(job.rows)):
        job.add_reason(warn_intercepts(job.experiment, data, solution))
        solution = add_client_intercepts(job.experiment, data, solution)
    lasso, relaxed = solution, None
    if job.experiment.settings.is_relaxed and not job.divergence_round:
        try:
            relaxed = relax_run(job, data, solution)
        except UserError as error:
            return job.fail(error)
        solution = relaxed.solution
    coefficients = None
    if not (job.divergence_round or personal_only(job.rows)) and is_linear_model(type(job.experiment.objective)):
        coefficients = coefficients_from(solution, data, job.experiment)
    drawings: Drawings = []
    if job.with_pictures:
        drawings = _begin_pictures(job, coefficients, subjects)  # of the rows before the relaxation replaces them
    if not (job.divergence_round or job.experiment.settings.imputations):
        _add_reasons_for_doubt(job, data, lasso, coefficients)
    if relaxed is not None:  # curves.png shows the metrics before the relaxation
        files = {**files, LASSO_METRICS_FILE: csv_text(job.rows), **relaxed.files}
        job.rows = [relaxed.row]
        job.add_reason(relaxed.sentence)
    rounds_done = job.divergence_round  # after the last evaluation
    if job.rows and not rounds_done:
        rounds_done = int(job.rows[-1]["round"])
    faults, fault_section = describe_faults(job.experiment, data, rounds_done)
    privacy, privacy_section = job.experiment.describe_privacy(rounds_done)
    status, reason = _find_status(job, faults, privacy)
    summary = summarize(job, data, status, {"setup": job.setup_seconds, **times})
    summary |= {**sections, **fault_section, **privacy_section}
    if relaxed is not None:
        summary |= {"relaxed": relaxed.summary, "certificate": None}
    try:
        job.write_files({"metrics.csv": csv_text(job.rows), **files})
        if job.clients.rounds:
            job.write_files({CLIENTS_FILE: frame_parquet(job.clients.tabulate(data))})
        if not job.divergence_round:
            start = time.perf_counter()
            held_out = score_splits(job, data, solution, models)
            summary |= held_out.summary
            summary["seconds"]["scores"] = time.perf_counter() - start
            job.write_files(held_out.files)
            if held_out.note:
                job.run_folder.log(held_out.note)
            for warning in held_out.warnings:
                job.add_reason(warning)
            if drawings and held_out.curves is not None:
                drawings.append(_begin_curves(job, data, held_out.curves))
        if isinstance(data.train, SiteRows):
            notes, site_files = note_sites(job, data, data.train)
            summary |= notes
            job.write_files(site_files)
        job.write_files(_collect_files(data, solution, models))
        if coefficients is not None:
            job.write_files(coefficient_files(coefficients))
        _write_end(job, (status, reason or job.reason), summary, drawings)
    except Exception as error:
        job.fail(error)
    else:
        job.end_status = status


def _find_status(job: Job, *sentences: str) -> tuple[str, str]:
    """Return the status of a run that has ended, and why it diverged; the ``sentences`` are for either status."""
    if not job.divergence_round:
        for sentence in sentences:
            job.add_reason(sentence)
        return "done", ""
    reason = job.divergence_reason or f"not finite in round {job.divergence_round}{job.divergence_origin}"
    return "diverged", "; ".join(filter(None, (reason, *sentences)))


def note_sites(job: Job, data: FederatedData, rows: SiteRows) -> tuple[dict[str, Any], dict[str, str]]:
    """Add notes on the sites to the reason of a run that has ended; ``rows`` are its training rows.

    Returns further sections of summary.json, and the contents of further files by name.
    """
    sections: dict[str, Any] = {}
    files = {}
    if rows.absences.entries:
        sections["away"] = rows.absences.describe()
        files[AWAY_FILE] = csv_text([asdict(absence) for absence in rows.absences.entries])
        for sentence in sections["away"]:
            job.add_reason(sentence)
    experiment = job.experiment
    if not (isinstance(experiment.uplink, Identity) and isinstance(experiment.downlink, Identity)):
        job.add_reason("bytes_up and bytes_down count the encodings of uplink and downlink, and the messages of sites "
                       "are longer, since they have the decoded numbers")  # fmt: skip
    if data.features.standardized_by == "per_client":
        job.add_reason("coefficients are per standard deviation of each client, whose means and deviations are at its "
                       "site alone")  # fmt: skip
    if experiment.algo.has_personal_models:
        job.add_reason("each client's personal model is at its site alone, in the record that the site keeps")
        sections["personal_models"] = AT_SITES
    return sections, files


def _collect_files(data: FederatedData, solution: Arrays, models: Arrays | None) -> dict[str, bytes | str]:
    """Return the files on the encoding and the gaps of a table, and the record's .npz files, by name."""
    files: dict[str, bytes | str] = {}
    if data.features.encoding is not None:
        files[ENCODING] = json_text(data.features.encoding.to_dict())
    if data.features.missing:
        files[MISSING_FILE] = csv_text(data.features.missing)
    files["solution.npz"] = npz_bytes(solution)
    if models is not None:
        files["personal.npz"] = npz_bytes(models | {"client": np.array(data.clients or range(len(data.train.sizes)))})
    if data.features.client_scalings and not data.train.stays_at_sites:  # too large for summary.json
        files["scaling.npz"] = npz_bytes(data.features.client_scalings)
    return files


def _add_reasons_for_doubt(job: Job, data: FederatedData, solution: Arrays, coefficients: Coefficients | None) -> None:
    """Add to the reasons of a run why its model or its scores may mislead."""
    reg = resolve_factors(job.experiment.reg, job.experiment.objective, data)
    separation_warning = warn_unbounded_coefficients(job.experiment, data, job.rows[-1], reg)
    _add_final_warnings(job, separation_warning, coefficients)
    if data.classes:
        job.add_reason(warn_constant_prediction(job.experiment, data, job.rows[-1]))
    if not separation_warning:
        _warn_of_movement(job, data, solution)


def _add_final_warnings(job: Job, separation_warning: str = "", coefficients: Coefficients | None = None) -> None:
    """Add warnings about the end of a run that has not diverged, as its rows show it.

    A ``separation_warning`` replaces that of an objective that was still falling. A baseline has its certificate.
    """
    row = job.rows[-1]
    resolution = job.resolution(row.get("objective", 0.0))
    for name in GAP_METRICS:
        was_target = job.stopped and name in (job.experiment.settings.stop or {})
        if abs(row.get(name, float("inf"))) < resolution and not was_target:
            precision = job.experiment.settings.precision
            job.add_reason(f"{name} is rounding: {precision} resolves {resolution:.1g} of the objective")
    job.add_reason(job.experiment.objective.final_warning(row))
    job.add_reason(_warn_of_zero_weights(job.experiment, row, coefficients))
    job.add_reason(warn_wrong_psi_sides(job.experiment, row))
    job.add_reason(separation_warning)
    if isinstance(job.experiment.algo, Baseline):
        return
    if not job.stopped:
        job.add_reason(job.describe_missed_targets())
        job.add_reason(job.describe_stalled_certificate())
    near = (job.certificate or {}).get("near")
    if _has_risen(job):
        has_advice = near is False  # that of a large gap
        advice = ": smaller rates may help" if list_rates(job.experiment.algo) and not has_advice else ""
        job.add_reason(f"the {metric_phrase(minimized_metric(row))} ended above where it began{advice}")
    elif not (job.stopped or near):
        job.remaining_descent = measure_remaining_descent(job.rows)
        if job.remaining_descent and near is None and not separation_warning:
            job.add_reason(describe_remaining_descent(job.remaining_descent))
        algo = job.experiment.algo
        is_judged = near is not None or separation_warning or algo.certificate
        if not is_judged and (algo.computed_rounds is None or row["round"] < algo.computed_rounds):
            job.add_reason(word(describe_few_evaluations(job.rows)))


def _has_risen(job: Job) -> bool:
    """Return whether the minimized metric ended above its first value."""
    metric = minimized_metric(job.rows[-1])
    return job.rows[-1][metric] > job.rows[0][metric]


def _warn_of_movement(job: Job, data: FederatedData, solution: Arrays) -> None:
    """Measure how far the coefficients are from a stationary point, and describe a large movement.

    Runs that are known not to have reached the optimum, and runs of few evaluations, are left out.
    """
    near = (job.certificate or {}).get("near")
    if job.experiment.privacy.acts:  # noise moves the coefficients in each round
        return
    if job.stopped or job.remaining_descent or near is False or _has_risen(job) or len(job.rows) < MIN_EVALUATIONS:
        return
    if not can_measure_movement(job.experiment, data, single_run=job.with_pictures):
        return
    job.movement = measure_movement(job.experiment, data, solution)
    job.add_reason(describe_movement(job.experiment, data, job.movement, falling=is_descending(job.rows)))


def _warn_of_zero_weights(
    experiment: PreparedExperiment, row: dict[str, float], coefficients: Coefficients | None
) -> str:
    """Return a warning if the strength of the regularizer has left no weight nonzero; empty for personal models."""
    reg, settings, name = experiment.reg, experiment.settings, experiment.names["reg"]
    if row.get("density") != 0 or "personal_density" in row or not settings.rounds:
        return ""
    if not (reg.strength_or_none and reg.sparse and experiment.applies_regularizer):
        return ""
    if coefficients is None or not coefficients.weights.any():
        return word(f"`reg={name}` made every weight 0: a smaller strength leaves some nonzero")
    if coefficients.exceed(settings.cutoff).any():
        return ""
    return word(f"`reg={name}` left no weight above `cutoff={settings.cutoff:g}` in magnitude: a smaller strength "
                "leaves larger ones, a smaller cutoff counts these")  # fmt: skip


def _write_end(job: Job, final: tuple[str, str], summary: dict, drawings: Drawings) -> None:
    """Write the summary of the record, then its pictures, and the status last, which ``final`` has with its reason."""
    folder, (status, reason) = job.run_folder, final
    job.write_files({"summary.json": json_text(summary)})
    if drawings:
        start = time.perf_counter()
        contents: dict[str, bytes] = {}
        try:
            for wait in drawings:
                contents |= wait()
        except Exception as error:  # the run is computed: a picture that fails costs the pictures alone
            reason = "; ".join(filter(None, (reason, f"the pictures could not be drawn ({first_line(error)})")))
        job.write_files(contents)
        summary["seconds"]["picture"] = time.perf_counter() - start
        job.write_files({"summary.json": json_text(summary)})
    last_round = job.rows[-1]["round"] if job.rows else 0
    folder.log(f"{status} after round {last_round}" + (f": {reason}" if reason else ""))
    if job.convergence:
        folder.log(job.convergence)
    divergence = {"round": job.divergence_round} if job.divergence_round else {}
    folder.write_status(status, job.label, reason, **divergence)
    folder.delete_checkpoint()


def _begin_curves(job: Job, data: FederatedData, curves: "Curves") -> Callable[[], dict[str, bytes]]:
    """Begin to draw the curves of two classes on held-out rows."""
    from fcorun.reports.pictures.curve_groups import CurveView

    return begin_pictures(CurveView(curves, job.title_held_out_rows(data)), style=job.experiment.picture_style)


def _begin_pictures(job: Job, coefficients: Coefficients | None, subjects: Sequence[Any]) -> Drawings:
    """Begin to draw the curves of a run, the coefficients of a linear model, and further subjects."""
    from fcorun.reports.pictures.coefficient_picture import ModelView
    from fcorun.reports.pictures.run_curves import RunView

    settings, title = job.experiment.settings, job.picture_title
    run_view = RunView(job.rows, title, settings.cutoff, settings.x, job.experiment.metrics)
    views = [run_view, *subjects]
    if job.clients.rounds:
        views.append(job.clients.make_view(title, job.experiment.metrics))
    if coefficients is not None:
        views.append(ModelView(coefficients, title, settings.cutoff))
    return [begin_pictures(view, style=job.experiment.picture_style) for view in views]


def summarize(job: Job, data: FederatedData, status: str, times: dict[str, float]) -> dict[str, Any]:
    """Return the content of summary.json."""
    experiment, settings, rows = job.experiment, job.experiment.settings, job.rows
    last = rows[-1] if rows else dict.fromkeys(COUNTERS, 0)
    summary: dict[str, Any] = {"status": status, "label": job.label, "round": last["round"]}
    summary |= aggregate(rows, settings.tail_rounds, experiment.metrics, stopped=job.stopped)
    if job.stopped:
        summary["stopped"] = True
    if job.convergence:
        summary["convergence"] = job.convergence
    if experiment.declared_metrics:
        summary["metrics"] = to_json(experiment.declared_metrics)
    summary |= {
        "tail_rounds": settings.tail_rounds,
        "cutoff": settings.cutoff,
        "linear": is_linear_model(type(experiment.objective)),
        "sources": {section: describe_source(type(getattr(experiment, section))) for section in IDENTITY_SECTIONS},
        "strength": build_problem(experiment, data).regularizer.strength_or_none,
    }
    if isinstance(experiment.algo, Algorithm):
        summary |= experiment.topology.describe(connect_clients(experiment, data))
    if job.selection is not None:
        summary["selection"] = job.selection
    if experiment.ignores_regularizer:
        summary["ignores_regularizer"] = True
    if warnings := job.list_warnings(data):
        summary["warnings"] = warnings
    summary |= {
        "reference": job.optimum,
        "certificate": job.certificate,
        "unfinished": job.remaining_descent,
        "moved": job.movement,
        "drawn": job.depends_on_seed,
        "curvature": job.resolved_values,
    }
    for name in COUNTERS[2:]:
        if name in last or name not in OPTIONAL_COUNTERS:
            summary[name] = last.get(name)
    summary |= {
        "seconds": times,
        "data": _summarize_data(data, experiment),
        **describe_environment(),
        "devices": job.n_devices,
        "hosts": job.n_hosts,
    }
    if job.n_hosts > 1 and len(data.train) == data.train.n_rows:
        summary["rows"] = "all" if data.train.shard_features is None else "own"
    return summary


def _summarize_data(data: FederatedData, experiment: PreparedExperiment) -> dict[str, Any]:
    """Return the section on the data in summary.json."""
    summary: dict[str, Any] = {"clients": data.n_clients, "examples": data.train.n_rows}
    if isinstance(data.train, SiteRows):
        summary["sites"] = sorted(set(data.train.site_of_client))
        summary["client_names"] = list(data.clients)
    elif len(data.train) < data.train.n_rows:
        summary["evaluated_examples"] = len(data.train)
    summary["validation_examples"] = 0 if data.validation is None else data.validation.n_rows
    if data.test is not None:
        summary["test_examples"] = data.test.n_rows
    if experiment.objective.client_intercepts:
        summary["client_names"] = list(data.client_names)
    if not experiment.data.units:
        summary["units"] = False
    summary |= {"fingerprint": experiment.fingerprint, **data.describe_features()}
    factors = find_cutoff_factors(experiment.objective, data)
    if factors is not None:
        summary["cutoff_factors"] = factors.tolist()
    if outcome := summarize_outcome(data):
        summary |= {"outcome": outcome, "gaps": data.features.gaps, "labels": dict(data.features.labels)}
    if few_levels := find_few_levels(data):
        summary["few_levels"] = few_levels
    if not simulates(experiment.config["data"]):
        summary["few_rows"] = data.few_rows
    return summary


# A finished run asked for with another ``threshold``: its rows are scored again, and nothing is trained.


def has_other_threshold(record: Record, threshold: float | str) -> bool:
    """Return whether the scores of a finished record are those of another value of ``threshold``."""
    if record.status.get("status") != "done":
        return False
    section = record.summary.get("threshold") or {"rule": DEFAULT_THRESHOLD}
    return section["rule"] != threshold


def rescore(job: Job, data: FederatedData) -> bool:
    """Write the files of a finished record that depend on the threshold anew; return False if the record is in use.

    Its report pages are deleted. The summary is written last, so that an interrupted rescoring begins again. Raises the
    errors of a damaged record.
    """
    folder = job.run_folder
    folder.lock = try_lock(folder.path)
    if folder.lock is None:
        return False
    try:
        record = Record(folder.path)
        summary, status = dict(record.summary), record.status
        models = {name: values for name, values in record.personal.items() if name != "client"}
        job.experiment = bind_objective(job.experiment, data)
        results = score_splits(job, data, record.solution, models or None)
        earlier = (summary.get("threshold") or {}).get("warnings", [])
        sentences = [text for text in str(status.get("reason", "")).split("; ") if text and text not in earlier]
        job.reason = "; ".join([*sentences, *results.warnings])
        for name in PAGE_FILES:  # they show the scores at the other threshold
            (folder.path / name).unlink(missing_ok=True)
        files = dict(results.files)
        if results.curves is not None and (folder.path / "roc.png").exists():  # the pictures mark the threshold
            files |= _begin_curves(job, data, results.curves)()
        for name, content in files.items():
            folder.write_file(name, content)
        config = read_yaml(folder.path / "config.yaml") | {"threshold": job.experiment.settings.threshold}
        folder.write_file("config.yaml", yaml_text(config))
        folder.write_status("done", job.label, job.reason)
        summary.pop("threshold", None)  # there is none without held-out rows and with the default
        folder.write_file("summary.json", json_text(summary | results.summary))
        folder.log(f"scored again with threshold={job.experiment.settings.threshold}")
    finally:
        folder.release()
    return True
