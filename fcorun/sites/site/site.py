"""A site: what it answers to the server, from the rows of its owner, as the plan and its policy say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import SITE_SELECTION_FOLDER
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import sum_in_order
from fcorun.data.tables.columns import SplineColumn
from fcorun.data.tables.encoding import Encoding
from fcorun.engine.remote.certificate import CertificateSums
from fcorun.engine.remote.leaves import name_leaves
from fcorun.engine.remote.programs import number_patients
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem.solver import gather_site_rows
from fcorun.sites.plan.messages.fold_messages import Subset
from fcorun.sites.plan.messages.message_kind import Stage
from fcorun.sites.plan.messages.run_messages import FIRST_START, Evaluate, Numbers
from fcorun.sites.plan.messages.score_messages import Scores
from fcorun.sites.plan.messages.table_messages import Load
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OwnTableError, SiteOptions
from fcorun.sites.site.interval_sums import IntervalSums
from fcorun.sites.site.request_checks import FewRowsRule, RequestCounts, check_last_model, check_model
from fcorun.sites.site.score_sums import ScoreSums, threshold_of
from fcorun.sites.site.site_batch import SiteBatch, resolve_numbers
from fcorun.sites.site.site_folds import SiteFolds
from fcorun.sites.site.site_results import FoldPredictions, add_selection, check_result, read_result, write_result
from fcorun.sites.tables.fold_encoding import place_rows
from fcorun.sites.tables.plan_in_ledger import PlanInLedger, Settled
from fcorun.sites.tables.planned_table import check_targets_of_site, read_planned_table
from fcorun.sites.tables.table_agreement import (
    Agreement,
    check_agreement,
    check_curves_together,
    check_gaps,
    encode_table,
    list_curve_parts,
    load_site_data,
    sum_features,
)
from fcorun.sites.tables.table_description import describe_table
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.messages import NEW_RUN, Message

_COUNTS = "counts"  # of requests
_DAMAGES = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, EOFError, BadZipFile)
_CLIENTS = "clients/"  # begins the names of the states of clients
_NOT_LOADED = f"the server asked for a run before all sites agreed on their tables: {NEW_RUN}"


@dataclass
class Site:
    """A site of a study.

    Attributes:
        plan: the plan, which the owner has accepted.
        options: the owner's options of the table.
        policy: the owner's policy.
        result_folder: the folder in which the site keeps the result of a run; None: the result is not kept.
        points: the numbers of the runs that the server has started.
        personal: the personal models of the last result, as ``SiteBatch.personal_models`` returns those of a run.
        in_ledger: the plan in the owner's ledger, which says what fills gaps here; None: what is agreed.
    """

    plan: Plan
    options: SiteOptions
    policy: Policy = field(default_factory=Policy)
    result_folder: Path | None = None
    points: list[dict] = field(default_factory=list)
    personal: dict[str, np.ndarray] | None = None
    in_ledger: PlanInLedger | None = None

    def __post_init__(self):
        self.policy.check_plan(self.plan)
        self._forget_state()

    def _forget_state(self) -> None:
        """Return to the state before the first request."""
        self.counts = RequestCounts(self.plan)
        self.requests: dict[str, Message] = {}  # the last ones, by name, which later ones need
        self._own_data: FederatedData | None = None
        self._data: FederatedData | None = None
        self._folds: SiteFolds | None = None
        self._batch: SiteBatch | None = None
        self._certificate_sums: CertificateSums | None = None
        self._interval_sums: IntervalSums | None = None
        self._score_sums: ScoreSums | None = None
        self._scored: Message | None = None  # the request of these sums
        self._settled: Settled | None = None

    @cached_property
    def table(self) -> SiteTable:
        """The site's table. Raises UserError where it does not fit the plan or the policy."""
        return read_planned_table(self.plan, self.options, self.policy)

    def read_table(self) -> None:
        """Read the table. Raises UserError with the whole sentence for its owner where it does not fit the plan."""
        _ = self.table

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises UserError if the plan or the policy does not allow one."""
        assert not self.plan.is_masked, "MaskedSite answers for a plan with secure sums"
        return self.compute_answer(request)

    def compute_answer(self, request: Message) -> Message:
        """Return the answer to a request, before masks. Raises UserError like ``answer``."""
        self.counts.count(request)
        kind = self.plan.kinds[request.name]
        with use_precision(self.plan.experiment.settings.precision):
            try:
                if not set(request.about) <= kind.keys:
                    raise ValueError("values of another request")
                answer = kind.answer(self, request)
            except OwnTableError as error:  # the whole sentence is for the owner
                raise UserError(error.public) from error
            except _DAMAGES as error:
                reason = f"the server's request '{request.name}' does not fit the plan ({type(error).__name__})"
                raise UserError(f"{reason}: use the same version of fcorun at the server and all sites") from error
        if self.in_ledger is not None:
            self.in_ledger.enter(self._settled)
        if kind.keeps(request):
            self.requests[request.name] = request
        return answer

    # -- the requests that later ones need

    def list_requests(self, *names: str) -> list[Message]:
        """Return the last request of each name that the site has answered and kept."""
        return [self.requests[name] for name in names if name in self.requests]

    def forget_requests(self, first_stage: Stage) -> None:
        """Forget the requests of a stage and of later ones."""
        for name in list(self.requests):
            if name != FIRST_START and self.plan.kinds[name].stage >= first_stage:
                del self.requests[name]

    # -- the table

    @cached_property
    def description(self) -> Message:
        """The description of the table, as the server and all other sites know it."""
        return describe_table(self.table)

    def sum_features(self, request: Message) -> np.ndarray:
        """Return the sums of the features by client, (clients, d), as the agreement of a request encodes them.

        Secure sums are one row, of all clients of the site.
        """
        agreement = Agreement.from_message(request)
        encoded = encode_table(self.table, agreement, self.own_encoding(agreement))
        sums = sum_features(encoded, request.arrays.get("around"))
        return sum_in_order(sums)[None] if self.plan.is_masked else sums

    def own_encoding(self, agreement: Agreement) -> Encoding:
        """Return the agreed encoding with the fills of this site: gaps keep those of earlier plans.

        Raises UserError if the agreement does not fit the table, for a fill that this plan does not have, and for knots
        that tell few rows together with those of earlier plans.
        """
        agreed = {}
        for column in agreement.encoding.columns:
            gap_counts = self.table.gap_counts.get(column.name)
            if column.fill is not None and gap_counts is not None and gap_counts.any():
                agreed[column.name] = column.fill
        curves = [column for column in agreement.encoding.columns if isinstance(column, SplineColumn)]
        knots = {column.name: list(column.knots) for column in curves}
        if self.in_ledger is None or not (agreed or knots):
            return agreement.encoding
        check_agreement(self.table, agreement)
        if self._settled is None or self._settled[:2] != (agreed, knots):
            self.in_ledger.enter()
            earlier = self.in_ledger.list_knots() if curves else {}
            for column in curves:
                check_curves_together(self.table, column, earlier.get(column.name, set()))
            self._settled = Settled(agreed, knots, self.in_ledger.find_fills(agreed, knots))
        columns = []
        for column in agreement.encoding.columns:
            fill = self._settled.fills.get(column.name, column.fill)
            if column.has_levels and fill is not None and fill not in column.levels:
                raise UserError(f"an earlier plan filled gaps of '{column.name}' at this site by a level that "
                                f"this plan does not have: add '{column.name}' to data.ignore of the plan")  # fmt: skip
            columns.append(replace(column, fill=fill))
            check_gaps(self.table, columns[-1])
        return Encoding(tuple(columns))

    def load(self, request: Message) -> None:
        """Load the rows as all sites agreed."""
        agreement = Agreement.from_message(request)
        encoding = self.own_encoding(agreement)
        encoded = encode_table(self.table, agreement, encoding)
        site_data = load_site_data(encoded, agreement)
        in_hessian = self.table.count_in_hessian(self.table.masks[0])
        self.policy.check_rows(self.plan, *in_hessian, site_data.train.x.shape[1])
        curve_parts = list_curve_parts(self.table, encoding)
        self.policy.check_rare_features(self.plan, site_data.train, site_data.features, curve_parts)
        data = place_rows(site_data, list(agreement.clients), agreement.n_rows, agreement.weights)
        check_targets_of_site(self.plan.experiment, encoded.y)
        build.check_data(self.plan.experiment, data)
        self._take_rows(site_data, data)
        self._folds = None

    def _take_rows(self, own_data: FederatedData, data: FederatedData) -> None:
        """Compute from other rows from now on; sums over the rows before are forgotten."""
        self._own_data = own_data
        self._data = data
        self._batch = self._certificate_sums = self._interval_sums = self._score_sums = None

    @property
    def own_data(self) -> FederatedData:
        """The site's rows as all sites agreed on them, by themselves."""
        if self._own_data is None:
            raise UserError(_NOT_LOADED)
        return self._own_data

    @property
    def data(self) -> FederatedData:
        """The site's rows among the clients of all sites."""
        if self._data is None:
            raise UserError(_NOT_LOADED)
        return self._data

    @property
    def experiment(self) -> PreparedExperiment:
        """The experiment of the plan, once the rows are loaded."""
        _ = self.data
        return self.plan.experiment

    # -- the subsets of a selection

    @property
    def folds(self) -> SiteFolds:
        """The folds of a selection."""
        if self._folds is None:
            load = self.requests[Load.name]
            agreement = Agreement.from_message(load)
            encoding = self.own_encoding(agreement)
            self._folds = SiteFolds.draw(
                self.plan,
                self.policy,
                self.table,
                self.own_data,
                data=self.data,
                agreement=agreement,
                encoding=encoding,
            )
        return self._folds

    def begin_subset(self, request: Message) -> None:
        """Take the rows of a subset, and keep the predictions of the runs on the subset before."""
        last = self.requests.get(Subset.name)
        evaluated = self.requests.get(Evaluate.name)
        if self._fold_predictions is not None:
            self._fold_predictions.begin_subset(request.about["subset"])
            if last is not None and evaluated is not None:
                self._fold_predictions.keep(last.about["subset"], self.own_data, self.batch, evaluated)
        self._take_rows(*self.folds.take(request))
        self.forget_requests(Stage.BOUNDS)

    @property
    def _fold_predictions(self) -> FoldPredictions | None:
        """The out-of-fold predictions; None where the site keeps none."""
        if self.plan.select is None or self.result_folder is None:
            return None
        return FoldPredictions(self.result_folder / SITE_SELECTION_FOLDER, self.plan)

    # -- runs

    def start(self, numbers: list[Numbers], curvature: dict[str, Any]) -> None:
        """Begin the runs of a batch, with the numbers and the bounds on curvatures that the server has resolved."""
        experiment = self.experiment
        data = self.data
        select = self.plan.select
        if curvature:
            data = replace(data, train=replace(data.train, curvature=curvature))  # type: ignore[type-var]
        self.points = numbers
        self._batch = SiteBatch(
            build.build_engine(resolve_numbers(experiment, numbers[0]), data),
            numbers,
            experiment.settings.seed,
            self.few_rows_rule,
            may_miss_rounds=self.plan.shared_options.away_rule is not None,
            has_fold=select is not None and self.counts.subset in select.folds_by_name,
        )

    @property
    def few_rows_rule(self) -> FewRowsRule:
        """The rule on few rows, which sums at a model keep."""
        has_curvature = getattr(self.plan.experiment.objective, "has_hessian", True)
        return FewRowsRule(self.policy.min_cell, has_curvature, by_client=self.plan.tells_uploads)

    @property
    def batch(self) -> SiteBatch:
        """The runs that have begun."""
        if self._batch is None:
            raise UserError(f"the server asked for a round before the start of the run: {NEW_RUN}")
        return self._batch

    @property
    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of a model by name."""
        data = self.data
        return self.experiment.objective.shapes(data.features.shape or data.train.x.shape[1:], len(data.classes))

    @property
    def certificate_sums(self) -> CertificateSums:
        """The sums of certificates over the present rows, at models outside of runs. Call under enable_x64."""
        if self._certificate_sums is None:
            batch = gather_site_rows(self.data, self.experiment.settings.client_weighting)
            problem = build.build_problem(self.experiment, self.data)  # whose psi is not used
            n_clients = self.data.n_clients
            rows = self.data.train
            self._certificate_sums = CertificateSums(
                problem, batch, n_clients, self.few_rows_rule.check, number_patients(rows.group)
            )
        return self._certificate_sums

    @property
    def interval_sums(self) -> IntervalSums:
        """The sums for intervals over the present rows. Call under enable_x64."""
        if self._interval_sums is None:
            self._interval_sums = IntervalSums.of_site(
                self.plan, self.policy, self.experiment, self.data, table=self.table
            )
        return self._interval_sums

    def score_sums(self, request: Message) -> ScoreSums:
        """Return the sums at the model of a request, which was evaluated last. Raises FewRowsError."""
        if self._score_sums is None or self._scored is not request:
            personal = self._last_personal_models()
            sums = ScoreSums.of_request(request, self.plan, self.policy, self.own_data, personal)
            sums.check_few_rows(request.name, self.few_rows_rule.of_losses)
            self._score_sums = sums
            self._scored = request
        return self._score_sums

    def _last_personal_models(self) -> dict[str, np.ndarray] | None:
        """Return the personal models of the first run that was evaluated last; None: the plan trains none."""
        return next(iter(self.batch.personal_models(self.requests[Evaluate.name].arrays)), None)

    def check_last_model(self, model: Mapping[str, np.ndarray]) -> None:
        """Raise an error unless a model is the one that was evaluated last."""
        check_model(model, self.model_shapes)
        check_last_model(model, self.requests[Evaluate.name].arrays)

    def receive_result(self, request: Message) -> None:
        """Keep the result of the run as a record in the site's folder, with the personal models of its clients."""
        contents, model = read_result(request.arrays)
        self.check_last_model(model)
        threshold = threshold_of(self.requests.get(Scores.name), self.plan)
        check_result(contents, self.own_data, threshold)
        self.personal = self._last_personal_models()
        if self.result_folder is not None:
            config = self.plan.config_of(self.points[0])
            config = {**config, "data": {**config["data"], **self.options.for_predictions()}}
            write_result(
                self.result_folder,
                add_selection(contents, self.plan, self.points[0]),
                config,
                self.plan.experiment,
                self.own_data,
                model=model,
                personal=self.personal,
                threshold=threshold,
            )
        if self._fold_predictions is not None:
            self._fold_predictions.write(self.folds, self.points[0], self.requests[FIRST_START])

    def end_runs(self) -> None:
        """End the runs, after which others may begin."""
        self._batch = None
        self.requests.pop(FIRST_START, None)
        self.forget_requests(Stage.FOLDS)

    # -- what a restart needs

    def save_state(self) -> dict[str, np.ndarray]:
        """Return the state of the site as arrays: the requests that loaded the rows and started the runs, and the
        states of the clients.
        """
        state = {}
        for name, request in self.requests.items():
            state[name] = np.frombuffer(request.to_bytes(), np.uint8)
        if self._batch is not None:
            state |= {f"{_CLIENTS}{name}": leaf for name, leaf in name_leaves(self._batch.clients).items()}
            state["next_exchange"] = np.array(self._batch.next_exchange)
        counts = json.dumps(self.counts.counts).encode()
        return state | {_COUNTS: np.frombuffer(counts, np.uint8)}

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the state by one that ``save_state`` returned; no arrays stand for the state before any request."""
        self._forget_state()
        if _COUNTS in arrays:
            self.counts.counts.update(json.loads(arrays[_COUNTS].tobytes()))
        if FIRST_START in arrays:
            self.requests[FIRST_START] = _read_request(arrays[FIRST_START])
        with use_precision(self.plan.experiment.settings.precision):
            for name, kind in self.plan.kinds.items():
                if name in arrays:
                    request = _read_request(arrays[name])
                    kind.resume(self, request)
                    self.requests[name] = request
            if self._batch is not None:
                leaves, structure = jax.tree.flatten(self._batch.clients)
                stored = [arrays[f"{_CLIENTS}{number}"] for number in range(len(leaves))]
                self._batch.clients = jax.tree.unflatten(structure, stored)
                number, exchange = arrays["next_exchange"].tolist()
                self._batch.next_exchange = number, exchange


def _read_request(content: np.ndarray) -> Message:
    """Return a request that the site has kept."""
    return Message.from_bytes(content.tobytes(), "the site's own folder")
