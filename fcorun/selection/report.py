"""What is said of a selection on the terminal."""

import math
from collections.abc import Iterator

from fcorun.algorithms.base import Baseline
from fcorun.selection.choice import Choice
from fcorun.selection.files import MARK, nonzeros
from fcorun.selection.selected import Selection

_NAMED = 20  # clients that a line names


def tell_selection(of: Selection) -> Iterator[str]:
    """The two choices, which one was taken, remarks, what it cost, and where it lies."""
    choice, path = of.choice, of.path
    found = of.coefficients
    for rule, place in {"min": choice.best, "one_se": choice.simplest}.items():
        taken = "* " if rule == of.options.rule else "  "
        size = f", {nonzeros(of, found)[place]} of {found.weights[0].size} coefficients" if found else ""
        yield (f"{taken}{choice.names[rule]}: {path.number}={path.values[place]:.4g}  {of.metric} "
               f"{_score(choice, place)}{size}")  # fmt: skip
    yield _how(of)
    yield from _held(of)
    yield from of.remarks
    yield f"the choice cost {costs(of.cost)}"
    status = of.record.status if of.record else {}
    end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
    yield f"{of.folder}/refit: all training rows with {path.number}={path.values[choice.chosen]:.6g}: {end}"
    yield from of.refit
    files = ["selection.csv", "curve.csv", *(["path.csv"] if found else []), "selection.png and .pdf"]
    yield f"{of.folder}/ holds {', '.join(files)}"


def _score(choice: Choice, place: int) -> str:
    """The mean at a place of the path with its standard error; of paired differences, that of the difference."""
    if not choice.paired:
        return f"{choice.mean[place]:.4g} ± {choice.error[place]:.2g}"
    if place == choice.best:
        return f"{choice.mean[place]:.4g}"
    difference, error = choice.difference[place], choice.difference_error[place]
    return f"{choice.mean[place]:.4g}, {difference:+.2g} ± {error:.2g} from the {choice.names['min']}"


def _how(of: Selection) -> str:
    """How the folds are averaged, which standard error the rule takes, and how much it is worth."""
    rounds = of.experiment.settings.tail_rounds
    of_rounds = "" if isinstance(of.experiment.algo, Baseline) else f" (of the last {rounds} rounds at most)"
    share = of.weights / of.weights.sum()
    by_rows = f"weighed by its rows (from {share.min():.2g} to {share.max():.2g} of the mean)"
    each = by_rows if of.options.fold_weights == "rows" else "counted alike"
    error = "standard error"
    if of.choice.paired:
        error += f" of the folds' paired differences to the {of.choice.names['min']}"
    return (f"mean over {of.options.folds} folds{of_rounds}, each {each}, ± {error}; folds share training rows: a rule "
            "of thumb; the score of what was chosen is a little too good; coefficients are counted in the model of all "
            "training rows")  # fmt: skip


def _held(of: Selection) -> Iterator[str]:
    """Which clients each fold holds out, if these are not too many for a line."""
    if of.held and len(of.data.sizes) <= _NAMED:
        yield "held out: " + "; ".join(f"{name} {', '.join(clients)}" for name, clients in of.held.items())
    elif of.held:
        yield f"{of.folder}/{MARK} names the clients that each fold holds out (held_out)"


def costs(cost: dict[str, int]) -> str:
    """Runs, rounds and bytes in words."""
    sent = f", {_bytes(cost['bytes_up'])} up and {_bytes(cost['bytes_down'])} down" if cost["bytes_up"] else ""
    return f"{cost['runs']} runs, {cost['rounds']:,} rounds{sent}"


def _bytes(count: float) -> str:
    power = min(int(math.log10(max(count, 1))) // 3, 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
