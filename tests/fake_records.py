"""Records written by hand: what tables and pictures are made of, without a run."""

import io
import json
from pathlib import Path

import yaml
from rich.console import Console

from fcorun.metrics import COUNTERS, Metric, aggregate, from_summaries, to_json
from fcorun.records.formats import csv_text
from fcorun.records.record import Record
from fcorun.reports.sweep_report import build_best_table, print_full_width


def fake_config(algo="feddualavg", data="lasso", **changed):
    """A resolved configuration; changed keys have __ for a dot."""
    found = {
        **{"rounds": 40, "seed": 0, "cutoff": 1e-4, "tail_rounds": 20, "batch_size": None, "verbose": True},
        "algo": {"name": algo, "class": f"fcorun.algorithms.{algo}.X", "client_lr": 0.1, "server_lr": 1.0},
        "data": {"name": data, "class": "fcorun.datasets.lasso.Lasso", "seed": 0, "path": "here"},
        "reg": {"name": "l1", "class": "fcorun.regularizers.l1.L1", "strength": 0.1},
    }
    for key, value in changed.items():
        *sections, last = key.split("__")
        place = found
        for section in sections:
            place = place[section]
        place[last] = value
    return found


def fake_rows(level=1.0, rounds=40, every=10, silent=False, grads=None, **metrics):
    """Rows whose objective falls to ``level`` and whose support_f1 rises to 1/(1 + level); more metrics are constants.

    ``grads`` gradients are evaluated a round, and eleven proximal operators; None: nobody counted them.
    """
    found = []
    for r in range(0, rounds + 1, every):
        share = r / rounds if rounds else 1.0
        row = {"round": r, "seconds": 0.1 * r, "bytes_up": 0 if silent else 8 * r, "bytes_down": 0 if silent else 8 * r}
        row |= {} if grads is None else {"grad_evals": grads * r, "prox_evals": 11 * r}
        row |= {"objective": level * (3 - 2 * share), "train_loss": level, "val_loss": level * (4 - 3 * share)}
        found.append(row | {"support_f1": share / (1 + level), "density": 1 - share / 2} | metrics)
    return found


def fake_record(folder, settings=None, table=None, status="done", reason="", *, tail_rounds=20, metrics=()):
    """A record in ``folder``; one that is not finished has no metrics and no summary. ``metrics`` are those that its
    objective declares."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    settings = fake_config() if settings is None else settings
    label = f"algo={settings['algo']['name']} data={settings['data']['name']}"
    about = {"status": status, "reason": reason, "label": label, "identity": f"{abs(hash(str(folder))):064x}"}
    (folder / "status.json").write_text(json.dumps(about))
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    if status in ("done", "diverged"):
        table = fake_rows() if table is None else table
        (folder / "metrics.csv").write_text(csv_text(table))
        own = {"metrics": to_json(metrics)} if metrics else {}
        found = aggregate(table, tail_rounds, from_summaries([own]))
        summary = {"status": status, "round": table[-1]["round"], **found, **own}
        summary |= {
            "tail_rounds": tail_rounds,
            "cutoff": settings["cutoff"],
            "seconds": {"steady": table[-1]["seconds"]},
        }
        summary |= {name: table[-1][name] for name in COUNTERS[2:] if name in table[-1]}
        (folder / "summary.json").write_text(json.dumps(summary))
    return Record(folder)


def fake_grid(root, algos=("feddualavg", "fedmid"), seeds=(0, 1, 2), client=(0.1, 0.2, 0.5), server=(0.3, 1.0)):
    """Records over two rates and seeds, the largest client rate diverging; best at client_lr 0.2, server_lr 1."""
    found = []
    for i, algo in enumerate(algos):
        for seed in seeds:
            for c in client:
                for s in server:
                    settings = fake_config(algo, seed=seed, algo__client_lr=c, algo__server_lr=s)
                    level = (1 + i) * (1 + abs(c - 0.2)) / s * (1 + 0.01 * seed)
                    status = "diverged" if c > 0.4 else "done"
                    found.append(fake_record(Path(root) / f"{algo}-{seed}-{c}-{s}", settings, fake_rows(level), status))
    return found


DEVIANCE = Metric("val_deviance", "validation deviance", higher=False, log=True)


def fake_deviances(root):
    """Records whose objective declares a deviance, of which less is better, least at the last of three rates."""
    for rate, level in ((0.1, 3.0), (0.2, 2.0), (0.4, 1.0)):
        table = [row | {"val_deviance": level + 1 / (1 + row["round"])} for row in fake_rows(1 + rate)]
        fake_record(f"{root}/{rate}", fake_config(algo__client_lr=rate), table, metrics=[DEVIANCE])


def captured_output(function, *arguments, **more):
    """What a function prints on the console that it is given, and what it returns."""
    out = io.StringIO()
    result = function(*arguments, **more, console=Console(file=out, width=60))
    return out.getvalue(), result


def show_best_points(runs, metric, console):
    """Print the table of the best points, and what is said of it."""
    out, texts = build_best_table(runs, metric)
    print_full_width(out, console)
    for text in texts:
        console.print(text)
