"""A warning about columns of text whose levels determine only differences of their coefficients."""

from fcorun.base.errors import abbreviate, word
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.objective import LinearModel


def warn_undetermined_levels(experiment: PreparedExperiment, data: FederatedData) -> list[str]:
    """Return a warning if nothing but a regularizer could fix the sum of the coefficients of a column's levels.

    The levels of a column add up to one in every row. An intercept absorbs a shift of their coefficients. In Cox's
    model the shift cancels among the rows of a client, so that levels of different clients are not comparable either.
    """
    objective, encoding, standardized = experiment.objective, data.features.encoding, data.features.standardized
    if encoding is None or not isinstance(objective, LinearModel) or objective.intercept or objective.ridge:
        return []
    if standardized and standardized["by"] != "pooled":
        return []
    names = [
        column.name
        for column in encoding.columns
        if column.adds_up_to_one and set(column.features) <= set(data.features.names)
    ]
    # without standardization, the levels of a single column take the place of the intercept that is left out
    needed = 1 if isinstance(objective, Cox) or standardized else 2
    if len(names) < needed:
        return []
    quoted = abbreviate([f"'{name}'" for name in names])
    pairs = "levels that occur at the same client" if isinstance(objective, Cox) else "a column's levels"
    return [word(f"the levels of {quoted} add up to one in every row: without a penalty, only differences between the "
            f"coefficients of {pairs} are determined, and not the coefficients; compare levels with each other, or "
            "give a `reg` or `objective.ridge`")]  # fmt: skip
