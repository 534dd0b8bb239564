"""The loop of runs whose rows stay at their sites: the server asks the sites for what only they can compute.

No site changes the record by what its rows cannot be: ``SumChecks`` refuses such answers.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError, first_line
from fcorun.base.metrics import CATALOGUE, ROWS_PRESENT, SITES_PRESENT
from fcorun.base.system.files import check_interrupted
from fcorun.data.rows.site_rows import AnswersMissing, SiteRows
from fcorun.engine.federation import Federation
from fcorun.engine.remote.certificate import RemoteGap
from fcorun.engine.remote.leaves import expand_sparse, name_leaves, restore_leaves
from fcorun.engine.remote.personal_models import add_broadcast, list_sums
from fcorun.engine.remote.programs import RemotePrograms, count_sent_runs
from fcorun.engine.schedule import DrawsAhead, Schedule
from fcorun.engine.segments.run_loop import RunLoop, Segment, Snapshot
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.communication.contracts import RoundDraws, RoundState
from fcorun.methods.objectives.objective import score_names, score_range

_ROUNDING = 1e-3  # of sums, relative to the share of a site's rows
_CLIENTS = "clients"  # the clients of an answer, each with the same weight
_MOST_WORK = 2**40  # gradients or proxes of a site in a round


def check_work(work: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ValueError for what are no counts of gradients and proxes."""
    if work.shape != shape or work.dtype != np.int64:
        raise ValueError(f"work of the shape {work.shape}")
    if not ((work >= 0) & (work <= _MOST_WORK)).all():
        raise ValueError("impossible counts of gradients")


@dataclass(frozen=True)
class SumChecks:
    """The checks of the sums of an evaluation.

    Attributes:
        n_runs: the number of runs, G.
    """

    federation: Federation
    n_runs: int

    def check(self, site: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise UserError, which names the site, unless the arrays can be the sums over the rows of the site.

        These are one number for each run, the loss and the scores of each split of which the site has rows. Numbers
        that are not finite pass: the run diverges.
        """
        shares = {split: by_answer.get(site, 0.0) for split, by_answer in self._shares.items()}
        needed = {name for name, (split, _) in self._sums.items() if shares[split] > 0}
        if not needed <= set(arrays) <= set(self._sums):
            sent = ", ".join(sorted(arrays))[:100] or "nothing"
            raise UserError(f"site '{site}' sent {sent} instead of the sums of its rows: use the same version of "
                            "fcorun at the server and at all sites")  # fmt: skip
        for key, values in arrays.items():
            if values.shape != (self.n_runs,) or values.dtype != self.federation.precision:
                raise UserError(f"site '{site}' sent sums of the shape {values.shape} and the type {values.dtype} "
                                f"instead of ({self.n_runs},) and {np.dtype(self.federation.precision)}: use the same "
                                "version of fcorun at the server and at all sites")  # fmt: skip
            split, name = self._sums[key]
            if not self._fits(values[np.isfinite(values)], name, shares[split]):
                raise UserError(f"site '{site}' sent {key}={values.tolist()}, which no rows have: see the log of that "
                                "site")  # fmt: skip

    def _fits(self, values: np.ndarray, name: str, share: float) -> bool:
        least, most = -np.inf, np.inf
        if share == 0:
            least = most = 0.0
        elif name in self._names:
            least, most = score_range(self.federation.problem.objective, name)
        elif CATALOGUE[name].bounded:  # a metric of personal models
            least, most = 0.0, 1.0
        error = self._rows.sum_errors.get("evaluate", 0.0) + _ROUNDING * share
        low, high = (bound * share if np.isfinite(bound) else bound for bound in (least, most))
        return bool(((values >= low - error) & (values <= high + error)).all())

    @property
    def _rows(self) -> SiteRows:
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        return rows

    def sum_shares(self, answered: tuple[str, ...]) -> dict[str, float]:
        """Return the share of the rows of these answers in the means over the rows of a split; 1 for all answers.

        Sites with personal models are all waited for.
        """
        shares = {}
        for split, by_answer in self._shares.items():
            is_complete = set(by_answer) <= set(answered)
            shares[split] = 1.0 if is_complete else sum(by_answer.get(name, 0.0) for name in answered)
        return shares

    @cached_property
    def _sums(self) -> dict[str, tuple[str, str]]:
        """The split, or ``_CLIENTS``, and the metric of each sum by name."""
        sums = {f"{split}_{name}": (split, name) for split in ("train", "val") for name in self._names
                if split in self._shares}  # fmt: skip
        return sums | {key: (split or _CLIENTS, name) for key, split, name in list_sums(self.federation)}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        n_classes = len(self.federation.data.classes)
        return score_names(self.federation.problem.objective, n_classes if n_classes > 2 else 1)

    @cached_property
    def _shares(self) -> dict[str, dict[str, float]]:
        """The share of the rows of each answer in the means over the rows of a split, by split, and of clients."""
        rows, validation = self._rows, self.federation.data.validation
        by_examples = self.federation.evaluation.client_weighting == "examples"
        weights = {"train": rows.sum_by_answer(rows.client_weights if by_examples else np.ones(len(rows.sizes)))}
        if isinstance(validation, SiteRows):
            weights["val"] = validation.sum_by_answer(validation.client_weights)
        weights[_CLIENTS] = rows.sum_by_answer(np.ones(len(rows.sizes)))
        shares = {}
        for split, of_answers in weights.items():
            total = sum(of_answers.values())
            shares[split] = {name: weight / total for name, weight in of_answers.items()}
        return shares


@dataclass
class RemoteLoop(RunLoop):
    """The loop of a batch of runs of one seed, on rows that stay at their sites."""

    def __post_init__(self):
        numbers = jax.tree.map(np.asarray, self.numbers)
        points = [jax.tree.map(lambda v, g=g: float(v[g]), numbers) for g in range(self.n_runs)]
        about = {"numbers": points, "seed": self.schedule.seed, "curvature": self.site_rows.curvature}
        self.site_rows.request("start", about=about)
        self.site_rows.absences.clear()
        programs = RemotePrograms(self.federation, self.n_runs)
        self._commit = jax.jit(programs.commit)
        self._output = jax.jit(programs.output)
        self._rounds_done = 0  # at the present evaluation
        self._sites_of_all: tuple[list[str], jax.Array] | None = None

    def take_snapshot(self, state: PyTree, rounds_done: int, work: np.ndarray) -> Snapshot:
        self._rounds_done = rounds_done
        return super().take_snapshot(state, rounds_done, work)

    @property
    def federation(self) -> Federation:
        """The federation, whose data have no rows."""
        return self.segments.federation

    @property
    def site_rows(self) -> SiteRows:
        """The description of the sites' training rows."""
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        return rows

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of all runs."""
        (seed,) = set(self.segments.seeds)
        return self.federation.schedule.with_seed(seed)

    @cached_property
    def exchanges(self) -> list["ExchangePrograms"]:
        """The exchanges of messages in a round, with their compiled programs."""
        return [ExchangePrograms(self, number) for number in range(len(self.federation.shapes.uploads))]

    @property
    def n_runs(self) -> int:
        """The number of runs, G."""
        return len(self.segments.seeds)

    @property
    def n_sent_runs(self) -> int:
        """The number of runs whose messages are sent: the first one where all runs have one upload."""
        return count_sent_runs(self.federation.algorithm, self.n_runs)

    def run_to_evaluation(
        self, state: PyTree, segment: Segment | None, work: np.ndarray, rounds_done: int
    ) -> tuple[PyTree, Segment | None, np.ndarray, int]:
        """Run rounds up to the next evaluation. Returns the runs, the next segment, the work and the rounds done."""
        assert segment is not None
        for number in range(rounds_done, rounds_done + segment.n_rounds):
            check_interrupted()
            if self.federation.algorithm.computes_round(number):
                state, round_work = self._run_round(state, number)
                work = work + round_work
        rounds_done += segment.n_rounds
        return state, self.next_segment(rounds_done), work, rounds_done

    def next_segment(self, rounds_done: int) -> Segment | None:
        """Return the rounds up to the next evaluation, whose minibatches the sites draw; None after the last round."""
        segments = self.segments
        n_rounds = min(segments.eval_every - rounds_done % segments.eval_every, segments.rounds - rounds_done)
        return Segment(n_rounds, None) if n_rounds > 0 else None  # type: ignore[arg-type]

    def _run_round(self, state: PyTree, number: int) -> tuple[PyTree, Any]:
        """Compute the round ``number``. Returns the runs, and the example gradients and proxes, (G, 2)."""
        cohort = self.schedule.draw_cohort(number)
        sites, weights = self._sites_of(cohort)
        drawn: Any = self._draws.draw(number)
        draws = RoundDraws(drawn.rows, drawn.keys, drawn.shared_uniforms, drawn.server_keys)
        exchanges = [
            SiteExchange(self, programs, number, sites, server_draws=drawn, state=state) for programs in self.exchanges
        ]
        # all that a star reads
        parts: Any = SimpleNamespace(exchanges=exchanges, weights=weights, total_weight=weights.sum(), draws=draws)
        outcome = self.federation.topology.run_round(parts, RoundState(state["server"], state["memory"], ()))
        state = self._commit(state, outcome.state.server, outcome.state.memory, np.int32(number))
        examples, _, proxes = np.moveaxis(np.asarray(outcome.server_work), 1, 0).astype(np.int64)
        return state, outcome.client_work + np.stack([examples, proxes], axis=1)

    @cached_property
    def _draws(self) -> DrawsAhead:
        """The draws of rounds that the server uses: no client's minibatches."""
        nobody = np.zeros(len(self.schedule.sizes), bool)
        return DrawsAhead(self.schedule, nobody, self.federation.needs_server_key)

    def _sites_of(self, cohort: np.ndarray) -> tuple[list[str], jax.Array]:
        """Return the names under which answers for a cohort (S,) come, in its order, and the weights of their clients.

        The weights are an array of JAX, because NumPy divides with other last bits than the pooled run, which XLA
        compiles. They are kept for the next round if all rounds have all clients.
        """
        if self._sites_of_all is not None:
            return self._sites_of_all
        names, weights = self.site_rows.answer_of_client, self.schedule.averaging_weights
        by_site: dict[str, float] = {}
        for m in cohort:
            by_site[names[m]] = by_site.get(names[m], 0.0) + float(weights[m])
        sites = list(by_site), jnp.asarray(list(by_site.values()), self.federation.precision)
        if self.federation.full_participation:
            self._sites_of_all = sites
        return sites

    @cached_property
    def _gap(self) -> RemoteGap:
        return RemoteGap(self.federation, self.numbers, self.n_runs)

    def evaluate(self, state: PyTree, only_compile: bool = False) -> Any:
        """Compute ``Federation.evaluate`` from the sites' sums, and the duality gap if that is a metric."""
        evaluated = super().evaluate(state, only_compile)
        if evaluated is None:
            return None
        metrics, solution, models = evaluated
        if self.federation.evaluation.gap:
            gap: jax.Array | np.ndarray = np.full(self.n_runs, np.nan)  # sums without a site's rows have another gap
            if self.site_rows.away is None or len(self.site_rows.absences.evaluated) == len(self.site_rows.sites):
                with suppress(AnswersMissing):
                    gap = self._gap.measure(solution, metrics["objective"], self._rounds_done)
            metrics |= {"gap": gap}
        if self.site_rows.away is not None:
            present = self.site_rows.absences.evaluated
            n_rows = sum(self.site_rows.rows_of_answer[site] for site in present)
            metrics |= {SITES_PRESENT: np.full(self.n_runs, len(present)), ROWS_PRESENT: np.full(self.n_runs, n_rows)}
        return metrics, solution, models

    def split_sums(self, state: PyTree) -> dict[str, dict[str, jax.Array]]:
        """Add up the sums of losses and scores over the rows of each split, which the sites return.

        Sites that have personal models add the sums of their metrics, as the split "personal".

        Without the sites that are away, means are those over the rows of the others. A run with a nan among the sums
        of a site has diverged. Raises UserError, which names the site, for sums that are none of its rows.
        """
        arrays = name_leaves(self._output(self.numbers, state["server"]))
        if self.federation.algorithm.has_personal_models:
            arrays = add_broadcast(arrays, self.exchanges[-1].broadcast(self.numbers, state["server"]))
        answers = self.site_rows.request_present("evaluate", self._rounds_done, arrays=arrays)
        self.site_rows.absences.evaluated = tuple(answers)
        sums: dict[str, dict[str, Any]] = {}
        for site in sorted(answers):
            arrays = answers[site].arrays
            self._sum_checks.check(site, arrays)
            if not all(np.isfinite(values).all() for values in arrays.values()):
                self.federation.nonfinite_clients.setdefault(max(self._rounds_done, 1), f"of site '{site}'")
            has_nan = np.any([np.isnan(values) for values in arrays.values()], axis=0)
            for name, values in arrays.items():
                split, _, score = name.partition("_")
                if (split, score) == ("train", "loss"):
                    values = np.where(has_nan, np.nan, values)
                of_split = sums.setdefault(split, {})
                of_split[score] = of_split.get(score, 0) + values
        for split, share in self._sum_checks.sum_shares(tuple(answers)).items():
            if split in sums and share < 1:
                sums[split] = {name: values / share for name, values in sums[split].items()}
        return jax.tree.map(lambda v: jnp.asarray(v, self.federation.precision), sums)

    @cached_property
    def _sum_checks(self) -> SumChecks:
        return SumChecks(self.federation, self.n_runs)


class ExchangePrograms:
    """The server's programs of an exchange."""

    def __init__(self, loop: RemoteLoop, number: int):
        programs = RemotePrograms(loop.federation, loop.n_runs, number)
        self.number = number
        self.broadcast = jax.jit(lambda *arguments: programs.broadcast(*arguments))
        self.send = jax.jit(lambda *arguments: programs.send_broadcast(*arguments))
        self.average = jax.jit(lambda *arguments: programs.average_answers(*arguments))
        self.receive = jax.jit(lambda *arguments: programs.receive(*arguments))


@dataclass(frozen=True)
class SiteExchange:
    """The part of an ``Exchange`` that a star reads, with the sites. Messages have a leading axis of runs.

    Attributes:
        number: the number of the round, counted from 0.
        sites: the names under which the answers for the cohort's clients come.
        server_draws: the draws that the server uses.
        state: the state of the runs before the round.
    """

    loop: RemoteLoop
    programs: ExchangePrograms
    number: int
    sites: list[str]
    server_draws: Any
    state: PyTree

    def send_broadcast(self, sender: PyTree, memory: PyTree, draws: RoundDraws) -> tuple[PyTree, PyTree]:
        """Compute what the clients of all sites receive from the server of each run that is sent."""
        loop = self.loop
        if loop.federation.channels.has_downlink:
            rows, _ = loop.federation.arrays
            broadcast, memory = self.programs.send(loop.numbers, sender, memory, rows, self.server_draws)
        else:
            broadcast = self.programs.broadcast(loop.numbers, sender)
        if loop.n_sent_runs < loop.n_runs:
            broadcast = jax.tree.map(lambda v: v[: loop.n_sent_runs], broadcast)
        return broadcast, memory

    def answer(self, broadcast: PyTree, clients: PyTree, draws: RoundDraws, shares: Any) -> tuple[PyTree, PyTree, Any]:
        """Send the broadcast to the sites, and return the mean of their answers, and their clients' work, (G, 2).

        Sites that are away have no share in the mean. Where all runs have one upload, the mean is the first
        run's.
        """
        loop, sites = self.loop, self.sites
        answers = loop.site_rows.request_present(
            "round",
            self.number + 1,
            arrays=name_leaves(broadcast),
            about={"round": self.number, "exchange": self.programs.number},
            of=sites,
        )
        present = [site for site in sites if site in answers]
        uploads, work = self._read(answers, present)
        if len(present) < len(sites):
            shares = shares[np.isin(sites, present)]
            shares = shares / shares.sum()
        if len(present) == 1 or not jax.tree.leaves(uploads):
            mean = jax.tree.map(lambda v: jnp.asarray(v[:, 0]), uploads)
        else:
            mean = self.programs.average(uploads, shares)
        if loop.n_sent_runs < loop.n_runs:
            work = np.broadcast_to(work, (loop.n_runs, 2))
        return mean, clients, work

    def _read(self, answers: Mapping[str, Any], sites: Sequence[str]) -> tuple[PyTree, np.ndarray]:
        """Return the sites' means, stacked along an axis after that of the sent runs, and the sum of their work."""
        loop = self.loop
        shape = loop.federation.shapes.uploads[self.programs.number]
        uploads, work = [], np.zeros((loop.n_sent_runs, 2), np.int64)
        for site in sites:
            arrays = dict(answers[site].arrays)
            try:
                if "work" not in arrays:
                    raise ValueError("no counts of gradients")
                of_site = arrays.pop("work")
                check_work(of_site, work.shape)
                arrays = expand_sparse(arrays, shape, loop.n_sent_runs)
                uploads.append(restore_leaves(arrays, shape, loop.n_sent_runs))
            except ValueError as error:
                problem = f"site '{site}' sent what is no answer to a round ({first_line(error)})"
                raise UserError(f"{problem}: use the same version of fcorun at the server and all sites") from error
            work += of_site
            if not all(np.isfinite(array).all() for array in arrays.values()):
                loop.federation.nonfinite_clients.setdefault(self.number + 1, f"of site '{site}'")
        return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *uploads), work

    def update(self, state: PyTree, mean: PyTree, memory: PyTree, draws: RoundDraws) -> tuple[PyTree, PyTree, Any]:
        """Update the server of each run from a mean."""
        loop = self.loop
        before = self.state | {"server": state, "memory": memory}
        rows, _ = loop.federation.arrays
        return self.programs.receive(loop.numbers, before, rows, self.server_draws, mean)
