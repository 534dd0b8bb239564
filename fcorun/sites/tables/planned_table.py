"""The table of a site, read as the plan and the policy say, and the rules beyond those on the numbers of its rows.

These are on dominance, minibatches, events, and personal models. Dominance: few rows must not outweigh all
others in a column, less any constant. A sum of products with a column in which one row has another number than all
others is that row: X'X, the sums of features times targets, and the difference of weighted and plain sums, less a
multiple of the plain sum.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.splits import SPLITS
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.robust import Huber, Quantile
from fcorun.results.models.client_intercepts import has_finite_intercepts
from fcorun.sites.plan.patients import are_few
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import Obstacles, OwnTableError, SiteOptions, for_owner_alone
from fcorun.sites.tables.fold_rules import check_folds, draw_row_folds
from fcorun.sites.tables.summed_sets import SummedSet, SummedSets, column_tells_few
from fcorun.sites.tables.table_description import describe_table
from fcorun.sites.tables.table_rows import ROWS, SiteTable, read_site_table

_BOUNDED = (Huber, Quantile)  # losses whose derivatives do not grow with the target


def read_planned_table(plan: Plan, options: SiteOptions, policy: Policy) -> SiteTable:
    """Read a site's table for a plan. Raises UserError, or ObstaclesError, where it does not fit plan and policy."""

    def check_targets(table: SiteTable) -> None:
        if table.rows.y.dtype.kind == "f":  # numbers; labels are checked once the sites have agreed on classes
            check_targets_of_site(plan.experiment, table.rows.y)

    def check_drawn_folds(table: SiteTable) -> None:
        if table.fold is not None:
            check_folds(plan, table, table.fold)

    checks: list[Callable[[SiteTable], object]] = [describe_table, check_targets, check_drawn_folds]
    checks += [partial(check_batches, plan), partial(check_dominance, plan)]
    if plan.shared_options.target_task.has_events:
        checks.append(check_events)
    if plan.experiment.algo.has_personal_models:
        checks.append(check_classes_of_trained_clients)
    if plan.experiment.objective.client_intercepts:
        checks.append(partial(check_intercepts, plan))
    table = read_site_table(
        plan.shared_options,
        options,
        policy,
        checks,
        draw_folds=partial(draw_row_folds, plan),
        uploads_by_client=plan.tells_uploads,
        holds_clients_out=plan.select is not None and plan.select.by == "clients",
    )
    rows = table.rows
    if rows.y.dtype.kind != "f":
        return table
    training = table.masks[0]
    remarks = plan.experiment.objective.remark_on_targets(rows.y[training])
    if rows.offset is not None:
        remarks += plan.experiment.objective.remark_on_offset(rows.offset[training], rows.y[training])
    return replace(table, rows=replace(rows, warnings=(*rows.warnings, *remarks)))


def check_targets_of_site(experiment: PreparedExperiment, y: np.ndarray) -> None:
    """Raise OwnTableError if the objective does not take a target of a site's training or held-out rows, (N,).

    Rules on all training targets together, such as that some count is not 0, are for those of all sites.
    """
    with for_owner_alone(f"its targets do not fit objective={experiment.names['objective']}"):
        build.check_targets(experiment, y[:0], y)


def check_dominance(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for numbers that few rows dominate, ObstaclesError for several such columns.

    The rule is one for training, validation and test rows: two losses of held-out rows, at models of the server, differ
    by the rows in which a column is not 0, as gradients of training rows do. Of a set of ``SummedSet.is_difference``
    only the number of rows is looked at: the largest number of an ordinary column outweighs a dozen rows of a fold.
    """
    options = table.options
    # numbers that a plan multiplies by features, with NaN for gaps, and a cure
    columns: dict[str, tuple[np.ndarray, str]] = {}
    for name in table.number_columns:
        columns[name] = table.read_numbers(name), f"add '{name}' to data.ignore of the plan"
    is_scored = any(mask.any() for mask in table.masks[1:])  # by squares of errors, whatever the objective
    if options.target_task.is_quantity and (is_scored or not isinstance(plan.experiment.objective, _BOUNDED)):
        cure = "objective=huber bounds what a row counts"
        if is_scored:
            cure += ", if no rows are held out"
        columns[options.target] = table.rows.y, cure
    for role in ("weight", "offset"):
        numbers = getattr(table.rows, role)
        if numbers is not None:
            columns[str(getattr(options, role))] = numbers, f"plan without data.{role}"
    obstacles = Obstacles()
    least = table.policy.min_cell
    for split, rows in enumerate(ROWS):
        sums = _list_column_sums(plan, table, split)
        for name, (cells, cure) in columns.items():
            few = _find_few_rows(table, sums, cells.astype(np.float64), split)
            if few is None:
                continue
            where = ""
            if few.is_difference and table.fold is not None:
                where = " of a fold"
                cure = f"{table.fold_cure}, {cure}"
            elif few.is_difference:
                where = " without weight"
                cure = f"plan without data.weight, {cure}"
            if split > 0:
                cure = f"hold out more rows or none (data.validation=0, data.test=0), {cure}"
            error = UserError(f"few {rows} rows{where} outweigh all others in the column '{name}': their numbers "
                              f"differ from the others like fewer than {least} equal rows, "
                              f"{table.allowed('min_cell')}: {cure}, or mend outliers in the file")  # fmt: skip
            obstacles.add([error])
    # A target of three numbers, one of which few training rows have, where intervals are planned: at a model of 0, the
    # Hessian, the gradient and the squared scores are three sums of features, weighted by 1, r and r^2 for residuals r.
    # They tell the sums over the rows of each of three values, of all rows, and of a client whose sums are told.
    if plan.infer is not None and options.target_task.is_quantity:
        y = table.rows.y
        for rows, _ in replace(table, fold=None).list_sums(table.uploads_by_client).list_sets(np.ones(len(y), bool)):
            values, number = np.unique(y[rows], return_inverse=True)
            if len(values) == 3 and min(table.patients.take(rows).count_parts(number, 3)) < least:
                few = table.describe_few("min_cell", "training rows")
                error = UserError(f"'{options.target}' has three values, and one of them in {few}, which intervals "
                                  "would tell: plan without --infer, or leave the site out")  # fmt: skip
                obstacles.add([error])
                break
    obstacles.raise_any()


def _list_column_sums(plan: Plan, table: SiteTable, split: int) -> SummedSets:
    """Return the sets of a split's rows over which products with a column are summed.

    Sums over held-out rows are of all clients together; those of personal models, of the clients with training rows.
    """
    if split == 0:
        return table.list_sums(table.sums_by_client)
    sums = table.list_sums(by_client=False, split=split)
    if not plan.experiment.algo.has_personal_models:
        return sums
    return replace(sums, client=(table.n_rows[:, 0] > 0).astype(int)[table.client_rows.client_index])


def _find_few_rows(table: SiteTable, sums: SummedSets, numbers: np.ndarray, split: int) -> SummedSet | None:
    """Return a set of rows of which a column of numbers (N,), NaN for gaps, tells few; None if there is no such set.

    A server that subtracts the fill of gaps has sums over the rows with a number alone. Training rows have many of them
    or none, by a rule on gaps; held-out rows need as many here as the policy asks of equal rows.
    """
    has_number = np.isfinite(numbers)  # other cells are gaps, or refused
    has_gaps = bool((sums.in_split & ~has_number).any())
    least = table.policy.min_cell
    for summed in sums.list_sets(has_number):
        patients = table.patients.take(summed.rows)
        n_patients = table.patients.count(summed.rows)
        if split == 0 and n_patients < table.policy.min_rows:  # refused by another rule
            continue
        is_few_beside_gaps = split > 0 and has_gaps and n_patients < least
        if is_few_beside_gaps or column_tells_few(numbers[summed.rows], patients, least, summed.is_difference):
            return summed
    return None


def check_batches(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for a client whose epochs have a short last batch of few rows, by a plan with minibatches.

    In a selection the rows outside of each fold are trained on, too. ``fcorun.engine.schedule.Schedule`` cuts the
    batches of an epoch.
    """
    settings = plan.experiment.settings
    if settings.batch_size is None:
        return
    minimum = table.policy.min_rows
    sizes = [(name, rows, "") for name, rows in zip(table.clients, table.n_rows[:, 0].tolist(), strict=True)]
    if table.fold is not None:
        for k in range(int(table.fold.max(initial=0)) + 1):
            rest = table.count_rows(table.fold != k)[:, 0].tolist()
            sizes += [(name, rows, f" outside of fold {k + 1}") for name, rows in zip(table.clients, rest, strict=True)]

    def find_short(batch_size: int) -> tuple[str, int, str] | None:
        """Return the first of the sets that batches of this size do not fit."""
        for size in sizes:
            if has_short_batch(size[1], batch_size, settings.local_steps, minimum):
                return size
        return None

    short = find_short(settings.batch_size)
    if short is None:
        return
    client, rows, where = short
    fitting = max(settings.batch_size, minimum)
    while find_short(fitting) is not None:  # batches as large as the largest client always fit
        fitting += 1
    raise UserError(f"client '{client}' has {rows} training rows{where}, of which batches of {settings.batch_size} "
                    f"leave {rows % settings.batch_size} for the last one, fewer than {minimum}, the least that "
                    f"policy.min_rows of this site allows: plan batch_size=null, or batch_size={fitting}, which fits "
                    "all clients of this site")  # fmt: skip


def has_short_batch(n_rows: int, batch_size: int, local_steps: int | None, minimum: int) -> bool:
    """Return whether a client draws a batch of fewer rows than ``minimum``, or leaves so few out of its batches.

    Steps that end before the last batch but one leave out more than ``batch_size`` rows.
    """
    n_whole, n_last = divmod(n_rows, batch_size)
    reaches_last = local_steps is None or local_steps >= n_whole
    return n_whole > 0 and 0 < n_last < minimum and reaches_last


def check_events(table: SiteTable) -> None:
    """Raise UserError for a client with few events, but some, among its rows of a set, and for a site without events.

    A partial likelihood is a sum over events: that of few events tells much of their rows.
    """
    minimum = table.policy.min_cell
    events = table.count_patients(table.rows.y > 0)
    for m, split in zip(*np.nonzero(are_few(events, minimum)), strict=True):
        few = table.describe_few("min_cell", f"events among its {SPLITS[split]} rows")
        raise UserError(f"client '{table.clients[m]}' has {few}: give other data.validation and "
                        "data.test, or leave the client out")  # fmt: skip
    if table.masks[0].any() and not events[:, 0].any():
        raise UserError("all training rows of this site are censored, so that they have no part in a partial "
                        "likelihood: leave the site out")  # fmt: skip


def check_intercepts(plan: Plan, table: SiteTable) -> None:
    """Raise OwnTableError for a client whose training rows, or those outside of a fold, give no finite intercept.

    Its rows would take the mean of the intercepts of all clients. No site knows the mean: of a site of one client, its
    part of the mean would be the client's intercept, which no message has.
    """
    untrained = np.flatnonzero(table.n_rows[:, 0] == 0)
    if len(untrained):
        fault = ("without training rows has no intercept, and its rows no prediction: leave the client out, hold out "
                 "other rows, or plan objective.client_intercepts=false")  # fmt: skip
        raise OwnTableError(f"client '{table.clients[untrained[0]]}' {fault}", f"a client {fault}")
    y = table.rows.y
    if table.options.target_task.has_classes:
        y = np.unique(y, return_inverse=True)[1]
    elif y.dtype.kind != "f":  # labels in place of numbers, which have an error of their own
        return
    weight = np.ones(len(y)) if table.rows.weight is None else table.rows.weight
    training = table.masks[0]
    sets = [(training, "")]
    if table.fold is not None:
        for k in range(int(table.fold.max(initial=-1)) + 1):
            sets.append((training & (table.fold != k), f" outside of fold {k + 1}"))
    index = table.client_rows.client_index
    for rows, where in sets:
        weights = np.where(rows, weight, 0.0)
        finite = has_finite_intercepts(plan.experiment.objective, y.astype(float), weights, index, len(table.clients))
        if not finite.all():
            targets = "one class" if table.options.target_task.has_classes else "targets of 0"
            fault = (f"with training rows of {targets} alone{where} has no finite intercept, and its rows no "
                     "prediction: leave the client out, or plan objective.client_intercepts=false")  # fmt: skip
            raise OwnTableError(f"client '{table.clients[int(finite.argmin())]}' {fault}", f"a client {fault}")


def check_classes_of_trained_clients(table: SiteTable) -> None:
    """Raise UserError if a class has some, but fewer than ``policy.min_cell``, held-out rows in one group of clients.

    The groups are the clients with training rows, which have personal models, and the others. Scores of personal models
    count the classes of the first group, and scores of the shared model those of both: their difference would show a
    small count of either.
    """
    if not table.options.target_task.has_classes:
        return
    minimum = table.policy.min_cell
    trains = (table.n_rows[:, 0] > 0)[table.client_rows.client_index]
    for split, mask in zip(SPLITS[1:], table.masks[1:], strict=True):
        sets = {"with": mask & trains, "without": mask & ~trains}
        if not all(rows.any() for rows in sets.values()):
            continue
        for of_clients, rows in sets.items():
            counts = [table.patients.count(rows & (table.rows.y == label)) for label in np.unique(table.rows.y[rows])]
            if min(counts) < minimum:
                few = table.describe_few("min_cell", f"{split} rows of clients {of_clients} training rows")
                raise UserError(f"a class of '{table.options.target}' has {few}: plan an algorithm "
                                "without personal models, or hold out other clients")  # fmt: skip
