"""What a figure is: the section ``figure`` of a file in conf/experiment."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fcorun.config import CurveAxis, Positive, build, check_value
from fcorun.configuration.compose import compose
from fcorun.configuration.search_path import find_choices, user_config_dir
from fcorun.errors import UserError, suggest_name
from fcorun.reports.seed_bands import SEED_KINDS


@dataclass(frozen=True)
class Claim:
    """What a paper says of a figure, so that it can be checked.

    ``metric`` of ``algo`` is measured ``at``

    - the "tail" average at the algorithm's best rates, for each seed;
    - {bytes: 5e6}, or rounds, grad_evals, seconds: the last evaluation at its best rates that took no more, for each
      seed;
    - the "worst" value at any evaluation of any seed there, but for the start, round 0, which is the same for all;
    - "reach", the first round from which on any point of the grid is at ``target``, for good: between two evaluations
      where these are several rounds apart;
    - the "share" of all grid points whose tail average is at least as good as ``target``;
    - {largest: KEY}, the largest value of a key at which a grid point comes as near the best one as 0.1 %.

    The claim holds if that is above (below) each of the numbers, and ``times`` as much as each of the algorithms, that
    are listed, in every seed; it does not if it is so in none, and else the two are not distinguishable. ``note`` is
    what is known of it where it does not hold.
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
            object.__setattr__(self, "at", _place(self.at))
        if (self.target is None) == (self.at in ("reach", "share")):
            raise UserError(f"figure.claims: at={self.at} and target={self.target} do not go together in '{self.says}'")
        if not self.above and not self.below:
            raise UserError(f"figure.claims: '{self.says}' needs above or below")


def _place(at: dict[str, Any]) -> dict[str, Any]:
    """Check where a claim is measured, {AXIS: NUMBER} or {largest: KEY}. Raises UserError."""
    if len(at) != 1:
        raise UserError(f"figure.claims.at={at} must have one key: give {{bytes: 5e6}} or {{largest: algo.client_lr}}")
    ((name, value),) = at.items()
    if name == "largest":
        return {name: check_value(value, str, "figure.claims.at.largest")}
    check_value(name, Literal["largest", *get_args(CurveAxis)], "figure.claims.at")
    return {name: check_value(value, Positive, f"figure.claims.at.{name}")}


@dataclass(frozen=True)
class Figure:
    """A figure: how it is drawn from the records of its sweep, and what the paper says of it.

    Attributes:
        title: what is shown, in a line.
        draw: the picture of that name in fcorun.figures.draw.
        verdicts: what is worked out of the records beside the claims, in fcorun.figures.papers: bounds of theory,
            fixed_points or conditioning of fedsplit, margins and identities of personalised.
        panels: the metrics to draw, one a panel.
        x: what curves are drawn against; several make a column of panels each.
        only: the algorithms to draw; none: all.
        runs: the figure whose sweep this one is drawn from; None: its own.
        seeds: with which the best points are run again, beside the seed of the grid.
        seeded: what they are seeds of: "seed", cohorts and minibatches on the same data; or "data", the data anew, and
            with them cohorts and minibatches.
        fast: overrides for a smaller version, run within a minute.
        printed: the best rates that the paper prints, {algorithm: [client_lr, server_lr]}.
        printed_note: what is known of those that are not the best here; like a claim's ``note``, said of the unchanged
            figure alone.
        claims: what the paper says.
    """

    title: str
    draw: Literal["curves", "bars", "scatter", "averaging", "rates", "conditioning", "personalised"] = "curves"
    verdicts: Literal["bounds", "fixed_points", "conditioning", "personalised"] | None = None
    panels: list[str] = field(default_factory=list)
    x: list[CurveAxis] = field(default_factory=lambda: ["rounds"])
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
        """The keys that each further seed is given to."""
        return ("seed", "data.seed") if self.seeded == "data" else ("seed",)

    @property
    def seed_kind(self) -> str:
        """The word for several seeds: seeds of data, or of cohorts."""
        return SEED_KINDS[self.seed_keys[-1]]

    def __post_init__(self):
        given = [c if isinstance(c, Claim) else check_value(c, dict[str, Any], "figure.claims") for c in self.claims]
        claims = [c if isinstance(c, Claim) else build(Claim, c, "figure.claims") for c in given]
        if self.draw == "bars" and not self.panels:
            raise UserError("figure.draw=bars needs figure.panels: the metrics to draw")
        for algo, rates in (self.printed or {}).items():
            if len(rates) != 2:
                raise UserError(f"figure.printed.{algo}={rates} must be [client_lr, server_lr]")
        object.__setattr__(self, "claims", claims)


def remove_notes(figure: Figure) -> Figure:
    """A figure without what is known of its claims: that is of its runs as they stand in the file."""
    return replace(figure, printed_note="", claims=[replace(claim, note="") for claim in figure.claims])


def list_figures() -> dict[str, Path]:
    """The figures there are, and the file of each."""
    files = sorted(find_choices("experiment").items())
    return {
        name: path
        for name, path in files
        if re.search(r"^figure:(?!\s*(null|~)\s*$)", path.read_text(encoding="utf-8"), re.M)
    }


def find_figure(name: str) -> Path:
    """The file of a figure, or of an experiment that is none. Raises UserError if there is no such file."""
    files = find_choices("experiment")
    if name not in files:
        mine = "" if user_config_dir() else "; one of your own needs --config-dir DIR"
        raise UserError(f"there is no figure '{name}': {suggest_name(name, list_figures())}{mine}")
    return files[name]


def load_figure(name: str, overrides: Sequence[str] = ()) -> tuple[Figure, dict[str, Any]]:
    """A figure, and the configuration that its runs have in common; ``x=...`` in ``overrides`` replaces its own.

    Raises UserError if there is no such figure, or its file is no good.
    """
    path, config = find_figure(name), compose([f"experiment={name}", *overrides])
    if config["figure"] is None:
        raise UserError(f"{path} has no section figure, which says how it is drawn: figure: {{title: TEXT}}")
    figure = build(Figure, check_value(config["figure"], dict[str, Any], "figure"), "figure")
    if "x" not in config["figure"] or any(text.startswith("x=") for text in overrides):
        figure = replace(figure, x=[check_value(config["x"], CurveAxis, "x")])
    return figure, config
