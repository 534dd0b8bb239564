"""Options of ``fcorun stability``, its result, and what it leaves: tables, the picture, maps, and printed lines.

Each voxel is judged by itself, by the same threshold and the same bound as any feature: no cluster of neighbours is
formed, and none is left out for its size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

import numpy as np

from fcorun.base.config import Count, Positive
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.records.formats import frame_csv
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.label_file import label_column
from fcorun.reports.pictures.brain import BrainMaps, VoxelMap, draw_maps
from fcorun.reports.pictures.layout import curve_style, make_figure, shorten_name
from fcorun.reports.pictures.style import pt, style_context
from fcorun.results.inference.methods import AFTER_SELECTION
from fcorun.results.models.coefficients import feature_names, mask_image, weights_image
from fcorun.studies.selection.stability_scores import (
    Assumption,
    SelectionUnits,
    StabilityScores,
    bound_false_selections,
)
from fcorun.studies.selection.study import StudyResult, format_cost
from fcorun.studies.selection.study_pictures import (
    MAX_LETTERS,
    PARAMETER_LABELS,
    format_path_axis,
    format_title,
    label_curve_ends,
    render_png_and_pdf,
)

_MAX_NAMED_FEATURES = 20  # in a line
_MAX_FEATURES = 8  # with a name in the margin of the picture
_MAX_NAMED_CLIENTS = 12  # in the picture
_MAX_NUMBERED_CLIENTS = 8  # up to which indices are written into the cells
_VOXEL_FILES = ("mask.nii.gz", "frequency.nii.gz", "stable.nii.gz", "brain.png", "brain.pdf")
_ASSUMPTIONS: dict[Assumption, str] = {
    "unimodal": "assumption=unimodal is assumed, not tested: the share of the pairs of which both halves choose such a "
    "feature has a unimodal distribution (Shah and Samworth 2013, theorem 2)",
    "r_concave": "assumption=r_concave is assumed, not tested: of such a feature, the share of the pairs of which both "
    "halves choose it has a -1/2-concave distribution, and the share of the halves a -1/4-concave one (Shah and "
    "Samworth 2013)",
}


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
            feature by chance: "none", "unimodal", or "r_concave" (see ``fcorun.studies.selection.stability_scores``).
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

    def write_files(self) -> None:
        """Write stability.csv, clients.csv, stability.json, which says "running", the picture, and maps of voxels.

        stability.csv has a row for each feature, from the most to the least frequent; features without penalty come
        last. clients.csv has the similarity of the clients' own supports.
        """
        write_atomically(self.folder / "stability.csv", frame_csv(self._tabulate_features()))
        if self.client_similarity is not None:
            write_atomically(self.folder / "clients.csv", frame_csv(self.tabulate_clients()))
        self.write_summary()
        for name, content in {**draw_stability(self), **self._map_voxels()}.items():
            write_atomically(self.folder / name, content)

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
        """Return a frame with a row for each feature.

        The column ``{param}_reached`` is the first value of the whole path at which the frequency reaches the
        threshold.
        """
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
        files = ["stability.csv", "stability.png and .pdf"]
        if self.client_similarity is not None:
            files.insert(1, "clients.csv")
        if self.data.features.voxel_grid is not None:
            files += _VOXEL_FILES
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
        """Return the contents of _VOXEL_FILES, of features that are voxels; nothing for others.

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
        title = f"{format_title(self.experiment)}: stability selection on {n_halves} by {self.halves_of}"
        with style_context(self.experiment.settings.style):
            titles = [title, "voxel by voxel, without clusters, axial slices (z in mm)"]
            pictures = render_png_and_pdf("brain", draw_maps(BrainMaps(grid, drawn, titles)))
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
    """Return the contents of stability.png and stability.pdf."""
    with style_context(result.experiment.settings.style):
        options = result.options
        halves = f"{options.subsamples} halves by {result.halves_of}"
        title = f"{format_title(result.experiment)}: stability selection on {halves}"
        similarity = result.client_similarity
        n_panels = 1 if similarity is None else 2
        figure, axes = make_figure(n_panels, n_panels, height=2.4, title=[title])
        _draw_frequencies(axes[0], result)
        if similarity is not None:
            _draw_similarity(figure, axes[1], result, similarity)
        return render_png_and_pdf("stability", figure)


def _draw_frequencies(ax: Any, result: StabilityResult) -> None:
    """Draw the share of the halves that choose each feature; the most frequent have names, stable ones a thick line.

    Features without a name are grey.
    """
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
    format_path_axis(ax, result.path)
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
