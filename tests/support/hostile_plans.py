"""Hostile plans on tables of two sites, and an attacker that looks for a row in all answers of site a."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from helpers import composed

from fcorun.base.errors import UserError
from fcorun.data.tables.scaling import Scaling
from fcorun.experiment.prepare import prepare
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.site.acceptance import open_checked_site
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.studies.selection.selection_result import SelectOptions

N, D = 60, 8
TARGET = 7  # the row that hostile plans are after
FEATURES = [f"f{k}" for k in range(D)]


def make_frame(seed: int) -> pd.DataFrame:
    """Return the rows of a site: eight features, and targets of each kind."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D)).round(3)
    frame = pd.DataFrame(x, columns=FEATURES)
    frame["cost"] = (x[:, 0] - x[:, 1] + rng.normal(size=N)).round(3)
    frame["ill"] = np.arange(N) % 3 % 2
    frame["visits"] = 1 + rng.poisson(2.0, N)
    frame["hours"] = rng.exponential(5.0, N).round(3) + 0.1
    frame["event"] = np.arange(N) % 4 % 2
    return frame


@dataclass(frozen=True)
class HostilePlan:
    """A plan that is after the row TARGET of site a.

    Attributes:
        name: the name of the attack.
        words: the options of the plan.
        columns: the columns that the owners' files have besides, each a function of the number of rows.
        at: the stage that refuses the plan, "plan", "accept" or "run"; "" for a plan that passes.
        only_at_a: whether the file of site b has harmless rows.
        select, infer: the options of a selection, and of intervals.
        client: the owner's column of clients.
    """

    name: str
    words: tuple[str, ...]
    columns: Mapping[str, Callable[[pd.DataFrame], np.ndarray]] = field(default_factory=dict)
    at: str = "accept"
    select: SelectOptions | None = None
    infer: InferenceOptions | None = None
    client: str | None = None

    def make(self) -> Plan:
        """Return the plan."""
        return plan_of(*self.words, select=self.select, infer=self.infer)

    def write_tables(self) -> dict[str, SiteOptions]:
        """Write a.csv and b.csv, and return the options of their owners."""
        for seed, name in enumerate("ab"):
            frame = make_frame(seed)
            added = {column: make(frame) for column, make in self.columns.items()}
            frame.assign(**added).to_csv(f"{name}.csv", index=False)
        return {name: SiteOptions(f"{name}.csv", client=self.client) for name in "ab"}


def plan_of(*words: str, select: SelectOptions | None = None, infer: InferenceOptions | None = None) -> Plan:
    """Return a plan on the features with full batches; later words replace earlier ones."""
    options = {"algo": "fedavg", "data": "sites", "data.target": "cost", "data.only": f"[{','.join(FEATURES)}]"}
    options |= {"data.validation": "0", "rounds": "3", "precision": "float64", "reg": "none", "eval_every": "3"}
    options |= dict(word.split("=", 1) for word in words)
    if options["algo"] == "fedavg":
        options.setdefault("algo.client_lr", "0.01")
    experiment = prepare(composed(*(f"{key}={value}" for key, value in options.items())))
    return Plan.from_experiment(experiment, None, select, infer=infer)


@dataclass
class Wiretap(InProcessConnections):
    """Connections of an honest server, which notes all answers of site a.

    Attributes:
        heard: the name of each message, and the arrays of the request and of the answer.
    """

    heard: list[tuple[str, dict, dict]] = field(default_factory=list)

    def send(self, request):
        answers = super().send(request)
        if "a" in answers:
            self.heard.append((request.name, dict(request.message.arrays), dict(answers["a"].arrays)))
        return answers


@dataclass(frozen=True)
class Outcome:
    """The outcome of a hostile plan.

    Attributes:
        at: the stage that refused the plan, "plan", "accept" or "run"; "" for a plan that passed.
        sentence: the sentence of the refusal.
        heard: what an honest server heard of site a.
        vectors: the vectors of the features in the answers, unscaled where they have a scale, (K, D).
    """

    at: str
    sentence: str = ""
    heard: list = field(default_factory=list)
    vectors: np.ndarray = field(default_factory=lambda: np.zeros((0, D)))


def try_hostile(hostile: HostilePlan, change: Callable[[pd.DataFrame], pd.DataFrame] | None = None) -> Outcome:
    """Return the outcome of a hostile plan at an honest server, after a change of the file of site a."""
    try:
        plan = hostile.make()
    except UserError as error:
        return Outcome("plan", str(error))
    options = hostile.write_tables()
    if change is not None:
        change(pd.read_csv("a.csv")).to_csv("a.csv", index=False)
    try:
        sites = {name: open_checked_site(plan, options[name], Policy()) for name in "ab"}
    except UserError as error:
        return Outcome("accept", str(error))
    connections, at, sentence = Wiretap(sites), "", ""
    try:
        with TemporaryDirectory(dir=".") as folder:
            run_plan(plan, connections, Path(folder) / "out")
    except UserError as error:
        at, sentence = "run", str(error)
    return Outcome(at, sentence, connections.heard, list_vectors(connections.heard, sites["a"]))


def list_vectors(heard: list, site: Site) -> np.ndarray:
    """Return all vectors of the first D features in answers, (K, D): gradients, sums, and the rows of matrices.

    Rows of a matrix with a row of the bias are unscaled, where the server knows the scales.
    """
    if site._data is None:  # refused before the sites agreed
        return np.zeros((0, D))
    n_features = site.own_data.train.x.shape[1]
    scaling = site.own_data.features.scaling
    vectors = [np.zeros((0, D))]
    for _, asked, answered in heard:
        for name, values in answered.items():
            if values.dtype.kind != "f" or values.ndim == 0:
                continue
            parts = [values]
            if name in asked and np.shape(asked[name]) == values.shape:
                parts.append(values - asked[name])
            for part in parts:
                vectors += [found[:, :D] for found in _find_vectors(part, n_features, scaling)]
    found = np.concatenate(vectors).astype(float)
    largest = np.abs(found).max(axis=1, initial=0)
    found = found[np.isfinite(largest) & (largest > 0)]
    found = found / np.abs(found).max(axis=1, initial=0, keepdims=True)
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    return np.unique(found.round(13), axis=0)[:400]


def _find_vectors(values: np.ndarray, n_features: int, scaling: Scaling | None) -> list[np.ndarray]:
    """Return arrays of vectors of the features, (..., n_features), in an array of an answer."""
    last, vectors = values.shape[-1], []
    if last in (n_features, n_features + 1):
        vectors.append(values.reshape(-1, last))
    if values.ndim == 1 and last % n_features == 0:
        vectors.append(values.reshape(-1, n_features))
    for size in (n_features, n_features + 1):
        if last != size * (size + 1) // 2:
            continue
        for packed in values.reshape(-1, last):
            matrix = np.zeros((size, size))
            matrix[np.triu_indices(size)] = packed
            matrix = matrix + np.triu(matrix, 1).T
            vectors.append(matrix)
            if scaling is not None and size > n_features:
                vectors.append(matrix[:, :-1] / scaling.factor + matrix[:, -1:] * scaling.mean)
    return vectors


def find_likeness(vectors: np.ndarray, row: np.ndarray) -> float:
    """Return the largest cosine of a row with a vector, or with a combination of two vectors."""
    cosine = vectors @ (row / np.linalg.norm(row))
    products = vectors @ vectors.T
    one, other = np.nonzero(np.triu(1 - products**2 > 1e-9, 1))
    a, b, g = cosine[one], cosine[other], products[one, other]
    squares = (a**2 + b**2 - 2 * a * b * g) / (1 - g**2)
    return float(max(np.abs(cosine).max(initial=0.0), np.sqrt(squares.clip(0, 1)).max(initial=0.0)))
