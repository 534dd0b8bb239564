"""The owner's acceptance of a plan: what a site would say, and the note that the owner agrees."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcorun.base.config import build
from fcorun.base.errors import UserError, warn_similar_names
from fcorun.base.gone_options import drop_unused
from fcorun.base.records.formats import READ_ERRORS, read_json
from fcorun.base.system.files import write_atomically
from fcorun.data.tables.cells import to_level_names
from fcorun.data.tables.columns import SplineColumn
from fcorun.data.tables.data_warnings import warn_of_features, warn_of_targets, warn_target_units
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OTHER, Obstacles, SiteOptions
from fcorun.sites.site.site import Site
from fcorun.sites.tables.ledger import Ledger
from fcorun.sites.tables.ledger_entry import LedgerEntry
from fcorun.sites.tables.ledger_rows import divide_rows, identify_reading, list_read_columns, number_codes
from fcorun.sites.tables.plan_in_ledger import PlanInLedger
from fcorun.sites.tables.planned_table import read_planned_table
from fcorun.sites.tables.table_agreement import check_curve
from fcorun.sites.tables.table_description import count_outside, fit_curve
from fcorun.sites.tables.table_rows import SiteTable, number_values
from fcorun.sites.transport.delivery import AuditLog
from fcorun.sites.transport.durable import DurableSite

if TYPE_CHECKING:
    from fcorun.sites.site.masking import MaskedSite

_FEW_VALUES = 10  # a column with more numbers than these has no rare value that is a class of rows
_ACCEPTED = "accepted"
_LOG = "sent.jsonl"
_LEDGER_SECONDS = 60.0  # the longest wait for other sites that enter their plans


def site_folder(kit: Path) -> Path:
    """Return the folder of fcorun in a site's kit."""
    return kit / "local" / "fcorun"


def describe_site(site: Site) -> list[str]:
    """Return what the site has for the plan, as lines for its owner: columns, levels, clients with numbers of rows."""
    table = site.table
    training = table.masks[0]
    all_rows = np.ones(len(training), bool)
    lines = ["columns:"]
    for name, column in table.kinds.items():
        if name not in table.level_counts:
            kind = "empty" if column is None else column.kind
            lines.append(f"  {name:24} {kind}{_describe_rare_value(table, name)}")
            continue
        rare = table.rare_levels[name]
        codes = table.code_levels(name)
        levels = []
        for level in sorted(table.level_counts[name].keys() - rare):
            levels.append(f"{level} ({table.describe_rows(training & (codes == level))})")
        if rare:
            rows = table.describe_rows(training & np.isin(codes, OTHER), " rows")
            levels.append(f"other ({rows} of {len(rare)} rare levels)")
        rare_values = _describe_rare_value(table, name) + _describe_merged_levels(table, codes)
        lines.append(f"  {name:24} {', '.join(levels)}{rare_values}")
    quantity = table.options.target_task.find_quantity(table.rows.y[training])
    if quantity is not None and len(quantity):
        low, middle, high = np.quantile(quantity, [0, 0.5, 1])
        lines.append(f"target {table.options.target}: training rows from {low:.4g} to {high:.4g}, median {middle:.4g}; "
                     "its unit must be that of all other sites, whose numbers no site sees")  # fmt: skip
    lines.append("rows of each client: " + ", ".join(SPLITS))
    lines += _describe_clients(table, table.n_rows, table.count_patients(all_rows))
    if table.fold is not None:
        lines.append("training rows of each client in each fold:")
        folds = table.list_sums(by_client=True)
        lines += _describe_clients(table, replace(folds, patients=Patients()).count_cells(all_rows),
                                   folds.count_cells(all_rows))  # fmt: skip
    # of names in the file that differ in capitals or spaces; the server warns of those of all
    labels = np.unique(table.rows.y).tolist() if table.options.target_task.has_classes else []
    warnings = [*list_warnings(table), *warn_similar_names("labels", labels)]
    warnings += warn_similar_names("clients", table.clients)
    for name, counts in table.level_counts.items():
        warnings += warn_similar_names(f"levels of '{name}'", sorted(counts))
    return lines + [f"warning: {warning}" for warning in warnings]


def _describe_clients(table: SiteTable, rows: np.ndarray, patients: np.ndarray) -> Iterator[str]:
    """Yield the rows of each client in K sets, (M, K), and as how many patients they count where these are others."""
    for name, of_rows, of_patients in zip(table.clients, rows.tolist(), patients.tolist(), strict=True):
        like = f"; like {', '.join(f'{count:.4g}' for count in of_patients)} patients" if of_rows != of_patients else ""
        yield f"  {name:24} {', '.join(f'{count:.0f}' for count in of_rows)}{like}"


def _describe_merged_levels(table: SiteTable, codes: np.ndarray) -> str:
    """Return how many held-out rows take their set's most frequent level, as few of the set have theirs; or ""."""
    is_merged = table.merge_few_levels(codes) != codes
    text = ""
    for split, mask in zip(SPLITS[1:], table.masks[1:], strict=True):
        n = int((mask & is_merged).sum())
        if n == 1:
            text += f"; 1 {split} row, of a level that few of these rows have, takes their most frequent level"
        elif n:
            text += f"; {n} {split} rows, of levels that few of these rows have, take their most frequent level"
    return text


def _describe_rare_value(table: SiteTable, name: str) -> str:
    """Return in how many training rows a column has its rarest value, where it has few values."""
    column = table.kinds[name]
    if name in table.rarer_rows:
        text = f"; the rarer of its two values in {table.rarer_rows[name]}"
        return f"{text}: taken as constant" if name in table.constant else text
    if column is None:
        return ""
    number = np.where(table.masks[0], number_values(table.columns[name], column), -1)
    counts = table.patients.count_parts(number, int(number.max(initial=-1)) + 1)
    n_values = np.count_nonzero(counts)
    if not 2 <= n_values <= _FEW_VALUES:
        return ""
    rarest = np.where(counts > 0, counts, np.inf).argmin()
    return f"; the rarest of its {n_values} values in {table.describe_rows(number == rarest, ' training rows')}"


def list_warnings(table: SiteTable) -> list[str]:
    """Return warnings about the site's file, its columns and its target, as a pooled table has them.

    They stay at the site.
    """
    names = table.number_columns
    curve_warnings = []
    for column in table.kinds.values():
        if isinstance(column, SplineColumn):
            try:
                check_curve(table, fit_curve(table, column))
            except UserError as error:
                curve_warnings.append(f"the knots are agreed on when the run begins, and with those of this site's own "
                                      f"rows the site refuses: {error}")  # fmt: skip
    outside = []
    for name in [name for name in names if name in (table.options.ranges or {})]:
        n_outside = count_outside(table, name)
        if n_outside:
            outside.append(f"{n_outside} training rows have a number of '{name}' outside of data.ranges of the plan, "
                           "and count as its nearest bound")  # fmt: skip
    columns = [table.read_numbers(name) for name in names]
    columns = [np.where(np.isnan(x), np.nanmedian(x), x) for x in columns]  # a gap is no value to warn about
    for name, counts in table.level_counts.items():
        levels = to_level_names(table.columns[name])
        names += [f"{name}={level}" for level in sorted(counts)]
        columns += [(levels == level).astype(np.float64) for level in sorted(counts)]
    rows = table.rows
    warnings = [*rows.warnings, *curve_warnings, *outside]
    task = table.options.target_task
    training = table.masks[0]
    if columns:
        x = np.column_stack(columns)
        y = rows.y[training]
        classes = np.unique(y).tolist() if task.has_two_classes else []
        if classes:
            y = np.searchsorted(classes, y)
        warnings += warn_of_features(x, names, x[training], y, classes, has_other_rows=True)
    warnings += warn_of_targets(task, rows.y, rows.offset)
    quantity = task.find_quantity(rows.y[training])
    if quantity is not None and rows.offset is None:
        warnings += warn_target_units(quantity, table.client_rows.client_index[training], table.clients)
    return warnings


def compare_target_units(tables: Mapping[str, SiteTable]) -> list[str]:
    """Return a warning about the site whose training targets seem to have another unit than those of all others."""
    quantities = []
    for table in tables.values():
        quantity = table.options.target_task.find_quantity(table.rows.y[table.masks[0]])
        if quantity is None or table.rows.offset is not None:
            return []
        quantities.append(quantity)
    site = np.repeat(np.arange(len(tables)), [len(quantity) for quantity in quantities])
    return warn_target_units(np.concatenate(quantities), site, list(tables), "site")


def open_checked_site(plan: Plan, options: SiteOptions, policy: Policy) -> Site:
    """Return a site whose table has been read. Raises UserError, or ObstaclesError with all obstacles at once."""
    obstacles = Obstacles()
    with obstacles.noting():
        policy.check_plan(plan)
    table = None
    with obstacles.noting():
        table = read_planned_table(plan, options, policy)
    obstacles.raise_any()
    site = Site(plan, options, policy)
    vars(site)["table"] = table  # which is not read again
    return site


@dataclass(frozen=True)
class Acceptance:
    """The note that the owner of a site accepts a plan.

    Attributes:
        data: the digest of the file of the rows.
        options: the owner's options of the table.
        policy: the owner's policy.
        fingerprints: the fingerprints that the owner has entered, by the names of the other sites.
        day: the day of the acceptance.
        overlap: whether the owner gives away the rows that earlier plans and this one tell apart.
    """

    data: str
    options: SiteOptions
    policy: Policy
    fingerprints: Mapping[str, str]
    day: str
    overlap: bool = False

    @classmethod
    def read(cls, folder: Path, digest: str) -> "Acceptance":
        """Read the note on the plan of a digest. Raises UserError if the owner has not accepted that plan."""
        try:
            note = read_json(_note_path(folder, digest))
            if note["digest"] != digest:
                raise ValueError("another digest")
            options = build(SiteOptions, note["options"], "data")
            policy = build(Policy, drop_unused("policy", note["policy"]), "policy")
            day = note["time"][:10]
            overlap = bool(note.get("overlap", False))
            return cls(note["data"], options, policy, note["fingerprints"], day=day, overlap=overlap)
        except (*READ_ERRORS, TypeError) as error:
            raise UserError(f"the owner of this site has not accepted the plan {digest[:16]}..: fcorun site accept "
                            "does that") from error  # fmt: skip

    @property
    def rows(self) -> str:
        """A text that stands for the rows: the data and the options of the table."""
        return hashlib.sha256(json.dumps([self.data, self.options.to_dict()]).encode()).hexdigest()

    def check_data(self) -> None:
        """Raise UserError if the file of the rows is not the one that the owner has accepted the plan for."""
        if _digest_of_file(self.options.path) != self.data:
            raise UserError("the data of this site have changed since its owner accepted the plan: fcorun site accept "
                            "does that again")  # fmt: skip


def accept(
    folder: Path,
    plan: Plan,
    options: SiteOptions,
    policy: Policy,
    fingerprints: Mapping[str, str] | None = None,
    shown_data: str | None = None,
    overlap: bool = False,
) -> Path:
    """Note in the site's folder that its owner accepts a plan for these rows; return the file of the note.

    The note has the digest of the file of the rows, and holds for that content of the file alone.

    For secure sums, draws the site's key unless the folder has one, and notes the fingerprints of the keys of others.
    Raises UserError unless the file has the digest ``shown_data`` of the rows that the owner has seen; None: any.
    With ``overlap`` the owner gives away the rows that earlier plans and this one tell apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if plan.is_masked:
        site_fingerprint(folder)
    file = Path(options.path).expanduser().absolute()  # a link names the client of its rows
    data = _digest_of_file(file)
    if shown_data not in (None, data):
        raise UserError(f"data.path={options.path} has changed while it was read, and nothing is accepted: give the "
                        "same command again once nothing writes to the file")  # fmt: skip
    note = {
        "digest": plan.digest,
        "data": data,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {**options.to_dict(), "path": str(file)},
        "policy": asdict(replace(policy, ledger=str(policy.ledger_folder))),
        "fingerprints": dict(fingerprints or {}),
        "overlap": overlap,
    }
    path = _note_path(folder, plan.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note, indent=2) + "\n", durable=True)
    return path


def digest_of_rows(options: SiteOptions) -> str:
    """Return the digest of the file of the rows; "" for a file that cannot be read, whose reading says why."""
    try:
        return _digest_of_file(Path(options.path).expanduser())
    except UserError:
        return ""


def site_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the key of a site's folder, which is drawn once."""
    from fcorun.sites.site.masking import fingerprint_of, open_key, public_key_of

    return fingerprint_of(public_key_of(open_key(folder)))


def open_site(folder: Path, plan: Plan) -> "Site | MaskedSite":
    """Return the site of a folder for a plan that its owner has accepted, with its table read.

    Raises UserError for any other plan, and for data that have changed since.
    """
    accepted = Acceptance.read(folder, plan.digest)
    accepted.check_data()
    site = Site(plan, accepted.options, accepted.policy, result_folder=result_folder(folder, plan))
    site.read_table()
    accepted.check_data()  # again, for a change while the table was read
    if not plan.is_masked:
        return site
    from fcorun.sites.site.masking import MaskedSite, open_key

    return MaskedSite(site, open_key(folder), accepted.fingerprints)


def result_folder(folder: Path, plan: Plan) -> Path:
    """Return the folder of a site in which the result of a plan is kept, a record."""
    return folder / "results" / plan.digest[:16]


def open_durable_site(folder: Path, plan: Plan, lock_seconds: float = 0.0, name: str | None = None) -> DurableSite:
    """Return the site of ``open_site``, which answers as ``name`` and enters the plan in the owner's ledger before.

    Its state is in the folder. Raises UserError for a state of other rows, or of another name, and for a plan that
    tells few rows apart from those of earlier plans.
    """
    site = open_site(folder, plan)
    unmasked = site if isinstance(site, Site) else site.site
    accepted = Acceptance.read(folder, plan.digest)
    state = state_folder(folder, plan)
    ledger = Ledger(accepted.policy.ledger_folder)
    wait_seconds = max(lock_seconds, _LEDGER_SECONDS)
    with ledger.locked(wait_seconds):
        groups = ledger.list_groups()
    unmasked.in_ledger = _make_plan_in_ledger(
        plan, unmasked.table, accepted, folder, ledger=ledger, groups=groups, lock_seconds=wait_seconds
    )
    durable = DurableSite(site, state, accepted.rows, accepted.policy.max_runs, lock_seconds=lock_seconds, name=name)
    try:
        unmasked.in_ledger.check()  # last: an answer from other rows than those accepted now has a reason of its own
    except BaseException:
        durable.close()
        raise
    return durable


def find_differences(site: Site, folder: Path | None = None) -> list[str]:
    """Return a sentence for each few rows that a site's plan and the plans of the owner's ledger tell apart.

    Args:
        folder: the folder of the site; None: that of the last plan with the same file.
    """
    day = datetime.now(UTC).date().isoformat()
    options = replace(site.options, path=str(Path(site.options.path).expanduser().absolute()))
    accepted = Acceptance(_digest_of_file(options.path), options, site.policy, {}, day)
    ledger = Ledger(site.policy.ledger_folder)
    groups = ledger.list_groups()
    in_ledger = _make_plan_in_ledger(site.plan, site.table, accepted, folder, ledger=ledger, groups=groups)
    return in_ledger.find_differences()


def _make_plan_in_ledger(
    plan: Plan,
    table: SiteTable,
    accepted: Acceptance,
    folder: Path | None,
    *,
    ledger: Ledger,
    groups: Collection[str],
    lock_seconds: float = _LEDGER_SECONDS,
) -> PlanInLedger:
    """Return an accepted plan with its ledger, whose other plans name patients by the columns ``groups``."""
    options = accepted.options
    sets, labels = divide_rows(plan, table)
    group = plan.shared_options.group or ""
    weight = plan.shared_options.weight or ""
    entry = LedgerEntry(
        plan=plan.digest,
        title=f"{plan.shared_options.target} over {Path(options.path).name}",
        accepted=accepted.day,
        folder="" if folder is None else str(folder.resolve()),
        file=options.path,
        reading=identify_reading(accepted.data, options),
        sets=sets,
        labels=labels,
        overlap=accepted.overlap,
        codes=number_codes(table, options),
        by_client=table.sums_by_client,
        group=options.own_names.get(group, group),
        weight_column=options.own_names.get(weight, weight),
        weights=table.rows.weight,
    )
    columns = list_read_columns(table, options, accepted.policy.row_id, groups)
    rename = options.rename or {}
    return PlanInLedger(ledger, entry, columns, rename=rename, policy=accepted.policy, lock_seconds=lock_seconds)


def state_folder(folder: Path, plan: Plan) -> Path:
    """Return the folder of a site in which the last answer to a plan and the state are kept."""
    return folder / "state" / plan.digest[:16]


def open_log(folder: Path, digest: str) -> AuditLog:
    """Return the log of a site for the plan of a digest, with contents if the owner has accepted and asked for them."""
    try:
        contents = Acceptance.read(folder, digest).policy.log_contents
    except UserError:
        contents = False
    return AuditLog(folder / _LOG, digest, contents)


def _note_path(folder: Path, digest: str) -> Path:
    return folder / _ACCEPTED / f"{digest[:16]}.json"


def _digest_of_file(path: str | Path) -> str:
    """Return the SHA-256 digest of a file. Raises UserError if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError("the file of the site's rows cannot be read: see that data.path is there") from error
