"""Measure the tables of docs/measurements.md and docs/scale.md, in one session on one machine.

Most times are minima over repetitions, which alternate where possible, since other load on the machine only adds time.
Long measurements run once: ``fedgd``, and the sweep with one process for each run. Times of rounds exclude compilation;
times of commands include the compilation of programs that are not in the cache.
"""

import argparse
import os
from importlib.util import cache_from_source
from pathlib import Path

from benchmarks import commands, communication, decisions, rounds, scale, selection, storage

import fcorun
from fcorun.base.errors import suggest_name
from fcorun.base.system.machine import available_cores

BENCHMARKS = {
    **{"round": rounds.one_round, "grid": rounds.grid, "start": commands.start_up, "shell": commands.one_run},
    **{"sweep": commands.sweep},
    **{"fedgd": rounds.fedgd, "graphs": communication.graphs, "channels": communication.channels},
    **{"asynchronous": communication.asynchronous},
    **{"select": selection.select, "stability": selection.stability},
    **{"nested": decisions.nested, "scores": decisions.scores, "debiased": decisions.debiased},
    **{"report": commands.report, "scale": scale.scale, "disk": storage.disk, "states": storage.states},
}


def count_uncompiled() -> int:
    """Return the number of fcorun's modules without bytecode of today's source, which commands would compile first."""
    count = 0
    for path in Path(fcorun.__file__).parent.rglob("*.py"):
        bytecode = Path(cache_from_source(str(path)))
        count += not bytecode.exists() or bytecode.stat().st_mtime < path.stat().st_mtime
    return count


def main() -> None:
    """Measure the benchmarks and print each row of a Markdown table when it is measured."""
    summaries = "\n".join(f"  {name:12} {(bench.__doc__ or '').strip()}" for name, bench in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"benchmarks:\n{summaries}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the benchmarks to run (default: all)")
    chosen = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        parser.exit(2, f"there is no benchmark '{unknown[0]}': {suggest_name(unknown[0], BENCHMARKS)}\n")
    if uncompiled := count_uncompiled():
        folder = Path(fcorun.__file__).parent
        parser.exit(2, f"{uncompiled} modules of fcorun have no compiled bytecode, so that a command would be measured "
                       f"with their compilation: python -m compileall -q {folder}\n")  # fmt: skip
    print(f"load {os.getloadavg()[0]:.1f} on {available_cores()} cores in the minute before\n")
    print("| measured | time | ratio or parts |\n| --- | --- | --- |")
    for name in chosen:
        for line in BENCHMARKS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
