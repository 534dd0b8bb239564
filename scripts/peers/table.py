"""Make the page docs/peers.md from the JSON lines that compare.py collects; the first line is about the machine.

``python scripts/peers/table.py ROWS.jsonl`` prints it again.
"""

import ast
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from environments import ELSEWHERE, HERE, PEERS
from task import METHODS

AGREE = 1e-5  # relative; float32 sums in another order differ by 1e-6

HEAD = """# Beside other frameworks

LASSO I of the FCO paper (64 clients with 128 rows, 1024 features), {rounds} rounds, minibatches of 10 rows, one epoch
a round, client rate 0.0005, server rate 1, l1 strength 0.1. Everybody is given the same rows, cohorts and minibatches,
so the final objectives must agree; they are computed by one function, in float64, from the w that each one leaves.

- **ms a round** is the mean over the rounds after the first tenth, without start-up and compiling: the least of
  {repetitions} runs or more, taken in turn. **Ratio** is to fcorun's.
- **Else** is all other seconds of the process in that least run: imports, start-up, compiling, ending. fcorun keeps
  compiled programs from one run to the next, makes its data, evaluates every tenth round, which counts as its rounds',
  draws a picture and leaves a record; the others read a file and leave w.
- **F + ψ** is the final objective. The methods are not tuned and {rounds} rounds are few: they say that all compute
  the same thing, and not which method is better.
- A client's steps are small, 13 on 10 x 1024 numbers, so most of what is measured is what a framework does around them.
  With larger models that part is less; this page says nothing of those.
- Clients run one after another but in fcorun and in the round by hand (all at once) and in Flower (a process a core).

Measured on {date} by `{command}`: {processor}, {cores} cores, no accelerator used; {system}.{load}

A run here is one run. What fcorun is made for is many at once, as one program; [Measurements](measurements.md) say what
that takes.
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the page in Markdown."""
    about, runs = rows[0], rows[1:]
    measured = Counter((row["peer"], row["method"], row["clients"]) for row in runs if "round_ms" in row)
    text = HEAD.format(**about, load=load(about), repetitions=min(measured.values(), default=0))
    for clients in sorted({row["clients"] for row in runs if "clients" in row}):
        text += f"\n## {clients} of 64 clients a round\n\n" + figures(about, runs, clients)
    return f"{text}\n{agreement(runs)}\n{left_out(runs)}\n{modifications()}"


def busy(about: dict[str, Any]) -> bool:
    """Return whether other work ran on the cores, so that times say nothing."""
    return about["load_before"] >= 0.5  # afterwards it is the comparison's own


def load(about: dict[str, Any]) -> str:
    """Return a sentence on what else ran; empty if nothing did."""
    if not busy(about):
        return ""
    return (
        f"\n**Times are left out: other work ran on these cores** (load average {about['load_before']:.1f} before). "
        "The same command on\nquiet cores measures them."
    )


def best(runs: list[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    """Return the minimum time over runs of this kind."""
    found = [row for row in runs if "round_ms" in row and all(row.get(k) == v for k, v in wanted.items())]
    return min(found, key=lambda row: row["round_ms"], default=None)


def figures(about: dict[str, Any], runs: list[dict[str, Any]], clients: int) -> str:
    """Return the times and objectives of all frameworks with so many clients in a round."""
    lines = ["| | version |", "| --- | --- |"]
    for title in METHODS.values():
        lines[0] += f" {title}: ms a round | ratio | else, s | F + ψ |"
        lines[1] += " ---: | ---: | ---: | ---: |"
    for name in dict.fromkeys(row["peer"] for row in runs):
        line = f"| {PEERS[name].title} | {about.get('versions', {}).get(name, '')} |"
        for method in METHODS:
            wanted = {"method": method, "clients": clients}
            ours, row = best(runs, peer="fcorun", **wanted), best(runs, peer=name, **wanted)
            if row is None:
                line += " none | | | |"
                continue
            if busy(about):
                line += f" | | | {row['objective']:.6g} |"
                continue
            ratio = digits(row["round_ms"] / ours["round_ms"]) if ours else ""
            line += f" {digits(row['round_ms'])} | {ratio} | {row['rest_s']:.1f} | {row['objective']:.6g} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def digits(value: float) -> str:
    """Format a number with at least two digits and no exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def agreement(runs: list[dict[str, Any]]) -> str:
    """Report whether all objectives of a method and a cohort agree, and which frameworks deviate."""
    largest, apart = 0.0, []
    for row in runs:
        ours = best(runs, peer="fcorun", method=row.get("method"), clients=row.get("clients"))
        if "objective" in row and ours:
            off = abs(row["objective"] / ours["objective"] - 1)
            if off < AGREE:
                largest = max(largest, off)
            else:  # nan deviates, too
                apart.append(f"{PEERS[row['peer']].title}, {task_of(row)}: {off:.1e}")
    text = f"Objectives agree with fcorun's to {largest:.0e}, relatively: what float32 leaves."
    if apart:
        text = f"**Objectives that do not agree with fcorun's**, relatively: {'; '.join(dict.fromkeys(apart))}.\n{text}"
    return text + "\n"


def task_of(row: dict[str, Any]) -> str:
    return f"{METHODS[row['method']]} with {row['clients']} clients"


def left_out(runs: list[dict[str, Any]]) -> str:
    """List the frameworks with missing measurements, with the reasons."""
    lines = ["## Not measured\n"]
    for row in runs:
        if "reason" in row:
            task = f", {task_of(row)}, and what came after" if "method" in row else ""
            lines.append(f"- {PEERS[row['peer']].title}{task}: {row['reason']}")
    lines += [f"- {name}: {why}" for name, why in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


def modifications() -> str:
    """Describe each script by the first paragraph and the list of its docstring."""
    text = "## What each one runs\n\nOne script each, in `scripts/peers/`. What was changed or chosen:\n"
    for peer in PEERS.values():
        says = ast.get_docstring(ast.parse((HERE / peer.script).read_text(encoding="utf-8"))) or ""
        what, changes = says.replace("``", "`").split("\n\nModifications:\n")
        needs = f" Installed: {', '.join(f'`{need}`' for need in peer.needs)}." if peer.needs else ""
        text += f"\n### {peer.title}\n\n`{peer.script}`. {what}{needs}\n\n{changes}\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]))
