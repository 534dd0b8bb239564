"""The rule on minibatches: neither a batch nor the rows that it leaves out are few rows of a client."""

from fcorun.base.errors import UserError
from fcorun.sites.plan.plan import Plan
from fcorun.sites.tables.table_rows import SiteTable


def check_batches(plan: Plan, table: SiteTable) -> None:
    """Raise UserError for a client whose epochs have a short last batch of few rows, by a plan with minibatches.

    In a selection the rows outside of each fold are trained on, too. ``fcorun.engine.schedule.Schedule`` cuts the
    batches of an epoch.
    """
    settings = plan.experiment.settings
    if settings.batch_size is None:
        return
    minimum, sizes = table.policy.min_rows, _list_sizes(table)

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


def _list_sizes(table: SiteTable) -> list[tuple[str, int, str]]:
    """Return the client, the number of rows, and where these rows are, of all sets that clients train on."""
    sizes = [(name, rows, "") for name, rows in zip(table.clients, table.n_rows[:, 0].tolist(), strict=True)]
    if table.fold is not None:
        for k in range(int(table.fold.max(initial=0)) + 1):
            rest = table.count_rows(table.fold != k)[:, 0].tolist()
            sizes += [(name, rows, f" outside of fold {k + 1}") for name, rows in zip(table.clients, rest, strict=True)]
    return [size for size in sizes if size[1]]
