"""Lines that ``fcorun select`` prints."""

from collections.abc import Iterator

from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.studies.selection.cross_validation.choice import CrossValidationChoice
from fcorun.studies.selection.cross_validation.nested_table import NESTED_FILE, describe_nested
from fcorun.studies.selection.cross_validation.selection_files import count_nonzeros
from fcorun.studies.selection.cross_validation.selection_options import Selection
from fcorun.studies.selection.study_result import format_cost

_MAX_NAMED_CLIENTS = 20  # in a line


def describe_selection(selection: Selection) -> Iterator[str]:
    """Yield the two choices, the one that was taken, warnings, the cost, and the files."""
    choice, path, folder = selection.choice, selection.path, selection.folder
    coefficients = selection.coefficients
    for rule, index in choice.rule_indices.items():
        marker = "* " if rule == selection.options.rule else "  "
        size = ""
        if coefficients:
            nonzeros = count_nonzeros(selection, coefficients)[index]
            size = f", {nonzeros} of {coefficients.weights[0].size} coefficients"
        yield (
            f"{marker}{choice.rule_labels[rule]}: {path.describe(index)}  {selection.metric} "
            f"{_format_score(choice, index)}{size}"
        )
    yield _describe_average(selection)
    if selection.nested is not None:
        yield from describe_nested(selection, selection.nested)
    if selection.held_out_clients:
        if len(selection.data.train.sizes) <= _MAX_NAMED_CLIENTS:
            folds = [f"{name} {', '.join(clients)}" for name, clients in selection.held_out_clients.items()]
            yield "held out: " + "; ".join(folds)
        else:
            yield f"{folder}/{selection.study.study_file} names the clients that each fold holds out (held_out)"
    if selection.thresholds is not None and selection.thresholds.chosen_on:
        yield f"threshold={selection.thresholds.rule}: {selection.threshold:.4g}, chosen out of fold"
    yield from selection.warnings
    yield f"the choice cost {format_cost(selection.cost)}"
    status = selection.record.status if selection.record else {}
    end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
    yield f"{folder}/refit: all training rows with {path.describe(choice.chosen_index, digits=6)}: {end}"
    yield from selection.refit_warnings
    files = ["selection.csv", "curve.csv", *(["path.csv"] if coefficients else []), NESTED_FILE]
    if selection.study.keeps_held_out:
        files += [PREDICTIONS_FILE, "scores.csv"]
    elif not selection.data.train.stays_at_sites:
        yield f"{PREDICTIONS_FILE} is left out: the folds hold out too many rows, at all values of the path"
    files += ["selection.png", "selection.pdf"]
    yield f"{folder}/ holds {', '.join(name for name in files if (folder / name).exists())}"
    if (folder / "roc.csv").exists():
        yield "of two classes out of fold: roc, calibration and decision.png and .pdf, and their tables"


def _format_score(choice: CrossValidationChoice, index: int) -> str:
    """Return the mean at a position of the path with a standard error: of the mean, or of a paired difference."""
    mean = f"{choice.mean[index]:.4g}"
    if not choice.paired:
        return f"{mean} ± {choice.standard_error[index]:.2g}"
    if index == choice.best_index:
        return mean
    difference, error = choice.difference[index], choice.difference_standard_error[index]
    return f"{mean}, {difference:+.2g} ± {error:.2g} from the {choice.rule_labels['min']}"


def _describe_average(selection: Selection) -> str:
    """Say how folds are averaged, which standard error the rule takes, and how reliable the score is."""
    rounds = ""
    if not isinstance(selection.experiment.algo, Baseline):
        rounds = f" (of the last {selection.experiment.settings.tail_rounds} rounds at most)"
    weighting = "weighed equally"
    if selection.options.fold_weights == "rows":
        share = selection.fold_weights / selection.fold_weights.sum()
        rows = "rows" if selection.study.data.train.weight is None else "rows' weights"
        weighting = f"weighed by its {rows} (from {share.min():.2g} to {share.max():.2g} of the mean)"
    error = "standard error"
    if selection.choice.paired:
        error += f" of the folds' paired differences to the {selection.choice.rule_labels['min']}"
    may_nest = not (selection.nested or selection.data.train.stays_at_sites)
    advice = " (outer_folds=5 adds the score of nested cross-validation)" if may_nest else ""
    source = "" if selection.coefficients is None else "; coefficients are those of the model of all training rows"
    return (
        f"mean over {selection.options.folds} folds{rounds}, each {weighting}, ± {error}, which is rough because "
        f"folds share training rows; the score of the chosen model is slightly optimistic{advice}{source}"
    )
