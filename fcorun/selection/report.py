"""What is said of a selection on the terminal."""

import math
from collections.abc import Iterator

from fcorun.algorithms.base import Baseline
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
               f"{choice.mean[place]:.4g} ± {choice.error[place]:.2g}{size}")  # fmt: skip
    rounds = of.experiment.settings.tail_rounds
    of_rounds = "" if isinstance(of.experiment.algo, Baseline) else f" (of the last {rounds} rounds at most)"
    yield (f"mean ± standard error over {of.options.folds} folds{of_rounds}, each of which counts alike, and which "
           "share training rows: a rule of thumb; the score of what was chosen is a little too good")  # fmt: skip
    yield from _held(of)
    yield from of.remarks
    yield f"the choice cost {costs(of.cost)}"
    status = of.record.status if of.record else {}
    end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
    yield f"{of.folder}/refit: all training rows with {path.number}={path.values[choice.chosen]:.6g}: {end}"
    yield from of.refit
    files = ["selection.csv", "curve.csv", *(["path.csv"] if found else []), "selection.png and .pdf"]
    yield f"{of.folder}/ holds {', '.join(files)}"


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
