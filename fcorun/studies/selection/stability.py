"""Options of ``fcorun stability``, scores of features, and the result with its tables, picture, maps and lines.

Meinshausen and Buehlmann, Stability selection (J. R. Stat. Soc. B 2010); with complementary pairs of halves, Shah and
Samworth, Variable selection with error control (J. R. Stat. Soc. B 75(1), 2013), whose bounds on the expected number of
false selections are computed. d features are chosen or not on each half of B complementary pairs. q is the expected
number that a half chooses, and theta = q / d. A feature is stable if the share of the 2B halves that choose it is at
least a threshold tau. The bounds are on the expected number of stable features whose probability of being chosen on a
half is at most theta.

Each voxel is judged by itself, by the same threshold and the same bound as any feature: no cluster of neighbours is
formed, and none is left out for its size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.config import Count, Positive
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.formats import frame_csv
from fcorun.base.records.record import VOXEL_FILES
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.label_file import label_column
from fcorun.methods.regularizers.regularizer import Regularizer
from fcorun.reports.pictures.brain import BrainMaps, VoxelMap, draw_maps
from fcorun.reports.pictures.layout import curve_style, make_figure, pt, render_picture, shorten_name, style_context
from fcorun.reports.pictures.selection_picture import (
    MAX_LETTERS,
    PARAMETER_LABELS,
    format_path_axis,
    label_curve_ends,
)
from fcorun.results.inference.methods import AFTER_SELECTION
from fcorun.results.models.coefficients import feature_names, mask_image, weights_image
from fcorun.studies.selection.study import StudyResult, format_cost

Assumption = Literal["none", "unimodal", "r_concave"]
_MAX_NAMED_FEATURES = 20  # in a line
_MAX_FEATURES = 8  # with a name in the margin of the picture
_MAX_NAMED_CLIENTS = 12  # in the picture
_MAX_NUMBERED_CLIENTS = 8  # up to which indices are written into the cells
_ASSUMPTIONS: dict[Assumption, str] = {
    "unimodal": "assumption=unimodal is assumed, not tested: the share of the pairs of which both halves choose such a "
    "feature has a unimodal distribution (Shah and Samworth 2013, theorem 2)",
    "r_concave": "assumption=r_concave is assumed, not tested: of such a feature, the share of the pairs of which both "
    "halves choose it has a -1/2-concave distribution, and the share of the halves a -1/4-concave one (Shah and "
    "Samworth 2013)",
}


@dataclass(frozen=True, eq=False)
class SelectionUnits:
    """The units that a half chooses or not: d features, or U groups of features.

    Attributes:
        names: the names of the U units.
        unit_of: the unit of each feature, (d,).
        unpenalized: the units without a penalty, (U,).
        are_groups: whether the regularizer keeps or drops the features of a unit together.
    """

    names: Sequence[str]
    unit_of: Int[np.ndarray, " d"]
    unpenalized: Bool[np.ndarray, " U"]
    are_groups: bool

    @classmethod
    def of_regularizer(cls, reg: Regularizer, feature_names: Sequence[str]) -> "SelectionUnits":
        """Return the groups of a regularizer that was attached to named groups; the features for any other."""
        factors = reg.factors or {}
        is_free = np.array([factors.get(str(j)) == 0 for j in range(len(feature_names))])
        group_of = getattr(reg, "group_of", None)
        if group_of is None:
            return cls(feature_names, np.arange(len(feature_names)), is_free, are_groups=False)
        names: Sequence[str] = reg.names  # type: ignore[attr-defined]
        unpenalized = np.bincount(group_of, is_free, len(names)) > 0  # all features of a group have one factor
        return cls(names, group_of, unpenalized, are_groups=True)

    @property
    def noun(self) -> str:
        """The units in words."""
        return "groups of features" if self.are_groups else "features"

    def merge(self, chosen: Bool[np.ndarray, "*n d"]) -> Bool[np.ndarray, "*n U"]:
        """Return which units are chosen: those with a chosen feature."""
        if not self.are_groups:
            return chosen
        return np.stack([chosen[..., self.unit_of == unit].any(axis=-1) for unit in range(len(self.names))], axis=-1)


_R_OF_PAIRS, _R_OF_HALVES = -1 / 2, -1 / 4  # the paper's choice
_GRID_POINTS = 400
_REFINEMENTS = 4
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1e-9, 1e6


def bound_false_selections(
    q: Float[np.ndarray, " P"], n_features: int, threshold: float, n_pairs: int, assumption: Assumption
) -> Float[np.ndarray, " P"]:
    """Return the bound for each expected number ``q`` of features that a half chooses, (P,).

    No bound exceeds that of "none". A bound under an assumption whose conditions a value of q does not meet is that of
    the weaker assumption.
    """
    steps = math.ceil(2 * n_pairs * threshold - 1e-9)  # the halves that must choose a stable feature
    bound = q**2 / ((2 * threshold - 1) * n_features)
    if assumption == "none":
        return bound
    theta = q / n_features
    constants = np.array([_compute_unimodal_constant(share, steps, n_pairs) for share in theta])
    bound = np.fmin(bound, constants * q**2 / n_features)
    if assumption == "r_concave":
        # A stable feature is chosen by both halves of a share 2 tau - 1 of the pairs at least, and by a share tau of
        # the halves. The shares have means theta^2 and theta.
        for i, share in enumerate(theta):
            both = compute_tail(share**2, steps - n_pairs, n_pairs, _R_OF_PAIRS)
            single = compute_tail(share, steps, 2 * n_pairs, _R_OF_HALVES)
            bound[i] = np.minimum(bound[i], min(both, single) * n_features)
    return bound


def _compute_unimodal_constant(theta: float, steps: int, n_pairs: int) -> float:
    """Return the factor of q^2 / d in theorem 2; NaN if the theorem has no bound for this share and threshold."""
    tau = steps / (2 * n_pairs)
    smallest = 0.5 + min(theta**2, 1 / (2 * n_pairs) + 0.75 * theta**2)
    if theta > 1 / math.sqrt(3) or steps < n_pairs + 2 or tau <= smallest:
        return math.nan
    if tau <= 0.75:
        return 1 / (2 * (2 * tau - 1 - 1 / (2 * n_pairs)))
    return 4 * (1 - tau + 1 / (2 * n_pairs)) / (1 + 1 / n_pairs)


def compute_tail(mean: float, steps: int, n_points: int, r: float) -> float:
    """Compute D(mean, steps / n_points, n_points, r), the largest upper tail of an r-concave distribution.

    The distributions are on 0, 1 / n_points, ..., 1, and have this mean. In the one with the largest tail the masses
    of 0, ..., k are proportional to (shift + i)^(1 / r), and k + 1 has the mass that gives the mean. The support grows
    as the shift falls, so that the shift alone remains to be chosen: on a grid, refined around the best point.
    Returns 1 if ``steps`` is at most twice the mean, where the tail has another form.
    """
    target = mean * n_points
    if mean <= 0:
        return 0.0
    if steps < math.ceil(2 * target) + 1:
        return 1.0
    low = _find_smallest_shift(target, n_points, r)
    high = _LARGEST_SHIFT
    for _ in range(_REFINEMENTS):
        shifts = np.geomspace(low, high, _GRID_POINTS)
        mass, moment = _sum_masses(shifts, n_points, r)
        k = (moment <= target * mass).sum(axis=1) - 1
        k = np.minimum(k, n_points - 1)
        each = np.arange(len(shifts))
        below = mass[each, np.minimum(steps - 1, k)]
        total = ((k + 1) * mass[each, k] - moment[each, k]) / (k + 1 - target)
        tails = np.where(k + 1 >= steps, 1 - below / total, 0.0)  # the probability of ``steps`` or more, (A,)
        best = int(tails.argmax())
        low = shifts[max(best - 1, 0)]
        high = shifts[min(best + 1, _GRID_POINTS - 1)]
    return float(tails[best])


def _find_smallest_shift(target: float, n_points: int, r: float) -> float:
    """Find the shift at which the masses of 0, ..., n_points have the mean ``target`` by themselves, by bisection."""
    low = _SMALLEST_SHIFT
    high = _LARGEST_SHIFT
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        mass, moment = _sum_masses(np.array([middle]), n_points, r)
        if moment[0, -1] < target * mass[0, -1]:
            low = middle
        else:
            high = middle
    return high


def _sum_masses(
    shifts: Float[np.ndarray, " A"], n_points: int, r: float
) -> tuple[Float[np.ndarray, "A K"], Float[np.ndarray, "A K"]]:
    """Return the summed masses of 0, ..., k and their first moments, for each shift and each k up to n_points."""
    points = np.arange(n_points + 1)
    masses = (1 + points / shifts[:, None]) ** (1 / r)
    return masses.cumsum(axis=1), (points * masses).cumsum(axis=1)


@dataclass(frozen=True)
class StabilityScores:
    """Selection frequencies of d features on the halves, the bound on false selections, and the stable features.

    Attributes:
        frequency: the share of the halves on which each feature is chosen at each value of the path, (P, d); NaN for
            features that are not penalized.
        region_length: the number of values, from the beginning of the path, for which the bound holds (at least 1).
        q: for each value, the number of features that a half has chosen at this or an earlier value, averaged over the
            halves, (P,).
        bound: the bound on the expected number of false selections, if the region ended at each value, (P,).
        max_frequency: the largest frequency of each feature in the region, (d,); NaN for features that are not
            penalized.
        stable: the features whose largest frequency is at least the threshold, (d,).
    """

    frequency: Float[np.ndarray, "P d"]
    region_length: int
    q: Float[np.ndarray, " P"]
    bound: Float[np.ndarray, " P"]
    max_frequency: Float[np.ndarray, " d"]
    stable: Bool[np.ndarray, " d"]

    @property
    def unpenalized(self) -> Bool[np.ndarray, " d"]:
        """The features that are not penalized, (d,)."""
        return np.isnan(self.max_frequency)


def score_features(
    chosen: Bool[np.ndarray, "S P d"],
    threshold: float,
    max_errors: float,
    unpenalized: Bool[np.ndarray, " d"] | None = None,
    assumption: Assumption = "none",
) -> StabilityScores:
    """Score features by their selection on S halves at P values, ordered from the simplest solution.

    A feature is stable if, at some value of the region, the share of halves that choose it is at least ``threshold``,
    which must exceed 1/2. The region is the longest beginning of the path for which the bound on false selections under
    the ``assumption`` is at most ``max_errors``; the region has at least one value. In q, a half counts each feature
    that it chooses anywhere in the region. ``unpenalized`` features always have a coefficient: they are neither chosen
    nor counted, in q and in the bound.
    """
    unpenalized = np.zeros(chosen.shape[2], bool) if unpenalized is None else unpenalized
    n_penalized = int((~unpenalized).sum())
    frequency = np.where(unpenalized, np.nan, chosen.mean(axis=0))
    chosen_so_far = np.logical_or.accumulate(chosen[:, :, ~unpenalized], axis=1)
    q = chosen_so_far.sum(axis=2).mean(axis=0)
    bound = bound_false_selections(q, n_penalized, threshold, len(chosen) // 2, assumption)
    holds_so_far = np.logical_and.accumulate(bound <= max_errors)
    region_length = max(int(holds_so_far.sum()), 1)
    max_frequency = frequency[:region_length].max(axis=0)
    return StabilityScores(
        frequency=frequency,
        region_length=region_length,
        q=q,
        bound=bound,
        max_frequency=max_frequency,
        stable=max_frequency >= threshold - 1e-12,
    )


def compute_jaccard(supports: Bool[np.ndarray, "M d"]) -> Float[np.ndarray, "M M"]:
    """Compute the Jaccard index |A and B| / |A or B| of every two supports; NaN if both are empty."""
    members = supports.astype(np.float64)
    sizes = members.sum(axis=1)
    intersection = members @ members.T
    union = sizes[:, None] + sizes[None] - intersection
    return np.divide(intersection, union, out=np.full(union.shape, np.nan), where=union > 0)


@dataclass(frozen=True)
class StabilityOptions:
    """Options of ``fcorun stability``, beside a configuration.

    Attributes:
        subsamples: the number of halves, two in each pair.
        points: the number of values of the path, at least 2.
        by: "rows" halves the rows of each client, "clients" the clients.
        threshold: the share of the halves on which a stable feature is chosen, over 1/2.
        max_errors: the largest expected number of false selections; the path is followed as far as this bound holds.
        assumption: the assumption of the bound on the distribution of the share of pairs, or halves, that choose a
            feature by chance: "none", "unimodal", or "r_concave".
        refit: whether a model without a penalty is fitted to the stable columns of a table.
        range: the least and the largest strength or radius; None: computed from the data.
    """

    subsamples: Count = 100
    points: Count = 20
    by: Literal["rows", "clients"] = "rows"
    threshold: float = 0.75
    max_errors: Positive = 1.0
    assumption: Assumption = "none"
    refit: bool = False
    range: list[float] | None = None

    def __post_init__(self):
        if self.subsamples % 2:
            raise UserError(f"`subsamples={self.subsamples}` come in pairs of halves: give an even number")
        if self.points < 2:
            raise UserError(f"`points={self.points}` must be at least 2")
        if not 0.5 < self.threshold <= 1:
            raise UserError(f"`threshold={self.threshold:g}` must be over 0.5, or no bound holds, and at most 1")


@dataclass(frozen=True, kw_only=True, repr=False)
class StabilityResult(StudyResult):
    """Result of a stability selection.

    Attributes:
        scores: the frequency of each unit, and the stable units.
        client_similarity: the Jaccard indices of the supports of the clients' own solutions at the end of the region,
            (M, M); NaN for a client without a solution; None if no client has a solution of its own.
        units: the features, or groups of features, that a half chooses or not.
        refit_columns: the columns of the refit; None without one.
    """

    options: StabilityOptions
    units: SelectionUnits
    scores: StabilityScores
    client_similarity: np.ndarray | None
    refit_columns: list[str] | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the refit, if one follows from the options and the columns, is done."""
        return self.refit_columns is None or super().is_complete

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the d features."""
        return name_features(self.data)

    @property
    def halves_of(self) -> str:
        """The units that halves are drawn from: "rows", "clients", or "groups" (data.group)."""
        if self.options.by == "rows" and self.data.train.group is not None:
            return "groups"
        return self.options.by

    @property
    def unpenalized(self) -> list[str]:
        """The names of the units that are not penalized."""
        return list(compress(self.units.names, self.scores.unpenalized))

    @property
    def mean_similarity(self) -> float | None:
        """The mean similarity of two clients; None if no two clients have one."""
        if self.client_similarity is None:
            return None
        pairs = self.client_similarity[np.triu_indices(len(self.client_similarity), 1)]
        return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else None

    def write_files(self) -> Callable[[], None]:
        """Write stability.csv, clients.csv, stability.json, which says "running"; then the picture, and maps of voxels.

        stability.csv has a row for each feature, from the most to the least frequent; features without penalty come
        last. clients.csv has the similarity of the clients' own supports.
        """
        write_atomically(self.folder / "stability.csv", frame_csv(self._tabulate_features()))
        if self.client_similarity is not None:
            write_atomically(self.folder / "clients.csv", frame_csv(self.tabulate_clients()))
        self.write_summary()

        def write_pictures() -> None:
            for name, content in {**draw_stability(self), **self._map_voxels()}.items():
                write_atomically(self.folder / name, content)

        return write_pictures

    def summarize(self) -> dict[str, Any]:
        """Return the keys of stability.json about the features."""
        path, scores = self.path, self.scores
        last = scores.region_length - 1
        return {
            "region": [float(path.values[0]), float(path.values[last])],
            "threshold": self.options.threshold,
            "subsamples": self.options.subsamples,
            "by": self.options.by,
            "halves_of": self.halves_of,
            "units": self.units.noun,
            "features": int((~scores.unpenalized).sum()),
            "unpenalised": self.unpenalized,
            "q": float(scores.q[last]),
            "assumption": self.options.assumption,
            "bound": float(scores.bound[last]),
            "bound_statement": self.state_bound(),
            "judged": self.state_judged_part(),
            "stable": list(compress(self.units.names, scores.stable)),
            "refit": self.refit_columns,
            "jaccard": self.mean_similarity,
        }

    def _tabulate_features(self) -> Any:
        """Return a frame with a row for each feature; PARAM_reached is the first value at which it is frequent."""
        import pandas as pd

        scores, path = self.scores, self.path
        is_frequent = scores.frequency >= self.options.threshold - 1e-12
        first_value = np.where(is_frequent.any(axis=0), path.values[is_frequent.argmax(axis=0)], np.nan)
        columns = {"feature": self.units.names, "stable": scores.stable}
        if scores.unpenalized.any():
            columns["penalised"] = ~scores.unpenalized
        columns |= {"frequency": scores.max_frequency, f"{path.param_name}_reached": first_value}
        values = [f"{path.param_name}={value:.6g}" for value in path.values]
        frame = pd.concat([pd.DataFrame(columns), pd.DataFrame(scores.frequency.T, columns=values)], axis=1)
        return frame.iloc[np.argsort(-scores.max_frequency, kind="stable")]

    def tabulate_clients(self) -> Any:
        """Return a frame with the similarity of every two clients."""
        import pandas as pd

        names = self.data.client_names
        frame = pd.DataFrame(self.client_similarity, columns=names)
        frame.insert(0, "client", names, allow_duplicates=True)  # a client may have this name
        return frame

    def describe(self) -> Iterator[str]:
        """Yield the stable features, the bound and its assumptions, clients, warnings, the cost, and the files."""
        scores, names, path = self.scores, self.units.names, self.path
        order = np.argsort(-scores.max_frequency, kind="stable")
        stable = [f"{names[j]} ({scores.max_frequency[j]:.2f})" for j in order if scores.stable[j]]
        yield (
            f"{len(stable)} of {len(names) - len(self.unpenalized)} {self.units.noun} are stable, chosen on at least "
            f"{self.options.threshold:g} of the halves{self.state_judged_part()}: "
            f"{abbreviate(stable, _MAX_NAMED_FEATURES) or 'none'}"
        )
        if self.units.are_groups:
            yield "a group, such as a column with its levels, is chosen if any of its features is, and counts once"
        if self.unpenalized:
            yield word(f"not penalized (`reg.factors`), so neither chosen nor counted: {', '.join(self.unpenalized)}")
        yield from self.state_bound()
        if self.mean_similarity is not None:
            yield (
                f"clients by themselves, {path.param_name}={path.values[scores.region_length - 1]:.4g}: two of them "
                f"share {self.mean_similarity:.2f} of what either chooses (Jaccard index, mean over pairs)"
            )
        yield from self.warnings
        yield f"this cost {format_cost(self.cost)}"
        if self.record is not None and self.refit_columns is not None:
            yield (
                f"{self.record.folder}: all training rows, without a penalty, columns "
                f"{', '.join(self.refit_columns)}: {self.end_of_refit}"
            )
            yield word(f"{self.record.folder}: {AFTER_SELECTION}")
        files = ["stability.csv", "stability.png"]
        if self.client_similarity is not None:
            files.insert(1, "clients.csv")
        if self.data.features.voxel_grid is not None:
            files += [*VOXEL_FILES, "brain.png"]
        yield f"{self.folder}/ holds {', '.join(files)}"

    def state_bound(self) -> list[str]:
        """Return sentences: the bound on false selections, and its assumptions."""
        scores, options, path = self.scores, self.options, self.path
        last = scores.region_length - 1
        q, bound = scores.q[last], scores.bound[last]
        n_features = int((~scores.unpenalized).sum())
        excess = word(f" (more than `max_errors={options.max_errors:g}`)") if bound > options.max_errors else ""
        label = "bound: q^2 / ((2 threshold - 1) d) ="
        if options.assumption != "none":
            label = f"bound with assumption={options.assumption}:"
        independence = {
            "rows": "rows are drawn independently within each client",
            "groups": word("groups of rows (`data.group`) are drawn independently"),
            "clients": "rows are drawn independently among the clients",
        }[self.halves_of]
        sentences = [
            f"{label} {bound:.3g}{excess}, with q = {q:.3g} of d = {n_features} {self.units.noun} chosen on a half, "
            f"for {path.param_name} from {path.values[0]:.4g} to {path.values[last]:.4g}",
            f"so many stable {self.units.noun} are expected at most whose chance on a half is q / d or less, if "
            f"{independence} (Shah and Samworth 2013, theorem 1); these are the false ones, if noise features are "
            "exchangeable and the choice no worse than guessing (Meinshausen and Buehlmann 2010, theorem 1); q was "
            "estimated from these rows, and the path's end chosen by it",
        ]
        if options.assumption != "none":
            n_pairs = options.subsamples // 2
            (weaker,) = bound_false_selections(scores.q[[last]], n_features, options.threshold, n_pairs, "none")
            comparison = f"without an assumption the bound is {weaker:.3g}"
            if bound >= weaker:
                comparison = "such an assumption gives no smaller bound for this q and threshold"
            sentences.append(f"{_ASSUMPTIONS[options.assumption]}; {comparison}")
        return sentences

    def state_judged_part(self) -> str:
        """Return a clause that names the settings if the bound leaves only the path's first value to judge; else ""."""
        options, scores = self.options, self.scores
        if scores.region_length > 1 or scores.bound[0] > options.max_errors:
            return ""
        return word(
            f" at the first of {options.points} values of the {self.path.param_name}, the only one that "
            f"`points={options.points}`, `threshold={options.threshold:g}` and `max_errors={options.max_errors:g}` "
            "leave to judge (a larger one of them judges more)"
        )

    def _map_voxels(self) -> dict[str, bytes]:
        """Return the contents of VOXEL_FILES and of a picture, of features that are voxels; nothing for others.

        frequency.nii.gz has the frequency of each voxel that stability.csv has, 0 for voxels that are not penalized,
        and stable.nii.gz 1 at stable voxels.
        """
        grid, scores, options, path = self.data.features.voxel_grid, self.scores, self.options, self.path
        if grid is None:
            return {}
        frequency = np.nan_to_num(scores.max_frequency)[self.units.unit_of]
        stable = scores.stable[self.units.unit_of]
        n_halves = f"{options.subsamples} halves"
        region = f"from {path.param_name} {path.values[0]:.3g} to {path.values[scores.region_length - 1]:.3g}"
        n_chosen = f"{int((frequency > 0).sum()):,} of {len(frequency):,}"
        chosen = f"largest share of the {n_halves} that choose a voxel, {region}: {n_chosen} are chosen"
        stable_voxels = f"stable voxels, chosen on at least {options.threshold:g} of the halves: {int(stable.sum()):,}"
        rows = [(chosen, frequency), (stable_voxels, frequency * stable)]
        drawn = [VoxelMap(text, values, "viridis_r", 0, 1) for text, values in rows]
        title = f"{self.experiment.picture_title}: stability selection on {n_halves} by {self.halves_of}"
        settings = self.experiment.settings
        with style_context(self.experiment.picture_style):
            titles = [title, "voxel by voxel, without clusters, axial slices (z in mm)"]
            pictures = render_picture("brain", draw_maps(BrainMaps(grid, drawn, titles)), settings)
        return {
            "mask.nii.gz": mask_image(grid),
            "frequency.nii.gz": weights_image(grid, frequency[:, None]),
            "stable.nii.gz": weights_image(grid, stable[:, None].astype(np.float32)),
            **pictures,
        }


def name_features(data: FederatedData) -> tuple[str, ...]:
    """Return the names of the d features of the data."""
    features = data.features
    return feature_names(features.names, features.shape or data.train.x.shape[1:], features.voxel_grid)


def draw_stability(result: StabilityResult) -> dict[str, bytes]:
    """Return the contents of the picture's files."""
    settings = result.experiment.settings
    with style_context(result.experiment.picture_style):
        options = result.options
        halves = f"{options.subsamples} halves by {result.halves_of}"
        title = f"{result.experiment.picture_title}: stability selection on {halves}"
        similarity = result.client_similarity
        n_panels = 1 if similarity is None else 2
        figure, axes = make_figure(n_panels, n_panels, height=2.4, title=[title])
        _draw_frequencies(axes[0], result)
        if similarity is not None:
            _draw_similarity(figure, axes[1], result, similarity)
        return render_picture("stability", figure, settings)


def _draw_frequencies(ax: Any, result: StabilityResult) -> None:
    """Draw the share of the halves that choose each feature: the most frequent with names, stable ones thick."""
    scores, options, values = result.scores, result.options, result.path.values
    # by their largest frequency in the region, then by their mean frequency on the path
    mean = scores.frequency.mean(axis=0)
    order = np.lexsort((-mean, -scores.max_frequency))
    named = [int(j) for j in order[:_MAX_FEATURES] if mean[j] > 0]
    unnamed = np.setdiff1d(np.flatnonzero(scores.frequency.max(axis=0) > 0), named)
    for is_stable, color, width in ((False, "0.7", 0.4), (True, "0.5", 1.8)):
        curves = scores.frequency[:, unnamed[scores.stable[unnamed] == is_stable]]
        if curves.size:
            ax.plot(values, curves, color=color, linewidth=pt(width), rasterized=curves.shape[1] > 500)
    for i, j in enumerate(named):
        width = pt(1.8 if scores.stable[j] else 0.8)
        ax.plot(values, scores.frequency[:, j], **curve_style(i).line_kwargs, linewidth=width)
    ax.axhline(options.threshold, color="0.2", linewidth=pt(0.7), linestyle="--")
    if scores.region_length < len(values):
        ax.axvspan(values[scores.region_length - 1], values[-1], color="0.92", linewidth=0, zorder=0)
    format_path_axis(ax, result.path.param_name, values)
    ax.set(
        ylim=(-0.03, 1.03),
        xlabel=f"{PARAMETER_LABELS[result.path.param_name]}\nthick: stable; white: bound ≤ {options.max_errors:g}",
        ylabel=f"share of {options.subsamples} halves\non which a feature is chosen",
    )
    ax.margins(x=0)
    features = result.data.features
    names: Sequence[str] = result.units.names
    if result.units.are_groups:
        names = [label_column(name, features.labels) for name in names]
    elif features.labels:
        names = features.display_names
    # curves that end at one height keep the order of their frequency
    label_curve_ends(ax, [(scores.frequency[-1, j] - 1e-6 * i, i, names[j]) for i, j in enumerate(named)])


def _draw_similarity(figure: Any, ax: Any, result: StabilityResult, similarity: np.ndarray) -> None:
    """Draw the Jaccard indices, (M, M), of the clients' own supports."""
    n_clients = len(similarity)
    image = ax.imshow(similarity, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    if n_clients <= _MAX_NAMED_CLIENTS:
        labels = [shorten_name(name, MAX_LETTERS) for name in result.data.client_names]
        ax.set_xticks(range(n_clients), labels, rotation=90, parse_math=False)
        ax.set_yticks(range(n_clients), labels, parse_math=False)
    if n_clients <= _MAX_NUMBERED_CLIENTS:
        for (row, column), index in np.ndenumerate(similarity):
            if np.isfinite(index):
                colour = "black" if index > 0.6 else "white"
                ax.text(column, row, f"{index:.2f}", ha="center", va="center", color=colour)
    value = result.path.values[result.scores.region_length - 1]
    ax.set_xlabel(f"clients by themselves, {result.path.param_name} {value:.3g}")
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("Jaccard index of supports (grey: none)")
    bar.outline.set_linewidth(pt(0.5))
