"""The server of a study: from a plan and connected sites to what it knows of their rows.

The tables of all sites become one: an agreement follows from their descriptions, and its scaling from sums by client,
means first, then squared deviations from the means.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate, suggest_name, warn_similar_names
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.rows.rows import sum_in_order
from fcorun.data.rows.site_rows import Absences, SiteRows
from fcorun.data.tables.columns import Column, SplineColumn
from fcorun.data.tables.columns.column import ColumnDescription, Histogram
from fcorun.data.tables.data_warnings import FAR, describe_other_codes, measure_distances
from fcorun.data.tables.encoding import Encoding, make_encoding, warn_single_levels
from fcorun.data.tables.scaling import Scaling
from fcorun.data.tables.splits import SPLITS, HoldOut, sort_client_names
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.secure_sums import sum_errors
from fcorun.sites.plan.site_options import OTHER
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_description import Description
from fcorun.sites.transport.connections import ALL_SITES, Connections
from fcorun.sites.transport.delivery import digest_of
from fcorun.sites.transport.messages import OTHER_VERSION, Message

_WHERE = "the tables of the sites"
Descriptions = Mapping[str, Description]


@dataclass(frozen=True)
class AgreedTables:
    """The agreement of all sites on their tables, and whose each client is.

    Attributes:
        agreement: what all sites have agreed on.
        site_of_client: the site of each client of the agreement.
        warnings: sentences about the tables.
    """

    agreement: Agreement
    site_of_client: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def training_sites(self) -> tuple[str, ...]:
        """Return the site of each client with training rows, in order."""
        return self.site_of_client[: len(self.agreement.training_clients)]


def agree(options: Sites, answers: Mapping[str, Message]) -> AgreedTables:
    """Return the agreement that follows from the description of each site, without a scaling.

    Raises UserError, which names the site, for tables that are not alike, and for options that the rows of all sites
    together do not allow.
    """
    sites = {site: Description.from_message(answers[site], site, options) for site in sorted(answers)}
    site_of_client: dict[str, str] = {}
    for site, description in sites.items():
        for name in description.clients:
            if name in site_of_client:
                raise UserError(f"site '{site}' and site '{site_of_client[name]}' both have a client '{name}': give "
                                "one of the two another name")  # fmt: skip
            site_of_client[name] = site
    names = list(site_of_client)
    position = {name: m for m, name in enumerate(sort_client_names(names))}
    n_rows = np.concatenate([description.n_rows for description in sites.values()])
    weights = np.concatenate([description.weights for description in sites.values()])
    order = np.lexsort(([position[name] for name in names], n_rows[:, 0] == 0))  # those with training rows first
    clients = tuple(names[m] for m in order)
    n_rows = n_rows[order]
    weights = weights[order]
    hold_out = HoldOut(options.validation, options.test)
    hold_out.check_clients(list(position))
    hold_out.check_test_rows(int(n_rows[:, 2].sum()), options.group is not None)
    if not n_rows[:, 0].any():
        raise UserError(f"{_WHERE} have no training rows: hold out fewer rows")
    for m in np.flatnonzero((n_rows[:, 0] > 0) & (weights[:, 0] == 0))[:1]:
        raise UserError(f"site '{site_of_client[clients[m]]}': all training rows of client '{clients[m]}' have weight "
                        "0: leave that client out, or give its rows weights")  # fmt: skip
    if n_rows[:, 1].any() and not weights[:, 1].any():
        raise UserError(f"{_WHERE}: all validation rows have weight 0: hold out others, or none")
    training_clients = [name for name, counts in zip(clients, n_rows, strict=True) if counts[0]]
    classes, warnings = _agree_on_classes(options, sites)
    kinds = _agree_on_kinds(sites)
    encoding, column_warnings = _make_encoding(options, sites, kinds, training_clients)
    warnings += [*column_warnings, *warn_similar_names("clients", list(position))]
    agreement = Agreement(
        task=options.task,
        classes=classes,
        encoding=encoding,
        clients=clients,
        n_rows=n_rows,
        weights=weights,
    )
    return AgreedTables(agreement, tuple(site_of_client[name] for name in clients), tuple(warnings))


def _agree_on_classes(options: Sites, sites: Descriptions) -> tuple[tuple, list[str]]:
    """Return the classes in order, and warnings. Raises UserError for labels that differ or are missing."""
    task = options.target_task
    if not task.has_classes:
        return (), []
    first_labels = next((description.labels for description in sites.values() if description.labels), [])
    counts: Counter = Counter()
    for description in sites.values():
        if any(type(label) is not type(first_labels[0]) for label in description.labels):
            raise UserError(f"'{options.target}' has text as labels at some sites, and numbers at others: "
                            f"{_list_labels(sites)}: write them alike at all sites")  # fmt: skip
        counts.update(dict(zip(description.labels, description.label_counts.tolist(), strict=True)))
    by_name = {str(label): label for label in sorted(counts)}
    names = options.classes
    if names is None:
        names = [str(label) for label in options.order_labels(counts)]
        if task.has_two_classes and len(names) == 2 and str(options.positive) not in names:
            raise UserError(f"data.positive={options.positive} is no label of any site; "
                            f"{suggest_name(options.positive, names)}")  # fmt: skip
    for name in names:
        if name not in by_name:
            raise UserError(f"the class '{name}' has no training rows at any site: leave it out of data.classes")
    if (task.has_two_classes and len(names) != 2) or len(names) < 2:
        needed = "two" if task.has_two_classes else "two or more"
        raise UserError(f"the sites together have {len(names)} classes of '{options.target}', and data.task="
                        f"{options.task} needs {needed}: {_list_labels(sites)}: write them alike at all sites, or give "
                        "another task")  # fmt: skip
    warnings = warn_similar_names("labels", names)
    for site, description in sites.items():
        absent = [name for name in names if by_name[name] not in description.labels]
        if absent and description.n_rows[:, 0].any():
            warnings.append(f"site '{site}' has no training rows of the class {abbreviate(list(map(repr, absent)))}")
    return tuple(by_name[name] for name in names), warnings


def _list_labels(sites: Descriptions) -> str:
    """Return the labels of each site as text."""
    texts = []
    for site, description in sites.items():
        labels = abbreviate([f"'{label}'" if isinstance(label, str) else str(label) for label in description.labels], 4)
        texts.append(f"{labels or 'none'} at site '{site}'")
    return "; ".join(texts)


def _agree_on_kinds(sites: Descriptions) -> dict[str, Column]:
    """Return the columns before a fit, in the order of the first site.

    Raises UserError for columns and kinds that differ between sites.
    """
    names = list(dict.fromkeys(name for description in sites.values() for name in description.kinds))
    kinds = {}
    for name in names:
        having = [site for site, description in sites.items() if name in description.kinds]
        if len(having) < len(sites):
            lacking = [f"'{site}'" for site in sites if site not in having]
            raise UserError(f"column '{name}' is at site {abbreviate(list(map(repr, having)))} and not at site "
                            f"{abbreviate(lacking)}: data.rename={{THEIRS: {name}}} names the column of a site, and "
                            f"data.ignore=[{name}] leaves it out everywhere")  # fmt: skip
        site_by_content: dict[str, str] = {}
        for site, description in sites.items():
            column = description.kinds[name]
            if column is not None:
                site_by_content.setdefault(column.content, site)
                kinds.setdefault(name, column)
        if not site_by_content:
            raise UserError(f"column '{name}' has no value at any site: data.ignore=[{name}] leaves it out")
        if len(site_by_content) > 1:
            (one, site), (other, other_site) = sorted(site_by_content.items())
            raise UserError(f"column '{name}' holds {one} at site '{site}' and {other} at site '{other_site}': write "
                            f"it alike at all sites, or data.ignore=[{name}] leaves it out")  # fmt: skip
    return kinds


def _make_encoding(
    options: Sites, sites: Descriptions, kinds: Mapping[str, Column], clients: Sequence[str]
) -> tuple[Encoding, list[str]]:
    """Return the encoding of the columns, and warnings; ``clients`` are those with training rows, in order."""
    columns: list[Column] = []
    with_rare = []
    warnings = []
    for name, column in kinds.items():
        parts = []
        for description in sites.values():
            part = replace(description.columns[name], other=OTHER)
            n_rare = description.n_rare.get(name, 0)
            if n_rare:  # rows of rare levels are counted as ``OTHER``
                level_counts = part.level_counts + Counter({OTHER: n_rare})
                part = replace(part, n_values=part.n_values + n_rare, level_counts=level_counts)
            parts.append(part)
        together = ColumnDescription.combine(parts, clients)
        fitted = column.fit(together, options.missing, _WHERE)
        columns.append(fitted)
        if not column.has_levels:
            continue
        warnings += fitted.warn_similar_levels()
        levels = {site: set(description.columns[name].level_counts) for site, description in sites.items()}
        warnings += describe_other_codes("site", name, levels)
        sites_with_rare = [f"'{site}'" for site, description in sites.items() if description.n_rare.get(name)]
        if sites_with_rare:
            with_rare.append(f"'{name}' at {abbreviate(sites_with_rare)}")
            if any(OTHER in names for names in levels.values()):
                warnings.append(f"rows of rare levels of '{name}' join the level '{OTHER}' that a table has: rename it "
                                "in the tables to keep it apart")  # fmt: skip
    if with_rare:
        warnings.append(f"levels that few training rows of a site have are coded as '{OTHER}' there, where pooled rows "
                        f"keep them: {abbreviate(with_rare)}")  # fmt: skip
    constant = []
    for name in [column.name for column in columns if column.features]:
        constant_sites = [f"'{site}'" for site, description in sites.items() if description.is_constant[name]]
        if constant_sites:
            constant.append(f"'{name}' at {abbreviate(constant_sites)}")
    if constant:
        warnings.append("columns are taken as constant at a site whose training rows have one value there, or another "
                        f"one in few rows, which pooled rows would keep: {abbreviate(constant)}")  # fmt: skip
    warnings += warn_single_levels(columns)
    widths = []
    for column in columns:
        parts = [description.columns[column.name] for description in sites.values()]
        points: list[float] = []
        if isinstance(column, SplineColumn):
            points += column.knots
        if options.missing == "median" and isinstance(column.fill, float) and any(part.has_gaps for part in parts):
            points.append(column.fill)
        if points:
            width = _measure_cells([part.histogram for part in parts if part.histogram is not None], points)
            widths.append(f"{width:.3g} in '{column.name}'")
    if widths:
        warnings.append("medians and knots of splines come from counts in bins of data.ranges, where those of pooled "
                        "rows are exact: a site joins bins until they have enough rows, next to these numbers to a "
                        f"width of {abbreviate(widths)}")  # fmt: skip
    return make_encoding(columns, _WHERE), warnings


def _measure_cells(histograms: Sequence[Histogram], points: Sequence[float]) -> float:
    """Return the largest distance of neighbouring cells of a site's counts around one of these numbers.

    A single cell may hold the rows of the whole range.
    """
    widths = [0.0]
    for histogram in histograms:
        middles = (histogram.edges[:-1] + histogram.edges[1:])[histogram.counts > 0] / 2
        gaps = np.diff(middles)
        if len(middles) == 1:
            gaps = histogram.edges[-1:] - histogram.edges[0]
        if len(gaps):
            first = np.clip(np.searchsorted(middles, points) - 1, 0, len(gaps) - 1)
            widths.append(float(gaps[first].max()))
    return max(widths)


def fit_scaling(tables: AgreedTables, sums: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> AgreedTables:
    """Return the tables with the scaling of the features, and with warnings of sites whose units may differ.

    There are no such warnings if the sums are over all sites together.

    Args:
        tables: the tables, with an agreement on the features.
        sums: the sums of the features by client, or of all, as ``stack_sums`` returns them.
        mean: the mean of each feature over the training rows of all sites, (d,).
        squares: the squared deviations from the mean, in the same way.
    """
    agreement = tables.agreement
    n_rows = agreement.n_rows[: len(agreement.training_clients), 0]
    agreement = replace(agreement, scaling=Scaling.from_squares(mean, squares, int(n_rows.sum())))
    tables = replace(tables, agreement=agreement)
    if len(sums) != len(n_rows):
        return tables
    numbers = [column.name for column in agreement.encoding.columns if column.has_numbers]
    sites, site_of = np.unique(tables.training_sites, return_inverse=True)
    belongs = (site_of == np.arange(len(sites))[:, None]).astype(float)
    n_rows_of_site = np.bincount(site_of, n_rows).astype(int)
    distances, *_ = measure_distances(belongs @ sums, belongs @ squares, n_rows_of_site, mean)
    warnings = list(tables.warnings)
    for site, far in zip(sites.tolist(), distances > FAR, strict=True):
        for name, is_far in zip(agreement.feature_names, far, strict=True):
            if is_far and name in numbers:
                warnings.append(f"site '{site}': the mean of '{name}' here is more than {FAR} standard deviations away "
                                "from that of the other sites: check that the unit is the same")  # fmt: skip
    return replace(tables, warnings=tuple(warnings))


def stack_sums(
    answers: Mapping[str, Message], site_of_client: Sequence[str], feature_names: Sequence[str]
) -> np.ndarray:
    """Return the sums of the features over each client's training rows, (M, d); over all together, (1, d), if masked.

    ``site_of_client`` are the sites of the clients with training rows, in order. Raises UserError, which names a site,
    for anything but sums.
    """
    owner = np.array([ALL_SITES] if ALL_SITES in answers else site_of_client)
    stacked = np.empty((len(owner), len(feature_names)))
    for site, answer in answers.items():
        clients = np.flatnonzero(owner == site)
        sums = answer.arrays.get("sums")
        if sums is None or sums.shape != (len(clients), len(feature_names)) or sums.dtype != np.float64:
            raise UserError(f"site '{site}' sent no sums of the agreed features: {OTHER_VERSION}")
        if not np.isfinite(sums).all():
            j = int(np.flatnonzero(~np.isfinite(sums).all(axis=0))[0])
            raise UserError(f"site '{site}' sent a sum of '{feature_names[j]}' that is not finite: scale the column")
        stacked[clients] = sums
    return stacked


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
        options = self.plan.shared_options
        ask = self.connections.ask
        descriptions = ask("describe", about={"plan": self.plan.digest})
        tables = agree(options, descriptions)
        if self.plan.is_masked:
            in_sums = "in secure sums every site takes part in every sum"
            _check_splits(tables, options, in_sums)
            if self.plan.experiment.algo.has_personal_models:
                _check_splits(tables, options, in_sums, of_personal=True)
        if options.away_rule is not None:
            _check_splits(tables, options, "data.away=skip compares sums over some of the sites")
        n_rows = tables.agreement.n_rows
        weights = tables.agreement.weights
        if options.standardize == "pooled":
            sums = self._ask_for_sums(tables, {})
            mean = sum_in_order(sums) / n_rows[:, 0].sum()
            tables = fit_scaling(tables, sums, mean, self._ask_for_sums(tables, {"around": mean}))
        agreement = tables.agreement
        message = agreement.to_message()
        ask("load", message.arrays, message.about)

        def described(split: int) -> SiteRows | None:
            known = len(agreement.training_clients if split == 0 else agreement.clients)
            if not n_rows[:, split].any():
                return None
            return SiteRows(
                x=np.empty((0, len(agreement.feature_names))),
                y=np.empty(0, np.int32 if agreement.classes else np.float64),
                client=np.empty(0, np.int64),
                weight=None if options.weight is None else np.empty(0),
                offset=None if options.offset is None else np.empty(0),
                group=None if options.group is None else np.empty(0, str),
                fold=None if options.fold is None else np.empty(0, str),
                all_sizes=n_rows[:known, split],
                all_weights=None if options.weight is None else weights[:known, split],
                site_of_client=tables.site_of_client[:known],
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
        data = FederatedData(
            train=train,
            validation=described(1),
            test=described(2),
            features=Features(agreement.feature_names, standardized=scaling, encoding=agreement.encoding),
            task=agreement.task,
            classes=agreement.classes,
            clients=agreement.training_clients,
            held_out_clients=agreement.held_out_clients,
            warnings=tables.warnings,
        )
        return data, self._digest_of(data, descriptions)

    def _ask_for_sums(self, tables: AgreedTables, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        message = tables.agreement.to_message()
        answers = self.connections.ask("sums", {**message.arrays, **arrays}, message.about)
        return stack_sums(answers, tables.training_sites, tables.agreement.feature_names)

    def _digest_of(self, data: FederatedData, descriptions: Mapping[str, Message]) -> str:
        """Return a digest of the plan, of what the sites have said of their rows, and of the pooled scaling."""
        content: list[Any] = [self.plan.digest, data.clients]
        content += [[site, digest_of(descriptions[site].to_bytes())] for site in sorted(descriptions)]
        scaling = data.features.standardized or {}
        pooled = [np.asarray(scaling[key]).tolist() for key in ("mean_", "scale_") if key in scaling]
        content.append(pooled or None)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _check_splits(tables: AgreedTables, options: Sites, why: str, of_personal: bool = False) -> None:
    """Raise UserError, which names a site, unless each site has rows of every split, and so all sums.

    With ``of_personal``, only rows of clients with training rows count, which have personal models.
    """
    owner = np.array(tables.site_of_client)
    n_rows = tables.agreement.n_rows
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
