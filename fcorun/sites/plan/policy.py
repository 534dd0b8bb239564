"""The policy of a site: what its owner lets a study compute and receive."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from yaml import YAMLError

from fcorun.base.config import Count, build
from fcorun.base.errors import UserError
from fcorun.base.gone_options import drop_unused
from fcorun.base.records.formats import read_yaml
from fcorun.base.system.files import state_dir
from fcorun.data.datasets.dataset import Features
from fcorun.data.rows.rows import Rows
from fcorun.experiment.optimum import MAX_GRADIENTS
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.sites.plan.patients import Patients, are_few
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import MAX_DERIVATIVES
from fcorun.sites.plan.site_options import Obstacles

_ROWS_PER_FEATURE = 3  # with fewer rows a Hessian tells much of single rows


@dataclass(frozen=True)
class Policy:
    """The rules of a site. What an answer must keep is checked at the site, before the answer leaves.

    Attributes:
        min_rows: the least number of rows of each set that an answer sums over: the training, validation or test rows
            of a client, and its training rows with a number in a column with gaps. With missing=indicator also its
            training rows with a gap. It bounds a batch, too. All rows but those of a batch count as ``Patients``.
        min_cell: the least count of a level, of a class in a split or fold, of training rows with a gap in a column of
            text, of held-out rows with and without a gap, of a sum of scores, and of a cell of a histogram.
        alone: whether a Hessian of fewer than three rows for each feature may leave the site; of each client's rows
            where clients fit their own losses; and Hessians of several models where few rows have a rare value.
        by_site: whether results of the rows of this site alone may be in the record.
        columns: the columns of the file that may be used, by their names in the file; None: all.
        max_rounds: the largest number of rounds of a plan, those of all runs of a selection together.
        max_runs: the largest number of runs of a plan that the site begins. fcorun's own server begins one.
        log_contents: whether the log of what was sent has the contents, too.
        ledger: the folder of the ledger of all plans that this owner's sites have answered; None: a folder of the user.
        row_id: the column of the file that names a row or a patient, by which the ledger knows rows of other versions
            of the file; None: the ledger knows them by the columns that plans read.
    """

    min_rows: Count = 10
    min_cell: Count = 3
    alone: Literal["refuse", "allow"] = "refuse"
    by_site: Literal["refuse", "allow"] = "refuse"
    columns: list[str] | None = None
    max_rounds: Count = 10_000
    max_runs: Count = 1
    log_contents: bool = False
    ledger: str | None = None
    row_id: str | None = None

    @property
    def ledger_folder(self) -> Path:
        """The absolute folder of the ledger."""
        return state_dir("site_ledger") if self.ledger is None else Path(self.ledger).expanduser().absolute()

    @classmethod
    def read(cls, path: str | Path | None) -> "Policy":
        """Read a policy from a YAML file; None: the default. Raises UserError for a file that is no policy."""
        if path is None:
            return cls()
        try:
            values = read_yaml(Path(path))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"policy={path} cannot be read ({reason}): give a YAML file of the rules to change"
                            ) from error  # fmt: skip
        except YAMLError as error:
            raise UserError(f"policy={error}: give a line KEY: VALUE for each rule to change") from error
        return build(cls, drop_unused("policy", values), "policy")

    def check_plan(self, plan: Plan) -> None:
        """Raise UserError for a plan that the policy forbids, ObstaclesError where it forbids several things."""
        errors = []
        settings = plan.experiment.settings
        if plan.shared_options.by_site and self.by_site == "refuse":
            errors.append(UserError("the plan has data.by_site=true, results of the rows of each site alone, which "
                                    "policy.by_site of this site refuses: its owner may write by_site: allow")
                          )  # fmt: skip
        if plan.select is not None and plan.select.by == "clients" and self.by_site == "refuse":
            errors.append(UserError("the plan has by=clients, where a fold may hold out this site alone, and "
                                    "policy.by_site of this site refuses results of its rows alone: its owner may "
                                    "allow them, by_site: allow, or the plan takes by=rows"))  # fmt: skip
        rounds = plan.n_rounds + (MAX_GRADIENTS if settings.reference else 0)
        rounds += MAX_DERIVATIVES if plan.infer is not None else 0
        if rounds > self.max_rounds:
            parts = f", {MAX_GRADIENTS} of them for reference=true" if settings.reference else ""
            parts += f", {MAX_DERIVATIVES} of them for --infer" if plan.infer is not None else ""
            errors.append(UserError(f"the plan has {rounds} rounds{parts}, and policy.max_rounds of this site allows "
                                    f"{self.max_rounds}"))  # fmt: skip
        if settings.batch_size is not None and settings.batch_size < self.min_rows:
            errors.append(UserError(f"the plan has batches of {settings.batch_size} rows, and policy.min_rows of this "
                                    f"site is {self.min_rows}: plan batch_size=null, or {self.min_rows} and more")
                          )  # fmt: skip
        Obstacles(errors).raise_any()

    def check_rows(
        self, plan: Plan, n_patients: float, by_client: Sequence[float], features: int, where: str = ""
    ) -> None:
        """Raise UserError if the Hessian of so few patients, ``where``, may not leave the site; a masked one may.

        A site without training rows sends none. Where clients fit their own losses, an upload has a Hessian, or the
        variances that follow from one, of the rows of each client, and so do uploads of single clients that are told.

        Args:
            n_patients, by_client: what ``SiteTable.count_in_hessian`` returns.
        """
        algo = plan.algorithm
        sender = f"algo={plan.experiment.names['algo']}" if algo.traits.hessian or algo.traits.local_fits else ""
        if plan.infer is not None and not where:  # of all training rows
            sender = sender or "--infer"
        owner = "this site"
        if algo.traits.local_fits or plan.tells_whole_uploads:
            n_patients = min((count for count in by_client if count), default=0)
            owner = "a client of this site"
        if not sender or not n_patients or self.alone == "allow" or plan.is_masked:
            return
        needed = _ROWS_PER_FEATURE * features
        if n_patients < needed:
            raise UserError(f"{sender} sends a Hessian of {features} features, and {owner} has {int(n_patients)} "
                            f"training rows{where}{_describe_counted(plan)}, fewer than {needed}: its owner may allow "
                            "it by policy.alone=allow, or the plan sends none")  # fmt: skip

    def check_rare_features(
        self,
        plan: Plan,
        rows: Rows,
        features: Features,
        curve_parts: Sequence[tuple[str, np.ndarray]] = (),
        where: str = "",
    ) -> None:
        """Raise UserError if several Hessians would tell the few rows in which a feature has a rare value.

        Such a feature's line of a Hessian is, up to known constants, a sum of these rows, whose weights differ with the
        model. Several models give the span of the rows, which is all vectors only if the rows are as many as the
        numbers of the line. A masked sum tells them, too, where no other site has such rows. With intercepts of
        clients, a client whose rows have one value adds nothing to the line. Where uploads of single clients are told,
        the rows are those of each client.

        Args:
            rows: the training rows of the site, ``where``.
            features: the descriptions of their features.
            curve_parts: for each combination of a curve's features that is 0 elsewhere, the name of the column and the
                mask of the rows of the table.
        """
        algo = plan.algorithm
        in_rounds = algo.traits.hessian or algo.traits.local_fits
        sends_several = in_rounds and (plan.n_rounds > 1 or plan.select is not None)
        if plan.infer is not None and not where:  # of all training rows
            sends_several = True
        # the Hessian of least squares is the same at all models
        if not sends_several or isinstance(plan.experiment.objective, LeastSquares) or self.alone == "allow":
            return
        patients = Patients.of_rows(rows)
        has_weight = patients.has_weight(len(rows))
        patients = patients.take(has_weight)
        x = np.asarray(rows.x)[has_weight]
        client = np.unique(rows.known_client[has_weight], return_inverse=True)[1]
        n_clients = int(client.max(initial=0)) + 1
        told_client = client if plan.tells_whole_uploads else np.zeros_like(client)
        scales_by_client = features.standardized_by == "per_client"
        if not scales_by_client and not plan.tells_uploads:
            client = np.zeros_like(client)  # equal values are equal numbers in the rows of all clients
        owner = "a client of this site" if plan.tells_whole_uploads else "this site"
        counted = _describe_counted(plan)
        needed = x.shape[1] + 2  # a line has an intercept, and one row more than numbers tells nothing
        rarity = []
        for name, part in curve_parts:
            rarity.append((f"a spline of '{name}' may be 0 but", part[rows.row][has_weight]))
        for name, column in zip(features.names, x.T, strict=True):
            is_rare = np.zeros(len(column), bool)
            for m in np.unique(client):
                values, counts = np.unique(column[client == m], return_counts=True)
                is_rare |= (client == m) & (column != values[counts.argmax()])
            rarity.append((f"the feature '{name}' has other values than its most frequent one", is_rare))
        for what, is_rare in rarity:
            counts = patients.count_parts(np.where(is_rare, told_client, -1), n_clients)
            if are_few(counts, needed).any():
                raise UserError(f"the plan sends Hessians of several models, and {what} in fewer than {needed} "
                                f"training rows of {owner}{where}{counted}, which would tell these rows: add its "
                                "column to data.ignore of the plan, plan an algo that sends gradients, or the site's "
                                "owner allows it by policy.alone=allow")  # fmt: skip


def _describe_counted(plan: Plan) -> str:
    """Return a clause on rows that do not count one each, or ""."""
    has_columns = plan.shared_options.weight or plan.shared_options.group
    return ", where they count by weights and groups" if has_columns else ""
