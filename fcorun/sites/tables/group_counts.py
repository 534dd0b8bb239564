"""The rule on the groups of a site's rows, whose gradients a sum of squared scores adds up."""

import numpy as np

from fcorun.base.errors import UserError
from fcorun.sites.tables.table_rows import SiteTable


def check_groups(table: SiteTable) -> None:
    """Raise UserError for a site with few groups of training rows, whose squared scores it would withhold."""
    weight, group = table.weight_and_offset.get("weight"), table.rows.group
    assert group is not None
    is_counted = table.masks[0] if weight is None else table.masks[0] & (weight > 0)
    if 0 < len(np.unique(group[is_counted])) < table.policy.min_rows:
        raise UserError(f"this site has training rows of fewer than {table.policy.min_rows} groups, the least that "
                        "policy.min_rows of this site allows in a sum of squared scores: plan --infer cluster=none, "
                        "or leave the site out")  # fmt: skip
