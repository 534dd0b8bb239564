"""The figures of docs/measurements.md: ratios, measured in one run on one machine, compile time apart.

Times are the least of several repetitions, taken in turns, since what else runs on the machine only ever adds.
"""

import argparse

from benchmarks import commands, rounds, scale, selection, storage

from fcorun.errors import suggest_name

BENCHMARKS = {
    **{"round": rounds.one_round, "grid": rounds.grid, "shell": commands.one_run, "sweep": commands.sweep},
    **{"fedgd": rounds.fedgd, "select": selection.select, "stability": selection.stability},
    **{"report": commands.report, "scale": scale.scale, "disk": storage.disk, "states": storage.states},
}


def main() -> None:
    """Print the rows of a Markdown table as they are measured."""
    told = "\n".join(f"  {name:9} {(bench.__doc__ or '').strip()}" for name, bench in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"benchmarks:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; default: all of them")
    asked = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        parser.exit(2, f"there is no benchmark '{unknown[0]}': {suggest_name(unknown[0], BENCHMARKS)}\n")
    print("| what | time | ratio or parts |\n| --- | --- | --- |")
    for name in asked:
        for line in BENCHMARKS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
