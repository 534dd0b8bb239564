"""The rows and events of indicators, and the indicators that have too few of them for an interval."""

from dataclasses import dataclass

import numpy as np

from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.objectives.poisson import Poisson
from fcorun.results.inference.sums import RowSums, ValueCounts

MIN_COUNT = 5  # rows, events and rows without an event, of an indicator with an interval


@dataclass(frozen=True, eq=False)
class IndicatorCounts:
    """The rows and events of each feature that has two values, such as a level of a column of text.

    Attributes:
        is_indicator: whether a feature has two values (d,).
        counts: the counts at the lower value, without the level, and at the higher one, with the level.
        has_events: whether the target is events: of two classes, numbers of events, or times to events.
        has_two_classes: whether a target of two classes needs rows without an event, too.
        hides_few: whether a site's counts below its min_cell are 0 in these sums.
    """

    is_indicator: np.ndarray
    counts: ValueCounts
    has_events: bool
    has_two_classes: bool
    hides_few: bool = False

    @property
    def rows(self) -> np.ndarray:
        """The number of rows at the higher value, (d,), a lower bound where small counts are hidden.

        NaN of other features, and where a hidden sum is 0.
        """
        return np.where(self.is_indicator & self._is_known(self.counts.at_high), self.counts.at_high, np.nan)

    @property
    def events(self) -> np.ndarray:
        """The number of events of these rows, (d,); NaN like ``rows``, and for a target without events."""
        is_known = self._is_known(self.counts.target_at_high)
        return np.where(self.is_indicator & self.has_events & is_known, self.counts.target_at_high, np.nan)

    def _is_known(self, counts: np.ndarray) -> np.ndarray:
        """Return whether counts are numbers of rows, and not 0 in place of a few at each site."""
        return (counts > 0) | (not self.hides_few)

    def explain_few(self, feature: int, reference: int | None, names: tuple[str, ...]) -> str:
        """Return why a feature has too few rows or events for an interval, "" if it has enough.

        The residuals of so few rows, or of rows with almost no events, are all small, and so is a sandwich of them,
        whatever the coefficient. ``reference`` is the level that the feature is compared with, None: all other rows.
        """
        if not self.is_indicator[feature]:
            return ""
        counts = self.counts
        few_at_high = self._describe_few(counts.at_high[feature], counts.target_at_high[feature])
        if few_at_high:
            return few_at_high
        if reference is not None:
            few = self._describe_few(counts.at_high[reference], counts.target_at_high[reference])
            return few and f"{few} of {names[reference]}"
        few = self._describe_few(counts.at_low[feature], counts.target_at_low[feature])
        return few and f"{few} at its other value"

    def _describe_few(self, n_rows: int, events: float) -> str:
        """Return the rows, or the events or the rows without one, if these are too few, else ""."""
        few = describe_few(n_rows, int(events) if self.has_events else None, self.has_two_classes)
        return f"{few}, where sites report counts below min_cell as 0" if few and self.hides_few else few


def count_indicators(sums: RowSums, objective: LinearModel, n_features: int) -> IndicatorCounts:
    """Return the counts of the features with two values. Takes two passes over rows."""
    is_indicator, counts = sums.two_values()
    has_two_classes = isinstance(objective, Logistic)
    has_events = has_two_classes or isinstance(objective, (Poisson, Cox))
    return IndicatorCounts(
        is_indicator[:n_features],
        ValueCounts(*counts[:2], *(values[:n_features] for values in counts[2:])),  # without those of an intercept
        has_events,
        has_two_classes,
        hides_few=sums.hides_few,
    )


def describe_few(n_rows: int, n_events: int | None, has_two_classes: bool) -> str:
    """Return the rows, or the events or the rows without one, if these are fewer than 5, else "".

    ``n_events`` is None for a target without events. ``has_two_classes`` is whether a row has one event at most, and
    rows without an event are needed too.
    """
    in_rows = f"in {_count(n_rows, 'row')}"
    if n_rows < MIN_COUNT:
        return _count(n_rows, "row")
    if n_events is not None and n_events < MIN_COUNT:
        return f"{_count(n_events, 'event')} {in_rows}"
    if n_events is not None and has_two_classes and n_rows - n_events < MIN_COUNT:
        return f"{_count(n_rows - n_events, 'row')} without an event {in_rows}"
    return ""


def _count(number: int, name: str) -> str:
    """Return a number of things in words."""
    amount = f"{number:,}" if number else "no"
    return f"{amount} {name}" if number == 1 else f"{amount} {name}s"
