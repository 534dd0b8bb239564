"""The page docs/peers.md, made from the JSON lines that compare.py collects; the first line describes the machine.

``python scripts/peers/table.py ROWS.jsonl`` prints the page.
"""

import ast
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from environments import HERE, NOT_COMPARED, PEERS
from task import METHODS

AGREE = 1e-5  # relative; float32 sums in another order differ by 1e-6
MOST_OTHERS = 0.25  # cores that other processes may keep busy beside a run whose time counts

HEAD = """# Comparison with other frameworks

The task is LASSO I of the FCO paper (64 clients with 128 rows, 1024 features): {rounds} rounds, minibatches of 10 rows,
one epoch in each round, client rate 0.0005, server rate 1, l1 strength 0.1. All frameworks get the same rows, cohorts
and minibatches, so their final objectives must agree. One function computes the objectives in float64 from all w.

- **ms per round** is the mean over the rounds after the first tenth, without start-up and compilation. The table shows
  the minimum of {repetitions} or more alternating runs. **Ratio** is the time divided by fcorun's time.
- fcorun and the programs written by hand also compute the objective after every tenth round, which is part of the time.
  The other frameworks never evaluate.
- **Other, s** is the rest of the seconds of the process in that run: imports, start-up, compilation, end. fcorun stores
  compiled programs between runs. It also generates its data, draws a picture and writes a record. The others read a
  file and write w.
- **F + ψ** is the final objective. The rates are not tuned and {rounds} rounds are few: the objectives show that all
  frameworks compute the same steps, and not which method is better.
- A client takes 13 small steps, on 10 x 1024 numbers each, so a framework's own work takes most of the time. This work
  is a smaller part for larger models, which were not measured.
- fcorun and the round by hand in JAX compute all clients of a round at once, Flower one client on each core. The others
  compute one client after another. A round of fcorun takes a core for every 4 MiB of its minibatches: one core with 10
  clients, as the round by hand, and two with 64, of which the round by hand uses one.
- A run does not count if other processes kept a quarter of a core busy in the second before it or after it. A round of
  64 clients reads 34 MB of rows. Beside two processes that only read and write memory, the round by hand in JAX took
  8.8 ms in place of 4.5, and 6.0 ms beside two that only compute.

Measured on {date} by `{command}`: {processor}, {cores} cores, no accelerator used; {system}.{load}

The comparison measures single runs. fcorun also computes many runs as one program: see [Measurements](measurements.md).
"""

PARTS = """
## Where the time of a round goes

`python scripts/peers/parts.py`, a run of its own with all parts in one process:

{parts}
- The compiled rounds take the same time. XLA divides the gather of a step's rows between two cores, which does not pay
  at this size: compiled for one core, they take 0.38 ms.
- An evaluation reads all training rows. fcorun's also reads the held-out rows, a quarter as many, and measures
  structure and support.
- fcorun draws cohorts and minibatches on the host while the device computes the ten rounds before. On one core alone,
  the draws take 0.05 ms. The program by hand reads them from its file.
- The rest of fcorun's loop, from 0.02 to 0.03 ms, is the host's work between segments of ten rounds: it starts compiled
  programs, reads metrics and counts gradients.
- In all, on one core alone (`taskset -c 0`), fcorun takes 1.17 times the time of the program by hand with 10 clients,
  and 1.03 times with 64.
"""

EARLIER = """
## The other frameworks, measured on 2026-11-23

Ratios to fcorun in that measurement of {methods}, in 100 rounds. fcorun evaluated every tenth round, on one core:

| clients in each round | FedJAX 0.0.17 | FedLab 1.3.0 | pfl-research 0.6.0 | FedML 0.9.6 | Flower 1.41.0 |
| --- | --- | --- | --- | --- | --- |
| 10 of 64 | 9.3, 8.9 | 28, 28 | 25, 33 | 23, 28 | 160, 195 |
| 64 of 64 | 12, 9.4 | 28, 34 | 33, 36 | 32, 39 | 57, 59 |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the page in Markdown."""
    about, runs = rows[0], rows[1:]
    quiet = [row for row in runs if "round_ms" in row and is_quiet(row)]
    measured = Counter((row["peer"], row["method"], row["clients"]) for row in quiet)
    text = HEAD.format(**about, load=load(runs), repetitions=min(measured.values(), default=0))
    for clients in sorted({row["clients"] for row in runs if "clients" in row}):
        text += f"\n## {clients} of 64 clients in each round\n\n" + figures(about, runs, clients)
    text += f"\n{agreement(runs)}"
    if "parts" in about:
        text += PARTS.format(**about)
    if not any(PEERS[row["peer"]].needs for row in runs):
        text += EARLIER.format(methods=" and ".join(METHODS.values()))
    return f"{text}\n{list_missing(runs)}\n{modifications()}"


def is_quiet(row: dict[str, Any]) -> bool:
    """Return whether a run had the cores to itself: a process beside it doubles the time of a round."""
    return row["others"] < MOST_OTHERS


def load(runs: list[dict[str, Any]]) -> str:
    """Return a sentence on the runs beside which other work ran; empty if there are none."""
    timed = [row for row in runs if "round_ms" in row]
    left_out = sum(not is_quiet(row) for row in timed)
    if not left_out:
        return ""
    most = max(row["others"] for row in timed)
    return (
        f"\n**{left_out} of {len(timed)} runs do not count, because other work ran on these cores** (up to {most:.1f}\n"
        "cores busy before or after). The same command on quiet cores measures them."
    )


def best(runs: list[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    """Return the least time over the quiet runs of this kind; where none was quiet, one without a time."""
    matching = [row for row in runs if "round_ms" in row and all(row.get(k) == v for k, v in wanted.items())]
    quiet = [row for row in matching if is_quiet(row)]
    if matching and not quiet:
        return {name: value for name, value in matching[0].items() if name != "round_ms"}
    return min(quiet, key=lambda row: row["round_ms"], default=None)


def figures(about: dict[str, Any], runs: list[dict[str, Any]], clients: int) -> str:
    """Return the times and objectives of all frameworks with this number of clients in a round."""
    lines = ["| | version |", "| --- | --- |"]
    for title in METHODS.values():
        lines[0] += f" {title}: ms per round | ratio | other, s | F + ψ |"
        lines[1] += " ---: | ---: | ---: | ---: |"
    for name in dict.fromkeys(row["peer"] for row in runs):
        line = f"| {PEERS[name].title} | {about.get('versions', {}).get(name, '')} |"
        for method in METHODS:
            wanted = {"method": method, "clients": clients}
            ours, row = best(runs, peer="fcorun", **wanted), best(runs, peer=name, **wanted)
            if row is None:
                line += " none | | | |"
                continue
            if "round_ms" not in row:
                line += f" | | | {row['objective']:.6g} |"
                continue
            ratio = digits(row["round_ms"] / ours["round_ms"]) if ours and "round_ms" in ours else ""
            line += f" {digits(row['round_ms'])} | {ratio} | {row['rest_s']:.1f} | {row['objective']:.6g} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def digits(value: float) -> str:
    """Format a number with at least two digits and no exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def agreement(runs: list[dict[str, Any]]) -> str:
    """Report whether all objectives of a method and a cohort agree, and which frameworks deviate."""
    largest, deviations, has_agreed = 0.0, [], False
    for row in runs:
        ours = best(runs, peer="fcorun", method=row.get("method"), clients=row.get("clients"))
        if "objective" in row and ours:
            deviation = abs(row["objective"] / ours["objective"] - 1)
            if deviation < AGREE:
                largest, has_agreed = max(largest, deviation), has_agreed or row["peer"] != "fcorun"
            else:  # nan deviates, too
                deviations.append(f"{PEERS[row['peer']].title}, {task_of(row)}: {deviation:.1e}")
    lines = []
    if deviations:
        listed = "; ".join(dict.fromkeys(deviations))
        lines.append(f"**Objectives that do not agree with fcorun's**, relatively: {listed}.")
    if has_agreed:
        lines.append(f"Objectives agree with fcorun's to {largest:.0e}, relatively, the rounding of float32.")
    return "\n".join(lines or ["No objective was compared with fcorun's."]) + "\n"


def task_of(row: dict[str, Any]) -> str:
    return f"{METHODS[row['method']]} with {row['clients']} clients"


def list_missing(runs: list[dict[str, Any]]) -> str:
    """List the frameworks with missing measurements, with the reasons."""
    lines = ["## Not measured\n"]
    for row in runs:
        if "reason" in row:
            task = f", {task_of(row)}, and all later runs" if "method" in row else ""
            lines.append(f"- {PEERS[row['peer']].title}{task}: {row['reason']}")
    lines += [f"- {name}: {why}" for name, why in NOT_COMPARED.items()]
    return "\n".join(lines) + "\n"


def modifications() -> str:
    """Describe each script by the first paragraph and the list of its docstring."""
    text = "## The scripts\n\nEach framework has a script in `scripts/peers/`, with these modifications and choices:\n"
    for peer in PEERS.values():
        docstring = ast.get_docstring(ast.parse((HERE / peer.script).read_text(encoding="utf-8"))) or ""
        summary, changes = docstring.replace("``", "`").split("\n\nModifications:\n")
        needs = f" Installed: {', '.join(f'`{need}`' for need in peer.needs)}." if peer.needs else ""
        text += f"\n### {peer.title}\n\n`{peer.script}`. {summary}{needs}\n\n{changes}\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]))
