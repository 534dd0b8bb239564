"""The picture of one run."""

import io

# Okabe and Ito's palette, told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"


def panels(names: list[str], cutoff: float) -> list[tuple[str, list[tuple[str, str]], bool]]:
    """What to draw for a run with these metrics: (axis label, [(metric, legend)], logarithmic) of each panel."""
    gap = "suboptimality" in names
    chosen = [(r"gap $\Phi(w) - \Phi^\star$" if gap else r"objective $\Phi(w) = F(w) + \psi(w)$",
               [("suboptimality" if gap else "objective", "")], True)]  # fmt: skip
    if "train_accuracy" in names:
        chosen.append(("accuracy", [("train_accuracy", "training"), ("val_accuracy", "validation")], False))
    else:
        chosen.append(("loss", [("train_loss", "training"), ("val_loss", "validation")], True))
    support = rf"support: $|w_j| >$ {cutoff:g}"
    if "f1" in names:
        lines = [("f1", "F1"), ("precision", "precision"), ("recall", "recall"), ("density", "density")]
        chosen.append((support, lines, False))
    elif "density" in names:
        chosen.append((f"density ({support})", [("density", "")], False))
    if "rank" in names:
        chosen.append((rf"rank (singular values $>$ {cutoff:g})", [("rank", "")], False))
    return [(label, [line for line in lines if line[0] in names], log) for label, lines, log in chosen]


def draw_curves(rows: list[dict[str, float]], title: str, cutoff: float) -> bytes:
    """curves.png: what this problem is about, against the rounds, as PNG bytes. One row is enough."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(rows[-1]) if rows else ["objective", "train_loss"]
    chosen = panels(names, cutoff)
    figure = Figure(figsize=(3.2 * len(chosen), 2.7), dpi=160, layout="constrained")
    axes = figure.subplots(1, len(chosen), squeeze=False)[0]
    rounds = [row["round"] for row in rows]
    for ax, (label, lines, log) in zip(axes, chosen, strict=True):
        for (name, legend), colour, dash in zip(
            lines, (BLUE, ORANGE, GREEN, RED), ("-", "--", ":", "-."), strict=False
        ):
            values = [row[name] for row in rows]
            ax.plot(rounds, values, dash, color=colour, label=legend, linewidth=1.6)
        if log and any(row[name] > 0 for row in rows for name, _ in lines):
            ax.set_yscale("log")
        elif {name for name, _ in lines} & {"f1", "train_accuracy", "density"}:
            ax.set_ylim(-0.03, 1.03)
        ax.set_xlabel("iteration" if rows and not rows[-1].get("bytes_up") and len(rows) > 1 else "communication round")
        ax.set_ylabel(label)
        ax.grid(alpha=0.25, linewidth=0.6)
        if any(legend for _, legend in lines):
            ax.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=8)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": "fcorun"})
    return buffer.getvalue()
