"""Records written without a run, for tests of tables and pictures."""

import io
import json
import zlib
from pathlib import Path

import yaml
from rich.console import Console

from fcorun.base.metrics import COUNTERS, Metric, aggregate, from_summaries, to_json
from fcorun.base.records.formats import csv_text
from fcorun.base.records.record import Record
from fcorun.reports.sweep_report import build_best_table, print_full_width


def fake_config(algo="feddualavg", data="lasso", **changes):
    """Return a resolved configuration; the keys of ``changes`` have __ for a dot."""
    config = {
        **{"rounds": 40, "seed": 0, "cutoff": 1e-4, "tail_rounds": 20, "batch_size": None, "verbose": True},
        "algo": {"name": algo, "class": f"fcorun.methods.algorithms.{algo}.X", "client_lr": 0.1, "server_lr": 1.0},
        "data": {"name": data, "class": "fcorun.Lasso", "seed": 0},
        "reg": {"name": "l1", "class": "fcorun.L1", "strength": 0.1},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        values = config
        for section in sections:
            values = values[section]
        values[name] = value
    return config


def fake_rows(level=1.0, rounds=40, every=10, silent=False, grads=None, **metrics):
    """Return rows whose objective falls to ``level`` and whose support_f1 rises to 1/(1 + level).

    Further ``metrics`` are constant. ``grads`` gradients are counted a round, and eleven proximal operators; None:
    they are not counted. A ``silent`` run sends no bytes.
    """
    rows = []
    for r in range(0, rounds + 1, every):
        progress = r / rounds if rounds else 1.0
        sent = 0 if silent else 8 * r
        row = {"round": r, "seconds": 0.1 * r, "bytes_up": sent, "bytes_down": sent}
        if grads is not None:
            row |= {"grad_evals": grads * r, "prox_evals": 11 * r}
        row |= {"objective": level * (3 - 2 * progress), "train_loss": level, "val_loss": level * (4 - 3 * progress)}
        row |= {"support_f1": progress / (1 + level), "density": 1 - progress / 2}
        rows.append(row | metrics)
    return rows


def fake_record(folder, settings=None, table=None, status="done", reason="", *, tail_rounds=20, metrics=()):
    """Write a record into ``folder``; return it. An unfinished record has no metrics and no summary.

    ``metrics`` are those that its objective declares.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    settings = fake_config() if settings is None else settings
    label = f"algo={settings['algo']['name']} data={settings['data']['name']}"
    identity = f"{zlib.crc32(str(folder).encode()):064x}"  # hash() differs between processes
    status_file = {"status": status, "reason": reason, "label": label, "identity": identity}
    (folder / "status.json").write_text(json.dumps(status_file))
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    if status in ("done", "diverged"):
        table = fake_rows() if table is None else table
        (folder / "metrics.csv").write_text(csv_text(table))
        declared = {"metrics": to_json(metrics)} if metrics else {}
        aggregates = aggregate(table, tail_rounds, from_summaries([declared]))
        summary = {"status": status, "round": table[-1]["round"], **aggregates, **declared}
        summary |= {
            "tail_rounds": tail_rounds,
            "cutoff": settings["cutoff"],
            "seconds": {"steady": table[-1]["seconds"]},
        }
        summary |= {name: table[-1][name] for name in COUNTERS[2:] if name in table[-1]}
        (folder / "summary.json").write_text(json.dumps(summary))
    return Record(folder)


def fake_grid(root, algos=("feddualavg", "fedmid"), seeds=(0, 1, 2), client=(0.1, 0.2, 0.5), server=(0.3, 1.0)):
    """Write records over two rates and seeds: best at client_lr 0.2, server_lr 1; the largest client_lr diverges."""
    records = []
    for i, algo in enumerate(algos):
        for seed in seeds:
            for c in client:
                for s in server:
                    settings = fake_config(algo, seed=seed, algo__client_lr=c, algo__server_lr=s)
                    level = (1 + i) * (1 + abs(c - 0.2)) / s * (1 + 0.01 * seed)
                    status = "diverged" if c > 0.4 else "done"
                    records.append(
                        fake_record(Path(root) / f"{algo}-{seed}-{c}-{s}", settings, fake_rows(level), status)
                    )
    return records


DEVIANCE = Metric("val_deviance", "validation deviance", higher=False, log=True)


def fake_deviances(root):
    """Write records whose objective declares a deviance, lowest (best) at the last of three rates."""
    for rate, level in ((0.1, 3.0), (0.2, 2.0), (0.4, 1.0)):
        table = [row | {"val_deviance": level + 1 / (1 + row["round"])} for row in fake_rows(1 + rate)]
        fake_record(f"{root}/{rate}", fake_config(algo__client_lr=rate), table, metrics=[DEVIANCE])


def captured_output(function, *arguments, **more):
    """Call a function with a console; return what it prints, and its result."""
    out = io.StringIO()
    result = function(*arguments, **more, console=Console(file=out, width=60))
    return out.getvalue(), result


def show_best_points(runs, metric, console):
    """Print the table of the best points, and its notes."""
    out, texts = build_best_table(runs, metric)
    print_full_width(out, console)
    for text in texts:
        console.print(text)
