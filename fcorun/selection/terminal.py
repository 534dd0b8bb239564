"""What is said of a selection on the terminal."""

import math
from collections.abc import Iterator

from fcorun.algorithms.base import Baseline
from fcorun.selection.choice import CrossValidationChoice
from fcorun.selection.files import STUDY_FILE, count_nonzeros
from fcorun.selection.result import Selection

_NAMED = 20  # clients that a line names


def describe_selection(of: Selection) -> Iterator[str]:
    """The two choices, which one was taken, remarks, what it cost, and where it lies."""
    choice, path = of.choice, of.path
    found = of.coefficients
    for rule, place in {"min": choice.best_index, "one_se": choice.one_se_index}.items():
        taken = "* " if rule == of.options.rule else "  "
        size = f", {count_nonzeros(of, found)[place]} of {found.weights[0].size} coefficients" if found else ""
        yield (f"{taken}{choice.rule_labels[rule]}: {path.param_name}={path.values[place]:.4g}  {of.metric} "
               f"{_score(choice, place)}{size}")  # fmt: skip
    yield _how(of)
    yield from _held(of)
    yield from of.warnings
    yield f"the choice cost {format_cost(of.cost)}"
    status = of.record.status if of.record else {}
    end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
    yield f"{of.folder}/refit: all training rows with {path.param_name}={path.values[choice.chosen_index]:.6g}: {end}"
    yield from of.refit
    files = ["selection.csv", "curve.csv", *(["path.csv"] if found else []), "selection.png and .pdf"]
    yield f"{of.folder}/ holds {', '.join(files)}"


def _score(choice: CrossValidationChoice, place: int) -> str:
    """The mean at a place of the path with its standard error; of paired differences, that of the difference."""
    if not choice.paired:
        return f"{choice.mean[place]:.4g} ± {choice.standard_error[place]:.2g}"
    if place == choice.best_index:
        return f"{choice.mean[place]:.4g}"
    difference, error = choice.difference[place], choice.difference_standard_error[place]
    return f"{choice.mean[place]:.4g}, {difference:+.2g} ± {error:.2g} from the {choice.rule_labels['min']}"


def _how(of: Selection) -> str:
    """How the folds are averaged, which standard error the rule takes, and how much it is worth."""
    rounds = of.experiment.settings.tail_rounds
    of_rounds = "" if isinstance(of.experiment.algo, Baseline) else f" (of the last {rounds} rounds at most)"
    share = of.weights / of.weights.sum()
    by_rows = f"weighed by its rows (from {share.min():.2g} to {share.max():.2g} of the mean)"
    each = by_rows if of.options.fold_weights == "rows" else "counted alike"
    error = "standard error"
    if of.choice.paired:
        error += f" of the folds' paired differences to the {of.choice.rule_labels['min']}"
    return (f"mean over {of.options.folds} folds{of_rounds}, each {each}, ± {error}; folds share training rows: a rule "
            "of thumb; the score of what was chosen is a little too good; coefficients are counted in the model of all "
            "training rows")  # fmt: skip


def _held(of: Selection) -> Iterator[str]:
    """Which clients each fold holds out, if these are not too many for a line."""
    if of.held_out_clients and len(of.data.sizes) <= _NAMED:
        yield "held out: " + "; ".join(f"{name} {', '.join(clients)}" for name, clients in of.held_out_clients.items())
    elif of.held_out_clients:
        yield f"{of.folder}/{STUDY_FILE} names the clients that each fold holds out (held_out)"


def format_cost(cost: dict[str, int]) -> str:
    """Runs, rounds and bytes in words."""
    sent = f", {_bytes(cost['bytes_up'])} up and {_bytes(cost['bytes_down'])} down" if cost["bytes_up"] else ""
    return f"{cost['runs']} runs, {cost['rounds']:,} rounds{sent}"


def _bytes(count: float) -> str:
    power = min(int(math.log10(max(count, 1))) // 3, 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
