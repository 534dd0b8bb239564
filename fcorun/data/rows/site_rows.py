"""Rows that stay at their sites: what a site, or the server, knows of all clients' rows, and which sites are away."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.rows import Rows

Ask = Callable[..., Mapping[str, Any]]  # ``Connections.ask`` of fcorun.sites.transport.connections
_NO_ROWS = (np.inf, 0.0, np.inf, 0.0, 0.0)  # the bounds on the curvature of a site without training rows
_MOST_STRETCHES = 3  # of the rounds that a sentence lists
_UNLIKE = 1e6  # times as large as at all other sites: a bound on numbers of another unit


class AnswersMissing(Exception):
    """The end of a computation that needs the answers of all sites to each of its requests."""


@dataclass(frozen=True)
class AwayRule:
    """The rule by which a site without an answer is left out.

    Attributes:
        seconds: the time for which a site is waited for.
        least_sites: the least number of answers. With fewer, the server waits on.
    """

    seconds: float
    least_sites: int

    def suffices(self, n_answers: int, n_asked: int) -> bool:
        """Return whether the server goes on with so many answers after the time."""
        return n_answers >= min(self.least_sites, n_asked)


@dataclass
class Absence:
    """Consecutive messages of one kind to a site that it did not answer.

    Rounds in which the site was not asked may lie between them.

    Attributes:
        message: the name of the message.
        first_round, last_round: the rounds of the first and the last of these messages, counted from 1; for messages
            outside of rounds, such as evaluations, the number of rounds done before; 0 for scores at the end of a run.
    """

    site: str
    message: str
    first_round: int
    last_round: int


@dataclass
class Absences:
    """The messages that sites missed in a run.

    Attributes:
        sentences: the sentence on a site that missed a message, by the name of the message, with the fields {rounds}
            and {site}.
        entries: what was missed, in the order of the run.
        evaluated: the sites that have answered the last evaluation, and so have the last model.
    """

    sentences: Mapping[str, str] = field(default_factory=dict)
    entries: list[Absence] = field(default_factory=list)
    evaluated: tuple[str, ...] = ()
    # the absences that may go on, by site and message
    _open: dict[tuple[str, str], Absence] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything, at the beginning of a run."""
        self.entries.clear()
        self._open.clear()
        self.evaluated = ()

    def note(self, message: str, round_number: int, asked: Sequence[str], present: Sequence[str]) -> None:
        """Note which of the sites that were asked are not among those ``present``."""
        for site in asked:
            if site in present:
                self._open.pop((site, message), None)
            elif (site, message) in self._open:
                self._open[site, message].last_round = round_number
            else:
                absence = Absence(site, message, round_number, round_number)
                self._open[site, message] = absence
                self.entries.append(absence)

    def describe(self) -> list[str]:
        """Return a sentence for each site and each kind of message that the site missed."""
        stretches: dict[tuple[str, str], list[Absence]] = {}
        for absence in self.entries:
            stretches.setdefault((absence.message, absence.site), []).append(absence)
        sentences = []
        for (message, site), of_site in stretches.items():
            sentences.append(self.sentences[message].format(rounds=_list_rounds(of_site), site=f"'{site}'"))
        return list(dict.fromkeys(sentences))


def _list_rounds(absences: Sequence[Absence]) -> str:
    """Return rounds as text.

    >>> _list_rounds([Absence("a", "round", 2, 2), Absence("a", "round", 5, 9)])
    'rounds 2, 5-9'
    """
    texts = []
    for absence in absences[:_MOST_STRETCHES]:
        first, last = absence.first_round, absence.last_round
        texts.append(str(first) if first == last else f"{first}-{last}")
    if len(absences) > _MOST_STRETCHES:
        texts.append("... (away_sites.csv lists all)")
    return ("round " if texts[0].isdigit() and len(texts) == 1 else "rounds ") + ", ".join(texts)


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteRows(Rows):
    """The rows of the clients of one site, sorted by client, among clients of which only the sizes are known.

    x, y, client and all other columns are those of the site's own rows; ``client`` holds numbers among all M clients.
    The server has no rows of its own.

    Attributes:
        all_sizes: the number of rows of each client, (M,).
        all_weights: the sum of the weights of each client's rows, (M,); None: rows have no weights.
        site_of_client: the name of each client's site, (M,); empty at a site.
        sum_name: the name under which the server gets sums over all sites instead of the answers of single sites; None:
            each site's answer comes under its own name.
        sum_errors: the largest error of a number in a sum over all sites, by message, where secure sums round numbers.
        by_site: whether the plan asks for results of single sites.
        away: the rule by which sites without an answer are left out of rounds; None: all are waited for.
        absences: what sites missed in the present run.
        ask: sends requests to the sites; None at a site.
        curvature: the bounds on the curvature of all clients' losses, once they are known: of minibatches, of whole
            data, and of F.
    """

    stays_at_sites = True

    all_sizes: np.ndarray
    all_weights: np.ndarray | None = None
    site_of_client: tuple[str, ...] = ()
    sum_name: str | None = None
    sum_errors: Mapping[str, float] = field(default_factory=dict)
    by_site: bool = False
    away: AwayRule | None = None
    absences: Absences = field(default_factory=Absences)
    ask: Ask | None = None
    curvature: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.all_sizes)])

    @cached_property
    def sizes(self) -> np.ndarray:
        return self.all_sizes

    @property
    def n_rows(self) -> int:
        return int(self.all_sizes.sum())

    def count_independent(self) -> tuple[int, dict[int, int]]:
        return self.n_rows, {m: n for m, n in enumerate(self.all_sizes.tolist()) if n}

    @cached_property
    def client_weights(self) -> np.ndarray:
        return self.all_sizes if self.all_weights is None else self.all_weights

    def sum_by_client(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.known_client, values, len(self.all_sizes))

    def take(self, index: Any) -> Rows:
        return self.local.take(index)

    # -- requests of the server

    @cached_property
    def answer_of_client(self) -> tuple[str, ...]:
        """The name under which the server gets what each client adds to an answer, (M,)."""
        return self.site_of_client if self.sum_name is None else (self.sum_name,) * len(self.all_sizes)

    @cached_property
    def rows_of_answer(self) -> dict[str, int]:
        """The number of rows of the sites behind the answers of each name."""
        return _sum_by_name(self.answer_of_client, self.all_sizes)

    def sum_by_answer(self, of_client: np.ndarray) -> dict[str, Any]:
        """Return the sum of numbers of clients, (M,), by the name of the answers that have their rows."""
        return _sum_by_name(self.answer_of_client, of_client)

    def request(self, name: str, **content: Any) -> Mapping[str, Any]:
        """Return the answers of all sites to a request, or of those that the request is ``of``."""
        assert self.ask is not None
        return self.ask(name, **content)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites with training rows, sorted."""
        return tuple(sorted(set(self.site_of_client)))

    def request_present(
        self, name: str, round_number: int, of: Sequence[str] | None = None, **content: Any
    ) -> Mapping[str, Any]:
        """Return the answers of the sites that are not away. Who is away is noted with the number of the round."""
        if self.away is None:
            return self.request(name, **content) if of is None else self.request(name, of=of, **content)
        asked = self.sites if of is None else tuple(of)
        answers = self.request(name, of=asked, away=self.away, **content)
        self.absences.note(name, round_number, asked, tuple(answers))
        return answers

    def request_all_or_none(
        self, name: str, round_number: int, of: Sequence[str] | None = None, **content: Any
    ) -> Mapping[str, Any]:
        """Return the answers of all sites, or of those that the request is ``of``.

        Raises AnswersMissing if one is away: sums over different sites do not belong together.
        """
        answers = self.request_present(name, round_number, of, **content)
        if self.away is not None and len(answers) < len(self.sites if of is None else of):
            raise AnswersMissing
        return answers

    def curvature_bounds(self, full_batch: bool) -> tuple[float, float]:
        """Return bounds on the curvature of every client's loss, or of its minibatches' losses, rounded outwards."""
        return tuple(self._ask_for_curvature()["full_batch" if full_batch else "minibatch"])  # type: ignore[return-value]

    def pooled_smoothness(self) -> float:
        """Return a bound on the curvature of F."""
        return self._ask_for_curvature()["pooled"]

    def _ask_for_curvature(self) -> dict[str, Any]:
        """Return the bounds, which the server asks for once."""
        if not self.curvature and self.ask is not None:
            answers = self.request("curvature")
            n_rows = _sum_by_name(self.site_of_client, self.all_sizes)
            bounds = [read_bounds(site, answers[site].arrays, n_rows.get(site, 0)) for site in answers]
            largest_of_site = np.array(bounds)[:, [1, 3, 4]].max(axis=1)
            ordered = np.sort(largest_of_site)
            if len(ordered) > 1 and ordered[-1] > _UNLIKE * ordered[-2] > 0:
                site = list(answers)[int(largest_of_site.argmax())]
                raise UserError(f"site '{site}' bounds the curvature of its losses by {ordered[-1]:.2g}, and all other "
                                f"sites by at most {ordered[-2]:.2g}: see whether its columns have the units of the "
                                "others")  # fmt: skip
            least, most = np.min(bounds, axis=0).tolist(), np.max(bounds, axis=0).tolist()
            self.curvature["minibatch"] = [least[0], most[1]]
            self.curvature["full_batch"] = [least[2], most[3]]
            self.curvature["pooled"] = most[4]
        return self.curvature

    # -- the site's own clients

    @cached_property
    def has_client(self) -> np.ndarray:
        """Return the mask of the clients whose rows are here, (M,)."""
        return self.sum_by_client(np.ones(len(self))) > 0

    @property
    def local(self) -> Rows:
        columns = {name: getattr(self, name) for name in ("weight", "offset", "group", "fold", "row")}
        return Rows(self.x, self.y, self.client, **columns)

    @property
    def all_on_device(self) -> bool:
        return False

    @property
    def why_not_in_memory(self) -> str:
        return "stay at their sites"

    @property
    def n_initial_states(self) -> int:
        return int(self.has_client.sum())

    @property
    def local_client_slices(self) -> list[slice]:
        ends = np.cumsum(self.all_sizes[self.has_client])
        return [slice(start, stop) for start, stop in pairwise([0, *ends.tolist()])]

    @property
    def most_clients_of_a_host(self) -> int:
        return self.n_initial_states

    @property
    def device_starts(self) -> np.ndarray:
        own_sizes = np.where(self.has_client, self.all_sizes, 0)
        return np.where(self.has_client, np.cumsum(own_sizes) - own_sizes, 0)

    @cached_property
    def local_numbers(self) -> np.ndarray:
        """The number of each client among those here, (M,); 0 for the others."""
        return np.where(self.has_client, np.cumsum(self.has_client) - 1, 0)

    def host_index(self, cohort: Any, in_order: bool) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(self.local_numbers, jnp.int32)[cohort]

    def mean_weights(self) -> np.ndarray:
        total = self.client_weights.sum()
        return np.full(len(self), 1 / total) if self.weight is None else self.weight / total


def _sum_by_name(names: Sequence[str], values: np.ndarray) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for name, value in zip(names, values.tolist(), strict=True):
        sums[name] = sums.get(name, 0) + value
    return sums


def read_bounds(site: str, arrays: Mapping[str, np.ndarray], n_rows: int) -> np.ndarray:
    """Return a site's bounds on curvatures: of minibatches and of whole clients, least and most, and of F, (5,).

    Raises UserError, which names the site, for anything else.
    """
    bounds = arrays.get("bounds", np.zeros(0))
    problem = ""
    if set(arrays) != {"bounds"} or bounds.shape != (5,) or bounds.dtype != np.float64:
        problem = "what are no bounds"
    elif n_rows == 0:
        problem = "" if tuple(bounds.tolist()) == _NO_ROWS else "bounds without training rows"
    elif not np.isfinite(bounds).all() or (bounds < 0).any() or bounds[0] > bounds[1] or bounds[2] > bounds[3]:
        problem = "impossible bounds"
    if problem:
        raise UserError(f"site '{site}' sent {problem} on the curvature of its losses: use the same version of fcorun "
                        "at the server and at all sites, and see the log of that site")  # fmt: skip
    return bounds
