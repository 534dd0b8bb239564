"""Specification of a figure: the section ``figure`` of a file in conf/experiment."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fcorun.base.config import CurveAxis, Positive, build, check_value
from fcorun.base.errors import UserError, suggest_name
from fcorun.experiment.configuration.compose import compose_shared
from fcorun.experiment.configuration.search_path import find_choices, read_yaml, user_config_dir


@dataclass(frozen=True)
class Claim:
    """A claim of a paper about a figure, in a form that can be checked.

    ``metric`` of ``algo`` is measured ``at``

    - the "tail" average at the algorithm's best rates, for each seed;
    - {bytes: 5e6}, or rounds, grad_evals, seconds, simulated_seconds, a monotone metric: the values at the algorithm's
      best rates at the last evaluation that took no more than that and at the first that took no less, for each seed.
      The claim is not distinguishable if it holds at one of them alone, and not measured if the run ended before that
      number, unless the run had converged;
    - the "worst" value at any evaluation of any seed at these rates, but for the start, round 0, which is the same for
      all;
    - "reach", the first round from which on any point of the grid stays at ``target``: known as two bounds if
      evaluations are several rounds apart;
    - the "share" of all grid points whose tail average is at least as good as ``target``;
    - {largest: KEY}, the largest value of a key at which a grid point is within 0.1 % of the best point.

    The claim holds if in every seed the quantity is above (below) each number listed, and above (below) ``times`` the
    quantity of each algorithm listed. The claim does not hold if that is so in no seed; otherwise the two are not
    distinguishable. ``note`` explains a claim that does not hold.
    """

    says: str
    algo: str
    metric: str
    at: str | dict[str, Any] = "tail"
    target: float | None = None
    above: list[float | str] = field(default_factory=list)
    below: list[float | str] = field(default_factory=list)
    times: Positive = 1.0
    note: str = ""

    def __post_init__(self):
        if isinstance(self.at, str):
            check_value(self.at, Literal["tail", "reach", "worst", "share"], "figure.claims.at")
        else:
            if len(self.at) != 1:
                raise UserError(f"figure.claims.at={self.at} must have one key: give {{bytes: 5e6}} or "
                                "{largest: algo.client_lr}")  # fmt: skip
            ((name, value),) = self.at.items()
            value = check_value(value, str if name == "largest" else Positive, f"figure.claims.at.{name}")
            object.__setattr__(self, "at", {name: value})
        if (self.target is None) == (self.at in ("reach", "share")):
            raise UserError(f"figure.claims: at={self.at} and target={self.target} do not go together in '{self.says}'")
        if not self.above and not self.below:
            raise UserError(f"figure.claims: '{self.says}' needs above or below")
        compared = [other for other in (*self.above, *self.below) if isinstance(other, str)]
        for name in compared:
            if name == self.algo:
                raise UserError(f"figure.claims: '{self.says}' compares {name} with itself: name another algorithm")
            if compared.count(name) > 1:
                raise UserError(f"figure.claims: '{self.says}' names {name} twice, above or below: give it once")


@dataclass(frozen=True)
class Figure:
    """Specification of a figure: the picture, drawn from the records of a sweep, and the claims of the paper.

    Attributes:
        title: a line that says what the figure shows.
        draw: the name of a picture in fcorun.studies.figures.reproduce.
        verdicts: a check of the records beside the claims, in fcorun.studies.figures.papers: bounds (module fco),
            fixed_points or conditioning (fedsplit_figures), personalised (margins of personal models),
            few_rounds (the cheapest method for each gap), faults_race (what liars, dropouts and rules change),
            privacy_race (what privacy costs, and which method bears it best).
        panels: the metrics to draw, one in each panel. The pictures bytes_race and few_rounds need two, of which the
            first is drawn on a logarithmic axis, as a gap is; the picture identification needs [pattern_errors,
            suboptimality].
        x: the x axis of curves, a counter or a monotone metric; each of several axes makes a column of panels.
        only: the algorithms to draw; an empty list: all.
        runs: another figure whose sweep this figure is drawn from; None: a sweep of its own.
        seeds: the seeds with which the best points are run again, beside the seed of the grid.
        seeded: "seed" draws other cohorts and minibatches with each seed, on the same data; "data" draws other data,
            too.
        fast: overrides for a smaller version, run within a minute.
        printed: the best rates that the paper prints, {algorithm: [client_lr, server_lr]}.
        printed_note: an explanation of printed rates that are not the best; shown, like the ``note`` of a claim, for
            the unchanged figure alone.
        claims: the claims of the paper.
    """

    title: str
    draw: Literal[
        "curves",
        "bars",
        "scatter",
        "averaging",
        "rates",
        "conditioning",
        "personalised",
        "few_rounds",
        "bytes_race",
        "graph_race",
        "identification",
        "faults_race",
        "privacy_race",
    ] = "curves"
    verdicts: (
        Literal["bounds", "fixed_points", "conditioning", "personalised", "few_rounds", "faults_race", "privacy_race"]
        | None
    ) = None
    panels: list[str] = field(default_factory=list)
    x: list[CurveAxis | str] = field(default_factory=lambda: ["rounds"])
    only: list[str] = field(default_factory=list)
    runs: str | None = None
    seeds: list[int] = field(default_factory=list)
    seeded: Literal["seed", "data"] = "seed"
    fast: list[str] = field(default_factory=list)
    printed: dict[str, list[float]] | None = None
    printed_note: str = ""
    claims: list[Any] = field(default_factory=list)

    @property
    def seed_keys(self) -> tuple[str, ...]:
        """The configuration keys that each further seed sets."""
        return ("seed", "data.seed") if self.seeded == "data" else ("seed",)

    def __post_init__(self):
        claims = []
        for claim in self.claims:
            if not isinstance(claim, Claim):
                claim = build(Claim, check_value(claim, dict[str, Any], "figure.claims"), "figure.claims")
            claims.append(claim)
        if self.draw == "bars" and not self.panels:
            raise UserError("figure.draw=bars needs figure.panels: the metrics to draw")
        if self.draw in ("bytes_race", "few_rounds") and len(self.panels) != 2:
            raise UserError(f"figure.draw={self.draw} needs two figure.panels: the gap and another metric, such as "
                            "[suboptimality,support_f1]")  # fmt: skip
        if self.draw == "identification" and self.panels != ["pattern_errors", "suboptimality"]:
            raise UserError("figure.draw=identification needs figure.panels=[pattern_errors,suboptimality]")
        for algo, rates in (self.printed or {}).items():
            if len(rates) != 2:
                raise UserError(f"figure.printed.{algo}={rates} must be [client_lr, server_lr]")
        object.__setattr__(self, "claims", claims)


def remove_notes(figure: Figure) -> Figure:
    """Return a figure without its notes, which are about the runs of the unchanged file."""
    return replace(figure, printed_note="", claims=[replace(claim, note="") for claim in figure.claims])


def list_figures() -> dict[str, Path]:
    """Return the names of all figures, with the file of each."""
    figures = {}
    for name, path in sorted(find_choices("experiment").items()):
        text = path.read_text(encoding="utf-8", errors="replace")  # a file that cannot be read says so when it is used
        if re.search(r"^figure:(?!\s*(null|~)\s*(#.*)?$)", text, re.M):
            figures[name] = path
    return figures


def find_figure(name: str) -> Path:
    """Return the file of a figure, or of an experiment without a figure. Raises UserError if no file has the name."""
    files = find_choices("experiment")
    if name not in files:
        advice = "" if user_config_dir() else "; one of your own needs `--config-dir DIR`"
        raise UserError(f"there is no figure '{name}': {suggest_name(name, list_figures())}{advice}")
    return files[name]


def load_figure(name: str, overrides: Sequence[str] = ()) -> tuple[Figure, dict[str, Any]]:
    """Return a figure and the configuration that its runs share; ``x=...`` in ``overrides`` replaces the figure's axes.

    Raises UserError if no figure has the name, or its file is not valid.
    """
    path = find_figure(name)
    read_yaml(path)  # Hydra does not name a file that it cannot read
    config = compose_shared([f"experiment={name}", *overrides])
    if config["figure"] is None:
        raise UserError(f"{path} lacks the section figure, which defines its picture: figure: {{title: TEXT}}")
    figure = build(Figure, check_value(config["figure"], dict[str, Any], "figure"), "figure")
    if "x" not in config["figure"] or any(text.startswith("x=") for text in overrides):
        figure = replace(figure, x=[str(config["x"])])
    return figure, config
