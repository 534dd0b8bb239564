"""The server of a study: from a plan and connected sites to a record."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.rows.away_sites import Absences
from fcorun.data.rows.site_rows import SiteRows
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.secure_sums import sum_errors
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_union import agree, compute_means, fit_scaling
from fcorun.sites.transport.connections import ALL_SITES, Connections
from fcorun.sites.transport.delivery import digest_of
from fcorun.sites.transport.messages import Message


@dataclass(frozen=True)
class Server:
    """The server of a study.

    Attributes:
        plan: the plan, which the owners of all sites have accepted.
        connections: the way to the sites.
    """

    plan: Plan
    connections: Connections

    def load(self) -> tuple[FederatedData, str]:
        """Have the sites agree on their tables.

        Returns:
            What the server knows of the rows, and a digest that stands for the rows in the identity of a run.

        Raises UserError, which names the site, for tables that do not fit the plan or each other.
        """
        options, ask = self.plan.shared_options, self.connections.ask
        descriptions = ask("describe", about={"plan": self.plan.digest})
        agreement = agree(options, descriptions)
        if self.plan.is_masked:
            in_sums = "in secure sums every site takes part in every sum"
            _check_splits(agreement, options, in_sums)
            if self.plan.experiment.algo.has_personal_models:
                _check_splits(agreement, options, in_sums, of_personal=True)
        if options.away_rule is not None:
            _check_splits(agreement, options, "data.away=skip compares sums over some of the sites")
        if options.standardize == "pooled":
            sums = self._ask_for_sums(agreement)
            squares = self._ask_for_sums(agreement, compute_means(agreement, sums))
            agreement = fit_scaling(agreement, sums, squares)
        names = [*agreement.training_clients, *agreement.held_out_clients]
        order = [agreement.clients.index(name) for name in names]
        n_rows, weights = agreement.n_rows[order], agreement.weights[order]
        n_clients = len(agreement.training_clients)
        about = {"all_clients": names, "n_clients": n_clients}
        self._send_agreement("load", agreement, {"all_rows": n_rows, "all_weights": weights}, about)
        site_of_client = tuple(agreement.site_of_client[m] for m in order)

        x_dtype = np.dtype(agreement.x_dtype)
        if agreement.scaling is not None and x_dtype.kind != "f":  # standardized at the sites
            x_dtype = np.dtype(np.float64)

        def described(split: int) -> SiteRows | None:
            known = n_clients if split == 0 else len(names)
            if not n_rows[:, split].any():
                return None
            return SiteRows(
                x=np.empty((0, len(agreement.feature_names)), x_dtype),
                y=np.empty(0, np.int32 if agreement.classes else agreement.y_dtype),
                client=np.empty(0, np.int64),
                weight=None if options.weight is None else np.empty(0),
                offset=None if options.offset is None else np.empty(0),
                group=None if options.group is None else np.empty(0, str),
                fold=None if options.fold is None else np.empty(0, str),
                all_sizes=n_rows[:known, split],
                all_weights=None if options.weight is None else weights[:known, split],
                site_of_client=site_of_client[:known],
                sum_name=None if not self.plan.is_masked else ALL_SITES,
                sum_errors=sum_errors(self.plan.secure, len(self.connections.sites)),
                by_site=options.by_site,
                away=options.away_rule,
                absences=Absences({name: kind.absence for name, kind in self.plan.kinds.items()}),
                ask=ask,
            )

        train = described(0)
        assert train is not None
        scaling = None if agreement.scaling is None else agreement.scaling.to_dict()
        if options.standardize == "per_client":  # by means and deviations that stay at the sites
            scaling = {"by": "per_client"}
        warnings = list(agreement.warnings)
        for site, texts in agreement.site_warnings.items():
            warnings += [f"site '{site}': {text}" for text in texts]
        data = FederatedData(
            train=train,
            validation=described(1),
            test=described(2),
            features=Features(agreement.feature_names, standardized=scaling, encoding=agreement.encoding),
            task=agreement.task,
            classes=agreement.classes,
            clients=agreement.training_clients,
            held_out_clients=agreement.held_out_clients,
            warnings=tuple(warnings),
        )
        return data, self._digest_of(data, descriptions)

    def _ask_for_sums(self, agreement: Agreement, around: np.ndarray | None = None) -> dict[str, Message]:
        return self._send_agreement("sums", agreement, {} if around is None else {"around": around}, {})

    def _send_agreement(
        self, name: str, agreement: Agreement, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
    ) -> dict[str, Message]:
        """Send each site its part of the agreement in a request of this name, with further arrays and values.

        For secure sums all sites receive the same request, with the whole agreement.
        """
        if self.plan.is_masked:
            message = agreement.to_message()
            return self.connections.ask(name, {**message.arrays, **arrays}, {**message.about, **about})
        answers = {}
        for site in self.connections.sites:
            message = agreement.for_site(site).to_message()
            answers |= self.connections.ask(name, {**message.arrays, **arrays}, {**message.about, **about}, of=[site])
        return answers

    def _digest_of(self, data: FederatedData, descriptions: Mapping[str, Message]) -> str:
        """Return a digest of the plan, of what the sites have said of their rows, and of the pooled scaling."""
        content: list[Any] = [self.plan.digest, data.clients]
        content += [[site, digest_of(descriptions[site].to_bytes())] for site in sorted(descriptions)]
        scaling = data.features.standardized or {}
        pooled = [np.asarray(scaling[key]).tolist() for key in ("mean_", "scale_") if key in scaling]
        content.append(pooled or None)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _check_splits(agreement: Agreement, options: Sites, why: str, of_personal: bool = False) -> None:
    """Raise UserError, which names a site, unless each site has rows of every split, and so all sums.

    With ``of_personal``, only rows of clients with training rows count, which have personal models.
    """
    owner, n_rows = np.array(agreement.site_of_client), agreement.n_rows
    if of_personal:
        n_rows = np.where(n_rows[:, :1] > 0, n_rows, 0)
    used = n_rows.sum(axis=0) > 0
    for site in np.unique(owner).tolist():
        missing = used & (n_rows[owner == site].sum(axis=0) == 0)
        if missing.any():
            split = SPLITS[int(missing.argmax())]
            rows = f"{split} rows of a client with training rows" if of_personal else f"{split} rows"
            if options.split is not None:
                advice = f"mark some of its rows so in the column of data.split={options.split}"
            elif split == "train":
                advice = "hold out a fraction of the rows instead of whole clients"
            else:
                advice = f"hold out a fraction of the rows, data.{split}=0.2"
            raise UserError(f"site '{site}' has no {rows}, and {why}: {advice}")
