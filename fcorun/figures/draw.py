"""How figures are drawn from records. Each function takes what ``Drawing`` holds and returns a matplotlib figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.figures.spec import Figure
from fcorun.records.formats import read_rows
from fcorun.records.record import Record
from fcorun.reports.pictures.curves import COLOURS, DASHES
from fcorun.reports.pictures.page import PAGE, Look, legend, looks_of, page, title, words
from fcorun.reports.pictures.sweep import draw_best, draw_structure
from fcorun.reports.table import Frame, best_points

LOGARITHMIC = ("suboptimality", "objective", "val_loss", "train_loss", "recovery_error")


@dataclass(frozen=True)
class Drawing:
    """What there is to draw.

    Attributes:
        grid, grid_records: the table of all points, and their records in its order.
        tuned, tuned_records: of the best point of each algorithm, with all seeds.
    """

    figure: Figure
    metric: str
    grid: Frame
    grid_records: Sequence[Record]
    tuned: Frame
    tuned_records: Sequence[Record]

    @property
    def shown(self) -> list[tuple[str, bool]]:
        """The metrics to draw, each with whether its axis is logarithmic."""
        return [(name, name in LOGARITHMIC) for name in self.figure.panels]

    @property
    def looks(self) -> dict[str, Look]:
        """The look of each algorithm, in all figures of this table."""
        return looks_of(self.grid)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to draw, those that came to an end."""
        there = [name for name in self.looks if (self.tuned["algo"] == name).any()]
        return [name for name in there if name in (self.figure.only or there)]


def curves(of: Drawing) -> Any:
    """Metrics at each algorithm's best rates, median and band over seeds."""
    places = [i for i, algo in enumerate(of.tuned["algo"]) if algo in of.algorithms]
    tuned = of.tuned.iloc[places].reset_index(drop=True)
    tuned.attrs = of.tuned.attrs
    return draw_best(tuned, of.metric, of.looks, [of.tuned_records[i] for i in places], read_rows, of.shown,
                     of.figure.x)  # fmt: skip


def scatter(of: Drawing) -> Any:
    """Structure against quality over all points of the grid: how much depends on the rates."""
    return draw_structure(of.grid, of.metric, of.looks)


def bars(of: Drawing) -> Any:
    """A bar an algorithm, at its best rates, a panel a metric: median over seeds, with the 10-90 % band."""
    count, algos = len(of.figure.panels), of.algorithms
    figure, axes = page(count, count, PAGE, height=1.9, left=0.72, bottom=0.6, gap=(0.85, 0.5))
    for ax, metric in zip(axes, of.figure.panels, strict=True):
        for place, algo in enumerate(algos):
            values = of.tuned.loc[of.tuned["algo"] == algo, f"tail_{metric}"].to_numpy(float)
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            ax.bar(place, middle, color=of.looks[algo].colour, width=0.7)
            if len(values) > 1:
                ax.errorbar(place, middle, [[middle - low], [high - middle]], color="black", linewidth=0.8, capsize=2)
            ax.annotate(f"{middle:.3g}", (place, high), (0, 2), textcoords="offset points", ha="center", fontsize=6.5)
        ax.set_xticks(range(len(algos)), [title(of.grid, name) for name in algos], fontsize=6, rotation=20)
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.12)
        ax.set_ylabel(words(metric, of.tuned.attrs.get("cutoff"), of.tuned.attrs.get("tail_rounds")))
    return figure


def solutions_alone(of: Drawing) -> dict[int, np.ndarray]:
    """The weights that each client finds on its own data, by its number."""
    alone = [r for r, algo in zip(of.grid_records, of.grid["algo"], strict=True) if algo == "one_client" and r.finished]
    found = {record.config["algo"]["client"]: record.solution["weights"] for record in alone}
    return dict(sorted(found.items()))


def averaging(of: Drawing) -> Any:
    """The curse of primal averaging: the solutions of single clients, their mean, and what the algorithms find."""
    from matplotlib.colors import ListedColormap

    alone = solutions_alone(of)
    strips = [(f"client {m + 1} alone", w) for m, w in alone.items()]
    strips.append(("mean of the clients' solutions", np.mean(list(alone.values()), axis=0)))
    for row in best_points(of.grid, of.metric).to_dict("records"):
        if row["seeds"] and row["algo"] != "one_client":
            strips.append((title(of.grid, row["algo"]), of.grid_records[row["rows"][0]].solution["weights"]))
    cutoff = of.grid.attrs["cutoff"]
    figure, (ax,) = page(1, 1, PAGE, height=0.21 * len(strips), left=1.75, right=0.75, bottom=0.5, top=0.25)
    picture = np.array([np.abs(w) > cutoff for _, w in strips], float)
    ax.imshow(
        picture, aspect="auto", interpolation="nearest", cmap=ListedColormap(["#F2F2F2", "#0072B2"]), vmin=0, vmax=1
    )
    ax.set_yticks(range(len(strips)), [label for label, _ in strips])
    ax.set_yticks(np.arange(len(strips) - 1) + 0.5, minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", axis="y", color="white", linewidth=2, alpha=1)
    ax.tick_params(length=0, which="both")
    ax.set_xlabel(f"coefficient j (blue where |w$_j$| > {cutoff:g})")
    for place, (_, w) in enumerate(strips):
        share = float(np.mean(np.abs(w) > cutoff))
        ax.annotate(f"{share:.2f}", (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=6.5)
    ax.annotate("density", (1.02, 1.0), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=6.5)
    return figure


def rates(of: Drawing) -> Any:
    """The gap against the rounds at each client_lr with its best server_lr, and the bounds of theorems 4.1 to 4.3."""
    from fcorun.figures.papers.theory import measured

    runs = measured(of.grid_records)
    looks = {f"theorem 4.{i + 1}": (COLOURS[i], DASHES[i + 1]) for i in range(3)}
    figure, axes = page(len(runs), min(3, len(runs)), PAGE, height=1.9, left=0.6, top=0.25)
    for ax, (record, rounds, gaps, bounds) in zip(axes, runs, strict=True):
        ax.plot(rounds, gaps, color="black", label="measured, last iterate")
        for text, bound in bounds.items():
            ax.plot(rounds, bound, color=looks[text][0], linestyle=looks[text][1], label=f"bound of {text}")
        ax.set(xscale="log", yscale="log", xlabel="communication round", ylabel=words("suboptimality", None))
        ax.set_title("$\\eta_c$ = {client_lr:g}, $\\eta_s$ = {server_lr:g}".format(**record.config["algo"]), pad=3)
    heights = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(heights), max(heights))
    seen = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    legend(figure, list(seen.values()), list(seen))
    return figure


def conditioning(of: Drawing) -> Any:
    """The gap against the rounds at three condition numbers, and the rounds to a gap of 1e-3 against all of them."""
    from fcorun.figures.papers.fedsplit import iterations

    figure, (left, right) = page(2, 2, PAGE, height=2.0, left=0.6)
    shown = sorted({record.config["data"]["condition"] for record in of.grid_records if record.finished})[::-1]
    shown = [kappa for kappa in shown if np.log10(kappa) % 1 == 0][:3][::-1]
    for record in of.grid_records:
        kappa, name = record.config["data"]["condition"], record.config["algo"]["name"]
        rows = read_rows(record.folder)[1:]
        if kappa in shown and rows:
            gaps = {row["round"]: row["suboptimality"] for row in rows}
            look = {"color": of.looks[name].colour, "linestyle": DASHES[shown.index(kappa)]}
            left.plot(list(gaps), list(gaps.values()), **look, label=f"{title(of.grid, name)}, κ = {kappa:,.0f}")
    left.axhline(1e-3, color="0.6", linewidth=0.6)
    left.set(xscale="log", yscale="log", xlabel="communication round", ylabel=words("suboptimality", None))
    left.set_ylim(bottom=1e-6)
    for name, (kappas, rounds) in iterations(of.grid_records).items():
        look, slope = of.looks[name], 0.5 if name == "fedsplit" else 1.0
        right.plot(kappas, rounds, color=look.colour, marker=look.marker, label=f"{title(of.grid, name)}")
        right.plot(kappas, rounds[-1] * (kappas / kappas[-1]) ** slope, color="0.5", linestyle=":", linewidth=0.8,
                   label=f"slope {slope:g}")  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="condition number κ", ylabel="rounds to a gap of 10$^{-3}$")
    right.legend(frameon=False)
    legend(figure, *left.get_legend_handles_labels())
    return figure


def personalised(of: Drawing) -> Any:
    """See fcorun.figures.papers.personalised."""
    from fcorun.figures.papers.personalised import draw

    return draw(of)


def fast_mark(figure: Any, text: str) -> None:
    """Say in a picture that it is a smaller version."""
    figure.text(0.995, -0.005, text, ha="right", va="top", fontsize=6, color="#D55E00", style="italic")
