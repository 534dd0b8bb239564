"""A site: what it answers to the server, from the rows of its owner, as the plan and its policy say."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.column_statistics import sum_in_order
from fcorun.engine.remote.leaves import name_leaves
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_intervals import INTERVAL_LIMITS
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.table_options import OwnTableError, SiteOptions
from fcorun.sites.site.certificates import SiteCertificates
from fcorun.sites.site.few_rows import FewRowsRule
from fcorun.sites.site.fold_predictions import SELECTION_FOLDER, FoldPredictions
from fcorun.sites.site.interval_sums import IntervalSums, count_gaps
from fcorun.sites.site.request_checks import (
    RequestCounts,
    check_certified_models,
    check_clients,
    check_keys,
    check_last_model,
    check_model,
    check_numbers,
    check_one_agreement,
)
from fcorun.sites.site.requested_scores import score_sums_of, threshold_of
from fcorun.sites.site.rounding import bound_curvature
from fcorun.sites.site.score_sums import ScoreSums
from fcorun.sites.site.shared_programs import SharedPrograms
from fcorun.sites.site.site_batch import SiteBatch, pack_uploads, resolve_numbers
from fcorun.sites.site.site_folds import SiteFolds
from fcorun.sites.site.site_results import check_result, name_client_column, read_result, write_result
from fcorun.sites.tables.fold_counts import place_rows
from fcorun.sites.tables.planned_table import check_targets_of_site, read_planned_table
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_data import encode_table, load_site_data, sum_features
from fcorun.sites.tables.table_description import Description, describe_table
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.messages import WITHHELD, Message

_COUNTS = "counts"  # of requests
# the last ones, which later ones need
_KEPT_REQUESTS = ("sums", "load", "fold_sums", "subset", "start", "evaluate", "scores", "residuals")
_DAMAGES = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, EOFError, BadZipFile)
_FIRST_START = "first start"  # the request that began the first runs, whose values those of a selection repeat
_CLIENTS = "clients/"  # begins the names of the states of clients


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
        programs: the programs that the site has compiled, which sites of one process share in a trial.
    """

    plan: Plan
    options: SiteOptions
    policy: Policy = field(default_factory=Policy)
    result_folder: Path | None = None
    points: list[dict] = field(default_factory=list)
    personal: dict[str, np.ndarray] | None = None
    programs: SharedPrograms = field(default_factory=SharedPrograms, repr=False)
    _own_data: FederatedData | None = None
    _data: FederatedData | None = None
    _experiment: PreparedExperiment | None = None
    _batch: SiteBatch | None = None
    _certificates: SiteCertificates | None = None
    _interval_sums: IntervalSums | None = None
    _score_sums: ScoreSums | None = None
    _requests: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self):
        self.policy.check_plan(self.plan)
        self._counts = RequestCounts(self.plan)
        self._folds: SiteFolds | None = None

    @cached_property
    def table(self) -> SiteTable:
        """The site's table. Raises UserError where it does not fit the plan or the policy."""
        return read_planned_table(self.plan, self.options, self.policy)

    def read_table(self) -> None:
        """Read the table. Raises UserError with the whole sentence for its owner where it does not fit the plan."""
        _ = self.table

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises UserError if the plan or the policy does not allow one."""
        assert self.plan.secure is None, "MaskedSite answers for a plan with secure sums"
        return pack_uploads(self.compute_answer(request), self.plan.experiment)

    def compute_answer(self, request: Message) -> Message:
        """Return the answer to a request, before masks. Raises UserError like ``answer``."""
        answers: dict[str, Callable[[Message], Message]] = {
            "describe": self._describe,
            "sums": self._sum_features,
            "load": self._load,
            "folds": lambda request: self.folds.describe(),
            "fold_values": lambda request: self.folds.count_values(request),
            "fold_sums": lambda request: self.folds.sum_features(request),
            "subset": self._begin_subset,
            "curvature": lambda _: bound_curvature(self._loaded()[0], self.own_data),
            "start": self._start,
            "round": self._compute_round,
            "evaluate": self._evaluate,
            "residuals": self._sum_residuals,
            "conjugates": self._sum_conjugates,
            "score_counts": self._sum_scores,
            "scores": self._sum_scores,
            "calibration": self._sum_calibration,
            **dict.fromkeys(INTERVAL_LIMITS, self._sum_for_intervals),
            "result": self._receive_result,
            "end": self._end,
        }
        allowed = {quantity.message for quantity in self.plan.quantities} | {"load", "start", "result", "end"}
        if self.plan.select is not None:
            allowed.add("subset")
        if request.name not in answers or request.name not in allowed:
            raise UserError(f"the server asked for '{request.name}', which the plan does not list")
        self._counts.count(request)
        with use_precision(self.plan.experiment.settings.precision):
            try:
                check_keys(request)
                check_one_agreement(request, self._requests)
                answer = answers[request.name](request)
            except OwnTableError as error:  # the whole sentence is for the owner
                raise UserError(error.public) from error
            except _DAMAGES as error:
                reason = f"the server's request '{request.name}' does not fit the plan ({type(error).__name__})"
                raise UserError(f"{reason}: use the same version of fcorun at the server and all sites") from error
        is_loss_request = request.name == "residuals" and not request.about["gradient"]
        if request.name in _KEPT_REQUESTS and not is_loss_request:
            self._requests[request.name] = request
        if request.name == "start":
            self._requests.setdefault(_FIRST_START, request)
        return answer

    @property
    def share(self) -> float:
        """The weight of the site's clients in the mean over all clients."""
        return self._started().share

    @property
    def own_data(self) -> FederatedData:
        """The site's rows as all sites agreed on them, by themselves."""
        self._loaded()
        assert self._own_data is not None
        return self._own_data

    @property
    def data(self) -> FederatedData:
        """The site's rows among the clients of all sites."""
        return self._loaded()[1]

    # -- the table

    @cached_property
    def _description(self) -> Message:
        return describe_table(self.table)

    def _describe(self, request: Message) -> Message:
        """Describe the table, for a server that has the same plan."""
        if request.about["plan"] != self.plan.digest:
            raise UserError(f"the server computes the plan {str(request.about['plan'])[:16]}.., and this site has "
                            f"accepted {self.plan.digest[:16]}..: send the owner that plan, to accept it")  # fmt: skip
        return self._description

    def _sum_features(self, request: Message) -> Message:
        encoded = encode_table(self.table, Agreement.from_message(request))
        sums = sum_features(encoded, request.arrays.get("around"))
        if self.plan.secure is None:
            return sums
        return Message("sums", arrays={"sums": sum_in_order(sums.arrays["sums"])[None]})

    def _load(self, request: Message) -> Message:
        """Load the rows as all sites agreed.

        The request names all clients, those with training rows first, and has their "all_rows" and "all_weights" in
        the three splits, (clients, 3).
        """
        agreement = Agreement.from_message(request)
        encoded = encode_table(self.table, agreement)
        site_data = load_site_data(encoded, agreement)
        self.policy.check_rows(self.plan, site_data.train.sizes.tolist(), site_data.train.x.shape[1])
        self.policy.check_rare_features(self.plan, site_data.train, site_data.features)
        description = Description.from_message(self._description, "this site", self.plan.shared_options)
        names = check_clients(request, description)
        self._own_data, self._certificates, self._interval_sums, self._folds = site_data, None, None, None
        self._data = place_rows(site_data, names, request.arrays["all_rows"], request.arrays["all_weights"])
        self._experiment = self.plan.experiment
        check_targets_of_site(self._experiment, encoded.y)
        build.check_data(self._experiment, self._data)
        return Message("load")

    # -- the subsets of a selection

    @property
    def folds(self) -> SiteFolds:
        """The folds of a selection."""
        if self._folds is None:
            rows, load = (self.own_data, self.data), self._requests["load"]
            self._folds = SiteFolds.draw(self.plan, self.policy, self.table, *rows, load)
        return self._folds

    def _begin_subset(self, request: Message) -> Message:
        """Begin the runs on a subset of the rows."""
        last, evaluated = self._requests.get("subset"), self._requests.get("evaluate")
        if self._fold_predictions is not None:
            self._fold_predictions.begin_subset(request.about["subset"])
            if last is not None and evaluated is not None:
                self._fold_predictions.keep(last.about["subset"], self.own_data, self._started(), evaluated)
        self._own_data, self._data = self.folds.take(request)
        self._batch = self._certificates = self._interval_sums = None
        for name in ("start", "evaluate", "scores", "residuals"):
            self._requests.pop(name, None)
        return Message("subset")

    @property
    def _fold_predictions(self) -> FoldPredictions | None:
        """The out-of-fold predictions; None where the site keeps none."""
        if self.plan.select is None or self.result_folder is None:
            return None
        return FoldPredictions(self.result_folder / SELECTION_FOLDER, self.plan)

    # -- runs

    def _start(self, request: Message) -> Message:
        """Begin the runs of a batch, with the numbers that the server has resolved."""
        experiment, data = self._loaded()
        numbers = check_numbers(request, self.plan, self._counts.subset, self._requests.get(_FIRST_START))
        curvature = request.about["curvature"]
        if curvature:
            data = replace(data, train=replace(data.train, curvature=curvature))  # type: ignore[type-var]
        self.points = numbers
        engine = build.build_engine(resolve_numbers(experiment, numbers[0]), data)
        may_miss_rounds = self.plan.shared_options.away_rule is not None
        seed = self.plan.experiment.settings.seed
        select, subset = self.plan.select, self._counts.subset
        self._batch = SiteBatch(
            engine,
            numbers,
            seed,
            self._few_rows_rule,
            shared_programs=self.programs,
            may_miss_rounds=may_miss_rounds,
            has_fold=select is not None and subset in select.folds_by_name,
        )
        return Message("start")

    @property
    def _few_rows_rule(self) -> FewRowsRule:
        return FewRowsRule(self.policy.min_cell, getattr(self.plan.experiment.objective, "has_hessian", True))

    def _compute_round(self, request: Message) -> Message:
        number, exchange = int(request.about["round"]), int(request.about["exchange"])
        arrays, work = self._started().answer_round(number, exchange, request.arrays)
        for name in ("evaluate", "scores"):  # of models before the round
            self._requests.pop(name, None)
        about = {}
        if self._started().withholds:
            self._counts.count_withheld()
            about = {WITHHELD: ""}
        return Message("round", about, arrays | {"work": work})

    def _evaluate(self, request: Message) -> Message:
        sums = self._started().sum_scores(request.arrays)
        arrays = {}
        for split, of_split in sums.items():
            for name, values in of_split.items():
                arrays[f"{split}_{name}"] = values
        return Message("evaluate", {}, arrays)

    def _sum_residuals(self, request: Message) -> Message:
        check_certified_models(request, self.plan, self._counts.subset, has_started="start" in self._requests)
        return self._sums_of_certificates().sum_residuals(request, self._requests.get("residuals"))

    def _sum_conjugates(self, request: Message) -> Message:
        check_certified_models(request, self.plan, self._counts.subset, has_started="start" in self._requests)
        return self._sums_of_certificates().sum_conjugates(request)

    def _sums_of_certificates(self) -> SiteCertificates:
        if self._certificates is None:
            self._certificates = SiteCertificates(*self._loaded(), self._few_rows_rule, self._started)
        return self._certificates

    def _sum_scores(self, request: Message) -> Message:
        """Sum the scores of the models that were evaluated last, or count them for a rule of the threshold."""
        self._check_last_model(request.arrays)
        self._score_sums = self._score(request)
        arrays = self._score_sums.sum_scores() if request.name == "scores" else self._score_sums.count_scores()
        return Message(request.name, {}, arrays)

    def _score(self, request: Message) -> ScoreSums:
        """Return the sums for a request with the model that was evaluated last."""
        return score_sums_of(request, self.plan, self.policy, self.own_data, self._last_personal_models())

    def _last_personal_models(self) -> dict[str, np.ndarray] | None:
        """Return the personal models of the first run that was evaluated last; None: the plan trains none."""
        return next(iter(self._started().personal_models(self._requests["evaluate"].arrays)), None)

    def _check_last_model(self, model: Mapping[str, np.ndarray]) -> None:
        """Raise an error unless a model is the one that was evaluated last."""
        check_model(model, build.build_problem(self._loaded()[0], self.data).shapes)
        check_last_model(model, self._requests["evaluate"].arrays)

    def _sum_calibration(self, request: Message) -> Message:
        """Sum for the calibration of the model whose scores were sent."""
        if "scores" not in self._requests:
            raise UserError("the server asked for a calibration before the scores: begin the run anew")
        if self._score_sums is None:  # after a restart
            self._score_sums = self._score(self._requests["scores"])
        n_points = 1 + self.plan.shared_options.by_site
        return Message("calibration", {}, self._score_sums.sum_calibration(request.arrays, n_points))

    def _sum_for_intervals(self, request: Message) -> Message:
        """Sum for intervals of the coefficients, over all training rows."""
        experiment, data = self._loaded()
        with jax.enable_x64(True):
            if self._interval_sums is None:
                gaps = count_gaps(self.table, data.features.encoding)
                self._interval_sums = IntervalSums.of_site(self.plan, self.policy, experiment, data, gaps)
            return Message(request.name, {}, self._interval_sums.answer(request.name, request.arrays))

    def _receive_result(self, request: Message) -> Message:
        """Keep the result of the run as a record in the site's folder, with the personal models of its clients."""
        contents, model = read_result(request.arrays)
        self._check_last_model(model)
        check_result(contents, self.own_data, threshold := threshold_of(self._requests.get("scores"), self.plan))
        self.personal = self._last_personal_models()
        folder, experiment, site_data = self.result_folder, self.plan.experiment, self.own_data
        if folder is not None:
            config = name_client_column(self.plan.config_of(self.points[0]), self.options.client)
            write_result(
                folder,
                contents,
                config,
                experiment,
                site_data,
                model=model,
                personal=self.personal,
                threshold=threshold,
            )
        if self._fold_predictions is not None:
            self._fold_predictions.write(self.folds, self.points[0], self._requests[_FIRST_START])
        return Message("result")

    def _end(self, request: Message) -> Message:
        """End the runs."""
        self._batch = None
        for name in ("subset", "start", _FIRST_START, "evaluate", "scores", "residuals"):
            self._requests.pop(name, None)
        return Message("end")

    def _loaded(self) -> tuple[PreparedExperiment, FederatedData]:
        if self._experiment is None or self._data is None:
            raise UserError("the server asked for a run before all sites agreed on their tables: begin the run anew")
        return self._experiment, self._data

    def _started(self) -> SiteBatch:
        if self._batch is None:
            raise UserError("the server asked for a round before the start of the run: begin the run anew")
        return self._batch

    # -- what a restart needs

    def save_state(self) -> dict[str, np.ndarray]:
        """Return the state of the site as arrays: the requests that loaded the rows and started the runs, and the
        states of the clients.
        """
        state = {}
        for name, request in self._requests.items():
            state[name] = np.frombuffer(request.to_bytes(), np.uint8)
        if self._batch is not None:
            state |= {f"{_CLIENTS}{name}": leaf for name, leaf in name_leaves(self._batch.clients).items()}
            state["next_exchange"] = np.array(self._batch.next_exchange)
        counts = json.dumps(self._counts.counts).encode()
        return state | {_COUNTS: np.frombuffer(counts, np.uint8)}

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the state by one that ``save_state`` returned; no arrays stand for the state before any request."""
        self._requests, self._batch, self._data, self._own_data, self._experiment = {}, None, None, None, None
        self._certificates = self._interval_sums = self._score_sums = self._folds = None
        counts = json.loads(arrays[_COUNTS].tobytes()) if _COUNTS in arrays else {}
        self._counts = RequestCounts(self.plan, Counter(counts))
        if _FIRST_START in arrays:
            self._requests[_FIRST_START] = _read_request(arrays[_FIRST_START])
        computations = {"load": self._load, "subset": self._begin_subset, "start": self._start}
        with use_precision(self.plan.experiment.settings.precision):
            for name in _KEPT_REQUESTS:
                if name in arrays:
                    request = _read_request(arrays[name])
                    if name in computations:
                        computations[name](request)
                    self._requests[name] = request
            if self._batch is not None:
                leaves, structure = jax.tree.flatten(self._batch.clients)
                stored = [arrays[f"{_CLIENTS}{number}"] for number in range(len(leaves))]
                self._batch.clients = jax.tree.unflatten(structure, stored)
                number, exchange = arrays["next_exchange"].tolist()
                self._batch.next_exchange = number, exchange


def _read_request(content: np.ndarray) -> Message:
    """Return a request that the site has kept."""
    return Message.from_bytes(content.tobytes(), "the site's own folder")
