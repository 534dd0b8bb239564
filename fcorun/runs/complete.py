"""The last step of a run, kept free of JAX so that a helper process can take it."""

import json
import time

from fcorun.records.folder import RunFolder
from fcorun.records.formats import csv_text, npz_bytes
from fcorun.records.record import Record
from fcorun.reports.pictures.curves import draw_run


def complete(
    folder: RunFolder,
    rows: list[dict],
    solution: dict,
    personal: dict | None,
    summary: dict,
    reason: str,
    diverged: int,
) -> None:
    """Write what a record is made of, ``personal`` models too where there are any; its status comes last."""
    label, status = summary["label"], summary["status"]
    begun = time.perf_counter()
    x = Record(folder.folder).flat_config.get("x", "rounds")
    folder.write("curves.png", draw_run(rows, label, summary["cutoff"], x=x))
    summary["seconds"]["picture"] = time.perf_counter() - begun
    folder.write("metrics.csv", csv_text(rows))
    folder.write("solution.npz", npz_bytes(solution))
    if personal is not None:
        folder.write("personal.npz", npz_bytes(personal))
    folder.write("summary.json", json.dumps(summary, indent=2) + "\n")
    folder.log(f"{status} {reason}".strip() + f" after round {rows[-1]['round'] if rows else 0}")
    folder.set_status(status, label, reason, **({"round": diverged} if diverged else {}))
    folder.drop_checkpoint()
