"""A site's part of a batch of runs: the states of its clients, its programs, and its answers to the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import TRAIN
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.device_rows import client_row_table
from fcorun.engine.engine import Engine
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.remote.certificate import SCALE, CertificateSums
from fcorun.engine.remote.leaves import name_leaves, restore_leaves
from fcorun.engine.remote.personal_models import PERSONAL, SitePersonalModels, split_broadcast
from fcorun.engine.remote.programs import RemotePrograms, RowsByClient, count_sent_runs, number_patients
from fcorun.engine.schedule import DrawsAhead
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.problem.problem import Batch
from fcorun.sites.plan.messages.run_messages import Evaluate, RoundMessage
from fcorun.sites.site.request_checks import FewRowsRule
from fcorun.sites.transport.messages import NEW_RUN

Answer = Callable[..., Any]
Arrays = dict[str, np.ndarray]


def resolve_numbers(experiment: PreparedExperiment, numbers: Numbers) -> PreparedExperiment:
    """Return the experiment of a plan with the numbers that the server has resolved for its first run."""
    reg = experiment.reg
    if reg.relative_or_none is not None:
        reg = replace(reg, relative=None)  # type: ignore[call-arg]
    algo = replace(experiment.algo, **numbers["algo"])
    return experiment.with_resolved(algo=algo, reg=replace(reg, **numbers["reg"]))


@dataclass
class SiteBatch:
    """The runs of a batch at a site, which differ in numbers only.

    Attributes:
        engine: an engine whose data are the site's: its rows are ``SiteRows``.
        points: the numbers of each run.
        seed: the seed of all runs.
        rule: the rule on few rows, which each answer keeps.
        may_miss_rounds: whether the server may have gone on without the site, so that a later round is asked for.
        has_fold: whether the validation rows are those that a fold of a selection holds out, whose sums are differences
            of two answers.
        clients: the states of the site's clients, with leading axes G and clients.
        withholds: whether the last answer to a round withholds the upload of a run, because few rows make it up.
        next_exchange: the round and the exchange that the site has to be asked for next.
    """

    engine: Engine
    points: Sequence[Numbers]
    seed: int
    rule: FewRowsRule
    may_miss_rounds: bool = False
    has_fold: bool = False
    clients: PyTree = field(init=False)
    withholds: bool = field(init=False, default=False)
    next_exchange: tuple[int, int] = field(init=False)

    def __post_init__(self):
        self._schedule = self.federation.schedule.with_seed(self.seed)
        self._draws = DrawsAhead(self._schedule, self.rows.has_client)
        sent_points = self.points[: self.n_sent_runs]
        self._numbers = self.federation.stack_numbers(self.points)
        self._sent_numbers = self.federation.stack_numbers(sent_points)
        self.next_exchange = (self._next_round(0), 0)
        self.clients = self.engine.initial_state(sent_points, [self.seed] * self.n_sent_runs)["clients"]

    @property
    def federation(self) -> Federation:
        """The site's federation."""
        return self.engine.federation

    @property
    def rows(self) -> SiteRows:
        """The site's training rows."""
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        return rows

    @property
    def share(self) -> float:
        """The weight of the site's clients in the mean over all clients."""
        weights = self.federation.schedule.averaging_weights
        return float(weights[self.rows.has_client].sum() / weights.sum())

    @property
    def n_sent_runs(self) -> int:
        """The number of runs whose messages the site computes: the first one where all runs have one upload."""
        return count_sent_runs(self.federation.algorithm, len(self.points))

    @cached_property
    def _answer_programs(self) -> list[Answer]:
        """The programs of a round, one for each exchange. Rows, numbers and states of clients are their arguments."""
        n_exchanges = len(self.federation.shapes.uploads)
        programs = [RemotePrograms(self.federation, self.n_sent_runs, exchange) for exchange in range(n_exchanges)]
        return [jax.jit(lambda *arguments, p=p: p.answer(*arguments)) for p in programs]

    @cached_property
    def _solution_program(self) -> Answer:
        """The program of an evaluation."""
        programs = RemotePrograms(self.federation, len(self.points))
        return jax.jit(lambda *arguments: programs.solution_sums(*arguments))

    @cached_property
    def _held_out(self) -> RowsByClient | None:
        """The rows that the fold holds out, by the clients of all sites; None without a fold, or without rows here."""
        rows = self.federation.data.validation
        extra = self.federation.arrays[1]
        if not self.has_fold or rows is None or rows.client is None:
            return None
        n_clients = self.federation.data.n_clients
        known = np.flatnonzero(rows.client < n_clients)
        known = known[np.argsort(rows.client[known], kind="stable")]
        if not len(known):
            return None
        offsets = np.searchsorted(rows.client[known], np.arange(n_clients + 1))
        extra = extra | self._patients
        extras = {name: extra[f"{name}_val"] for name in ("weight", "offset", "patient") if f"{name}_val" in extra}
        of_client = jax.device_put(client_row_table(offsets, known))
        return RowsByClient(extra["x_val"], extra["y_val"], extras, of_client)

    def _next_round(self, start: int) -> int:
        """Return the first round from ``start`` on whose cohort asks a client of the site; the end where none does."""
        schedule = self._schedule
        algorithm = self.federation.algorithm
        for number in range(start, self.engine.rounds):
            if algorithm.computes_round(number) and self.rows.has_client[schedule.draw_cohort(number)].any():
                return number
        return self.engine.rounds

    def check_order(self, number: int, exchange: int) -> None:
        """Raise UserError unless the exchange of the round ``number`` is the next one of this site."""
        missed = self.may_miss_rounds and number > self.next_exchange[0] and self._next_round(number) == number
        if (number, exchange) != self.next_exchange and not missed:
            raise UserError(f"the server asked for round {number + 1}, and the next one of this site is "
                            f"{self.next_exchange[0] + 1}: the site's folder or the server's is an older copy; "
                            f"{NEW_RUN}")  # fmt: skip

    def answer_round(self, number: int, exchange: int, received: Arrays) -> tuple[Arrays, np.ndarray]:
        """Compute the site's clients in an exchange of the round ``number``.

        Returns:
            The leaves of the mean of the clients' messages, and the numbers of example gradients and of proxes, (G, 2),
            of the runs that are sent.

        Raises ValueError for what no server of this plan sends, and FewRowsError where few rows outweigh all others.
        """
        federation = self.federation
        self.check_order(number, exchange)
        broadcast = restore_leaves(received, federation.shapes.broadcasts[exchange], self.n_sent_runs)
        draws = self._draws.draw(number)
        rows, _ = federation.arrays
        arguments = (
            self._sent_numbers,
            self.clients,
            rows,
            draws,
            broadcast,
            self._held_out,
            self._patients.get("patient"),
        )
        mean, clients, (work, shares) = self._answer_programs[exchange](*arguments)
        leaves, self.withholds = name_leaves(mean), False
        few = self.rule.find(shares[0], draws.weights / draws.weights.sum())
        if len(shares) > 1:  # those among the rows that a fold holds out
            few = few | self.rule.find(shares[1])
        if few.any():
            if number == 0 or not federation.algorithm.backtracks:
                raise self.rule.refuse(RoundMessage.name)
            self.withholds = True
            for name, values in leaves.items():
                withheld = np.where(few.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
                leaves[name] = withheld.astype(values.dtype)
        self.clients = clients
        is_last = exchange + 1 == len(federation.shapes.uploads)
        self.next_exchange = (self._next_round(number + 1), 0) if is_last else (number, exchange + 1)
        examples, passes, proxes = np.asarray(work, np.int64).transpose(2, 0, 1)
        gradients = examples.sum(axis=1) + passes @ self._schedule.sizes[draws.cohort]
        return leaves, np.stack([gradients, proxes.sum(axis=1)], axis=1)

    def sum_scores(self, received: Arrays) -> dict[str, dict[str, np.ndarray]]:
        """Return the sums of losses and scores of a solution of each run over the rows of each split here, (G,).

        Where clients have personal models, "personal" has the sums of their metrics.
        """
        of_solution, of_broadcast = split_broadcast(received)
        solution = restore_leaves(of_solution, self._solution_shapes, len(self.points))
        rows, extra = self.federation.arrays
        assert rows is not None
        extra = extra | self._patients
        arguments = (self._numbers, dict(solution), rows.x, rows.y, extra, self._client_of_row)
        sums, shares = self._solution_program(*arguments)
        for split, of_split in shares.items():
            rule = self.rule if split == TRAIN else self.rule.of_losses
            rule.check(Evaluate.name, of_split, split=split)
        if self.federation.algorithm.has_personal_models:
            broadcast = self._read_broadcast(of_broadcast)
            if len(self.rows):
                arguments = (self._numbers, broadcast, self.clients, rows.x, rows.y, extra)
                sums[PERSONAL], shares = self._personal_program(*arguments)
                for split, of_split in shares.items():
                    weights = self._personal_models.weights[split]
                    self.rule.of_losses.check(Evaluate.name, of_split, weights, split=split)
        elif of_broadcast:
            raise ValueError("a broadcast that the algorithm does not use")
        return jax.tree.map(np.asarray, sums)

    @cached_property
    def _client_of_row(self) -> dict[str, jax.Array]:
        """The client of each row of a split that is evaluated; those without training rows are one after all others."""
        data = self.federation.data
        clients = {"train": self.rows.known_client}
        if data.validation is not None:
            clients["val"] = data.validation.known_client
        return {
            split: jax.device_put(np.minimum(client, data.n_clients).astype(np.int32))
            for split, client in clients.items()
        }

    @cached_property
    def _patients(self) -> dict[str, jax.Array]:
        """The number of the patient of each training row, "patient", and validation row, "patient_val", if named."""
        patients = {}
        for name, rows in (("patient", self.rows), ("patient_val", self.federation.data.validation)):
            if rows is not None and rows.group is not None:
                patients[name] = jax.device_put(number_patients(rows.group))
        return patients

    def solution(self, evaluated: Arrays, run: int) -> Arrays:
        """Return the parameters of a run's shared model in the request that ``evaluated`` it."""
        leaves = restore_leaves(split_broadcast(evaluated)[0], self._solution_shapes, len(self.points))
        return {name: values[run] for name, values in dict(leaves).items()}

    def personal_models(self, evaluated: Arrays) -> list[Arrays]:
        """Return the personal models of each run, after the request that ``evaluated`` them; none without such models.

        Those of a run are the models of the site's m clients by parameter, (m, ...), and ``client``, the names of the
        clients.
        """
        if not self.federation.algorithm.has_personal_models:
            return []
        names = np.array(self.federation.data.clients, dtype=str)[self.rows.has_client]
        if not len(names):
            shapes = self.federation.problem.shapes
            none = {name: np.zeros((0, *shape), self.federation.precision) for name, shape in shapes.items()}
            return [none | {"client": names} for _ in self.points]
        broadcast = self._read_broadcast(split_broadcast(evaluated)[1])
        models = jax.tree.map(np.asarray, self._personal_models.compute_models(self._numbers, broadcast, self.clients))
        return [
            {name: values[g] for name, values in models.items()} | {"client": names} for g in range(len(self.points))
        ]

    def _read_broadcast(self, received: Arrays) -> PyTree:
        """Return what clients receive from the server of each run. Raises ValueError for other arrays."""
        return restore_leaves(received, self.federation.shapes.broadcasts[-1], len(self.points))

    @cached_property
    def _personal_models(self) -> SitePersonalModels:
        return SitePersonalModels(self.federation)

    @cached_property
    def _personal_program(self) -> Any:
        return jax.jit(lambda *arguments: self._personal_models.sum_metrics(*arguments))

    def sum_residuals(self, received: Arrays, with_gradient: bool) -> Arrays:
        """Return the sums of residuals of a certificate at a model of each run, with a leading axis G."""
        models = restore_leaves(received, self._solution_shapes, len(self.points))
        return self._certificate_sums.residuals(models, with_gradient)

    def sum_conjugates(self, received: Arrays) -> Arrays:
        """Return the sums of conjugates of a certificate, (G,), at a model of each run and a scale, (G,)."""
        leaves = dict(received)
        shape = {SCALE: jax.ShapeDtypeStruct((), self.federation.precision)}
        (scale,) = restore_leaves({"0": leaves.pop(SCALE)}, shape, len(self.points)).values()
        models = restore_leaves(leaves, self._solution_shapes, len(self.points))
        return self._certificate_sums.conjugates(models, scale)

    @cached_property
    def _certificate_sums(self) -> CertificateSums:
        rows, extra = self.federation.arrays
        assert rows is not None
        client = jax.device_put(self.rows.known_client.astype(np.int32))
        return CertificateSums(
            self.federation.problem,
            Batch(rows.x, rows.y, extra["weight"], offset=extra.get("offset"), client=client),
            self.federation.data.n_clients,
            self.rule.check,
            self._patients.get("patient"),
        )

    @cached_property
    def _solution_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        zeros = self.federation.problem.zeros(self.federation.precision)
        return {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in zeros.items()}
