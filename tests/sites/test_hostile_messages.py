"""Hostile messages: a server that cheats sends requests to a site, and a site that cheats sends answers to the server.

Honest conversations of small studies are recorded, and their messages changed, under the default policy. Each change
meets a refusal in one sentence, or an answer that is not the one of a single row.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from recorded_studies import NAMES, STUDIES, plan_named, record, restorer, sites_of, write_tables

from fcorun.base.errors import UserError
from fcorun.engine.remote.loop import RemoteLoop
from fcorun.experiment import optimum
from fcorun.results import site_scores
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.server import site_selection
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_intervals import SiteSums
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.site.masking import MaskedSite
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.delivery import check_sender, sign_answer
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.messages import REFUSAL, Message, SiteRefusal, number_request

JUNK = [None, -1, 0, 10**30, "x", "reference", "null", [], {}, [[]], [None], True, 1e308, -0.5, 0.5, "x" * 2000]
A_ROW = 0.999  # the cosine between a vector and a row from which on the vector is the row
PYTHON = re.compile(r"Traceback|object at 0x|<class|NoneType|\bFile \"|has no attribute|not subscriptable|\('\w+'\)")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites, and make their folder the current one."""
    monkeypatch.chdir(tmp_path)
    write_tables()


# -- a server that cheats


def forge_model(request: Message, rows: np.ndarray, rng) -> Message:
    """Return a request at a model that tells most of a row: far away in some direction, or certain of all classes."""
    d = rows.shape[1]
    size = 10.0 ** rng.choice([-300, -3, 0, 1, 2, 3, 6, 12, 100, 160, 300])
    directions = [rng.normal(size=d), np.eye(d)[rng.integers(d)], rows[rng.integers(len(rows))], np.zeros(d)]
    weights = size * directions[rng.integers(4)] * rng.choice([-1, 1])
    bias = rng.choice([0.0, 30.0, -30.0, 500.0, -500.0, 1e6, -size])
    arrays, forged = {}, rng.random() < 0.8
    for name, values in request.arrays.items():
        values = np.array(values)
        if values.dtype.kind == "f" and (forged or rng.random() < 0.5):
            if values.shape[-1:] == (d,):
                values[...] = weights
            elif values.shape[-1:] == (d + 1,):  # an intercept is the last parameter
                values[...] = np.append(weights, bias)
            elif values.size == 1:
                values[...] = bias
        arrays[name] = values
    return replace(request, arrays=arrays)


def forge_array(request: Message, rng) -> Message:
    """Return a request of which one array is left out, reshaped, retyped, replaced or added."""
    arrays = dict(request.arrays)
    if not arrays or rng.random() < 0.1:
        return replace(request, arrays=arrays | {"extra": np.ones(3)})
    name = rng.choice(list(arrays))
    values = arrays.pop(name)
    change = rng.integers(11)
    if change == 1:
        arrays[name] = values[..., None]
    elif change == 2:
        arrays[name] = values.astype([np.int8, np.float32, bool, np.uint64][rng.integers(4)])
    elif change == 3:
        arrays[name] = np.zeros([0, 3, 10**5][rng.integers(3)])
    elif change == 4:
        arrays[str(rng.integers(5))] = values
    elif change == 5:
        arrays[name] = np.concatenate([np.atleast_1d(values)] * 2)
    elif change > 5:
        changed = np.array(values)
        numbers = [np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0] if values.dtype.kind == "f" else [0, 1]
        if changed.size:
            changed.ravel()[rng.integers(changed.size)] = numbers[rng.integers(len(numbers))]
        arrays[name] = changed if change < 9 else -values if values.dtype.kind in "fi" else ~values
    return replace(request, arrays=arrays)


def change_within(value: Any, rng) -> Any:
    """Return a value of JSON of which one part is another one."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: change_within(value[key], rng)}
    if isinstance(value, list) and value:
        k = int(rng.integers(len(value)))
        if rng.random() < 0.2:
            return value[:k] + value[k + 1 :] + value[: rng.integers(2)]
        return [*value[:k], change_within(value[k], rng), *value[k + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and rng.random() < 0.6:
        return [value + 1, -value, 2 * value, float(value)][rng.integers(4)]
    return JUNK[rng.integers(len(JUNK))]


def forge_value(request: Message, rng) -> Message:
    """Return a request of which small values are left out, replaced or added."""
    if not request.about or rng.random() < 0.1:
        return replace(request, about=request.about | {str(rng.choice(["models", "extra", "subset", "edge"])): "x"})
    return replace(request, about=change_within(request.about, rng))


def forge_request(request: Message, others: list[Message], rows: np.ndarray, rng) -> Message:
    """Return a hostile request in place of an honest one."""
    kind = rng.random()
    if kind < 0.45:
        return forge_model(request, rows, rng)
    if kind < 0.6:
        return forge_array(request, rng)
    if kind < 0.8:
        return forge_value(request, rng)
    if kind < 0.85:
        return replace(request, name=str(rng.choice([*list_kinds(), REFUSAL])))
    if kind < 0.95:  # of another place in the run
        return forge_model(others[rng.integers(len(others))], rows, rng)
    assert request.envelope is not None
    of = [("a",), ("b", "c"), ("a", "a", "b"), ("a", "b", "c", "d"), NAMES][rng.integers(5)]
    return replace(request, envelope=replace(request.envelope, run=str(rng.choice(["trial", "x"])), of=of))


@dataclass
class Sentences:
    """The sentences of refusals, each of which is one line, without what Python says, and without a cell."""

    cells: set[str] = field(default_factory=set)
    all: list[str] = field(default_factory=list)
    bad: list[Any] = field(default_factory=list)

    def add(self, error: UserError, *sent: Message) -> None:
        sentence = getattr(error, "public", str(error))
        self.all.append(sentence)
        if "\n" in sentence or len(sentence) < 30 or PYTHON.search(sentence):
            self.bad.append(sentence)
        quoted = [cell for cell in self.cells if cell in sentence]
        if quoted and not any(quoted[0] in str(message.about) for message in sent):
            self.bad.append(sentence)


def cells_of(name: str) -> set[str]:
    """Return the cells of a site's table that stand for one row each."""
    table = pd.read_csv(f"{name}.csv", dtype=str)
    return set(table[["x", "z", "u", "cost"]].to_numpy().ravel())


def is_a_row(vector: np.ndarray, rows: np.ndarray) -> bool:
    """Return whether a vector is that of one of the rows, but for its length."""
    with np.errstate(all="ignore"):
        vector = vector / np.abs(vector).max(initial=0)
        cosines = rows @ vector / (np.linalg.norm(rows, axis=1) * np.linalg.norm(vector))
    return bool(np.isfinite(vector).all() and np.abs(cosines).max(initial=0) > A_ROW)


def tells_a_row(answer: Message, request: Message, rows: np.ndarray) -> bool:
    """Return whether an array of an answer, or its difference from what was received, is that of one row.

    Arrays are gradients, (..., d) and with an intercept (..., d + 1), or triangles of Hessians, of which the first
    eigenvector counts if there is no other one.
    """
    d = rows.shape[1]
    forms = [rows, np.column_stack([rows, np.ones(len(rows))]), np.column_stack([np.ones(len(rows)), rows])]
    vectors = []
    for values in answer.arrays.values():
        values = np.asarray(values, float)
        if values.shape[-1:] in ((d,), (d + 1,)):
            received = [array for array in request.arrays.values() if array.shape == values.shape]
            vectors += [*np.atleast_2d(values)]
            for array in received:
                size, received_size = np.abs(values - array).max(initial=0), np.abs(array).max(initial=0)
                if 1e-6 * received_size < size < 0.5 * received_size:  # neither rounding nor what the server sent
                    vectors += [*np.atleast_2d(values - array)]
        for p in (d, d + 1):
            if values.shape[-1:] == (p * (p + 1) // 2,) and np.isfinite(values).all() and values.any():
                matrix = np.zeros((p, p))
                matrix[np.triu_indices(p)] = values.reshape(-1, values.shape[-1])[0] / np.abs(values).max()
                sizes, eigenvectors = np.linalg.eigh(matrix + np.triu(matrix, 1).T)
                if np.abs(sizes[:-1]).max() < 1e-3 * sizes[-1]:
                    vectors.append(eigenvectors[:, -1])
    return any(is_a_row(vector, form) for vector in vectors for form in forms if form.shape[1] == len(vector))


def positions(requests: list[Message], n: int, rng) -> list[int]:
    """Return places in a run, so that each message is among them about as often as another one."""
    names = sorted({request.name for request in requests})
    of_name = {name: [k for k, request in enumerate(requests) if request.name == name] for name in names}
    chosen = {int(rng.choice(of_name[names[i % len(names)]])) for i in range(2 * n)}
    return sorted(chosen)[:: max(1, len(chosen) // n)]


SENT = ("round", "residuals", "derivatives", "squared_scores")


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_a_server_that_cheats_reads_sentences_or_sums_of_many_rows(study, tmp_path):
    plan, rng = plan_named(study), np.random.default_rng(STUDIES.index(study))
    recorder = record(plan, tmp_path / "out")
    site, requests = recorder.site, [request for request, _, _ in recorder.log]
    inner, sentences, n_answered = getattr(site, "site", site), Sentences(cells_of("a")), Counter()
    compute, computed = inner.compute_answer, []
    inner.compute_answer = lambda request: computed.append(compute(request)) or computed[-1]
    places = positions(requests, 16, rng)
    for place in places:
        request, before, honest = recorder.log[place]
        site.load_state(before)
        if isinstance(site, MaskedSite):
            site._refusal = ""
        restore = restorer(site)
        for _ in range(400 // len(places)):
            rows = np.asarray(inner._own_data.train.x if inner._own_data else np.eye(3), float)
            forged, answer = forge_request(request, requests, rows, rng), None
            if forged.to_bytes() == request.to_bytes():
                continue
            computed.clear()
            try:
                answer = site.answer(forged)
            except UserError as error:
                sentences.add(error, forged, honest)
            if answer is not None:
                n_answered[forged.name] += 1
                if forged.name in SENT and tells_a_row(computed[-1], forged, rows):
                    sentences.bad.append((forged, computed[-1]))
                if plan.secure is not None and forged.name in plan.secure:
                    assert {array.dtype for array in answer.arrays.values()} == {np.dtype(np.uint64)}
            restore()
        again = site.answer(request)
        assert again.name == honest.name
        if plan.secure is None:
            assert again.to_bytes() == honest.to_bytes()
    assert not sentences.bad
    assert len(sentences.all) > 100
    assert sum(n_answered.values()) > 10


@pytest.mark.slow
@pytest.mark.parametrize("study", ["dual", "infer", "secure"])
def test_a_site_answers_the_honest_server_after_many_refusals(study, tmp_path):
    """A refused request leaves the state of a site in its folder as it was, also when the site is started anew."""
    plan, rng = plan_named(study), np.random.default_rng(9)
    recorder = record(plan, tmp_path / "out")
    fresh = sites_of(plan)["a"]
    if plan.secure is not None:  # the random number of the run is that of the recorded site
        fresh = MaskedSite(fresh.site, recorder.site.key, recorder.site.fingerprints)
    site, sentences, n_left = DurableSite(fresh, tmp_path / "state", name="a"), Sentences(cells_of("a")), 19
    for place, (request, _, honest) in enumerate(recorder.log):
        if n_left and request.name not in ("describe", "keys"):
            rows = np.random.default_rng(0).normal(size=(9, 6))
            forged = replace(forge_model(request, rows, rng), about={"extra": 1}, envelope=request.envelope)
            with pytest.raises(UserError) as refused:
                site.answer(forged)
            sentences.add(refused.value, forged)
            if place % 3 == 0:
                site.close()
                site = DurableSite(fresh, tmp_path / "state", name="a")
            if isinstance(fresh, MaskedSite):
                fresh._refusal = ""
            n_left -= 1
        if plan.secure is not None and request.name == "keys" and not request.about:
            site.answer(request)
            fresh._number = honest.about["number"]
            continue
        answer = site.answer(request)
        assert replace(answer, envelope=None, site=None).to_bytes() == honest.to_bytes()
    assert n_left < 19
    assert not sentences.bad
    site.close()


# -- a site that cheats


def forge_answer(answer: Message, rng) -> Message:
    """Return a hostile answer in place of an honest one, whose envelope and sender it has."""
    kind = rng.random()
    if kind < 0.1:
        return replace(answer, name=str(rng.choice([*list_kinds(), REFUSAL])))
    if kind < 0.15:
        return replace(answer, site=[None, "c", "x\x1b[31m" * 50][rng.integers(3)])
    if kind < 0.4 and answer.about:
        return replace(answer, about=change_within(answer.about, rng))
    if kind < 0.5:  # every number
        factor = [-1.0, 0.0, 1e9, 1e300][rng.integers(4)]
        with np.errstate(all="ignore"):
            arrays = {name: (values * factor).astype(values.dtype) for name, values in answer.arrays.items()}
        return replace(answer, arrays=arrays)
    return forge_array(answer, rng)


class Besieged(Exception):
    """The end of an attempt, whose forged answer the server has taken."""


@dataclass
class Forging(InProcessConnections):
    """Connections with a site "b" that cheats, while the server tries what it makes of the answers.

    Attributes:
        rng: the random numbers.
        n_attempts: the number of forged answers at each part of the server.
    """

    rng: Any = None
    n_attempts: int = 6
    _tries: bool = False
    _forged: int = -1
    _asked: int = 0
    _last_name: str = ""
    _honest: dict[bytes, dict[str, Message]] = field(default_factory=dict)
    sentences: Sentences = field(default_factory=Sentences)
    accepted: Counter = field(default_factory=Counter)

    def send(self, request):
        key = number_request(request.message, "run", 0, self.list_addressees(request)).to_bytes()
        if key not in self._honest:
            if self._tries and self._forged >= 0:
                raise Besieged
            self._honest[key] = super().send(request)
        answers = dict(self._honest[key])
        self._asked += "b" in answers
        if self._forged == self._asked - 1 and "b" in answers:
            self._last_name = request.name
            message = number_request(request.message, "run", 0, answers)
            forged = forge_answer(sign_answer(answers["b"], message, "b"), self.rng)
            if forged.name == "refusal":
                raise SiteRefusal(f"site 'b': {forged.about.get('sentence', 'a refusal of a site that cheats')}")
            arrived = Message.from_bytes(forged.to_bytes(), "site 'b'")
            check_sender(arrived, "b")
            if arrived.name != request.name:
                raise UserError(f"site 'b' answered another request than '{request.name}'")
            answers["b"] = replace(arrived, envelope=None, site=None)
        return answers

    def besiege(self, function):
        """Return a function that computes the same, after attempts with forged answers."""

        def compute(*arguments, **options):
            if self._tries:
                return function(*arguments, **options)
            part = arguments[0]
            self._tries, self._forged, self._asked = True, -1, 0
            known = dict(part._answers) if isinstance(part, SiteSums) else {}
            function(*arguments, **options)
            n_asked = self._asked
            n_attempts = 6 * self.n_attempts if isinstance(part, Server) else self.n_attempts
            for _ in range(n_attempts if n_asked else 0):
                self._forged, self._asked = int(self.rng.integers(n_asked)), 0
                if isinstance(part, SiteSums):
                    part._answers.clear()
                    part._answers.update(known)
                try:
                    function(*arguments, **options)
                    self.accepted[self._last_name] += 1
                except Besieged:
                    self.accepted[self._last_name] += 1
                except UserError as error:
                    self.sentences.add(error)
                    if "site" not in str(error):
                        self.sentences.bad.append(str(error))
                except Exception as error:
                    self.sentences.bad.append((self._last_name, repr(error)))
            if isinstance(part, RemoteLoop):
                part.federation.nonfinite_clients.clear()
            if isinstance(part, SiteSums):
                part._answers.clear()
                part._answers.update(known)
            self._forged, self._asked = -1, 0
            result = function(*arguments, **options)
            self._tries = False
            self._honest.clear()  # the same request later has another answer
            return result

        return compute


PARTS = (
    (Server, "load"),
    (RemoteLoop, "run_to_evaluation"),
    (RemoteLoop, "evaluate"),
    (SiteSums, "_ask"),
    (site_selection, "_ask_for_folds"),
    (site_selection.SiteStudy, "_begin"),
    (site_scores, "collect_counts"),
    (site_scores, "collect_sums"),
    (site_scores, "request_calibration_sums"),
    (optimum, "minimize_over_sites"),
)


@pytest.mark.slow
@pytest.mark.parametrize("study", [study for study in STUDIES if study != "secure"])
def test_a_site_that_cheats_meets_a_sentence_with_its_name_or_changes_numbers(study, tmp_path, monkeypatch):
    plan = plan_named(study)
    connections = Forging(sites_of(plan), rng=np.random.default_rng(STUDIES.index(study)), n_attempts=24)
    for owner, name in PARTS:
        monkeypatch.setattr(owner, name, connections.besiege(getattr(owner, name)))
    run_plan(plan, connections, tmp_path / "out")
    assert not connections.sentences.bad
    assert len(connections.sentences.all) > 20
