"""Run fcorun's solvers in benchmarks of benchopt, and print how long each solver takes to a relative gap.

Clone https://github.com/benchopt/benchmark_lasso or benchmark_logreg_l1, and run in an environment with fcorun, celer,
skglm, benchopt 1.7 and joblib 1.5, beyond which benchopt does not run these benchmarks:

    python scripts/peers/benchopt_table.py benchmark_lasso benchmark_logreg_l1 -d Simulated -d Sparse

``Sparse`` is the data set of ``benchopt_rows.py``. The gap is that of the objective to the least one that any solver
found, relative to that; the time is the first one at which benchopt saw a smaller gap, in the fastest of three
repetitions (or of ``-r`` NUMBER). All times are processor times, of one thread of linear algebra, since other programs
change these less than the time of day. ``--runs`` FILE.parquet prints the table of a benchmark that was run before.
Further options are those of ``benchopt run``.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

SCRIPTS = Path(__file__).resolve().parents[1]
COPIES = {
    "solvers/fcorun.py": "peers/benchopt_solver.py",
    "datasets/sparse_rows.py": "peers/benchopt_rows.py",
    "benchmark_utils/make_sparse_rows.py": "make_sparse_rows.py",
}
SOLVERS = ("fcorun", "skglm", "Celer", "sklearn")
REPETITIONS = "3"  # unless options give another number
GAP = 1e-6
PROGRAM = "import time; time.perf_counter = time.process_time; from benchopt.cli import benchopt; benchopt()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def run_benchmark(folder: Path, options: list[str]) -> Path:
    """Run the solvers on data of a benchmark; return the file of their curves."""
    (folder / "benchmark_utils").mkdir(exist_ok=True)
    (folder / "benchmark_utils" / "__init__.py").touch()
    for place, script in COPIES.items():
        shutil.copy(SCRIPTS / script, folder / place)
    chosen = [word for name in SOLVERS for word in ("-s", name)]
    command = [sys.executable, "-c", PROGRAM, "run", str(folder), "-r", REPETITIONS, *chosen]
    command += ["--no-plot", "--no-html", "--no-cache"]  # the cache has repetitions of other versions of fcorun, too
    subprocess.run([*command, *options], check=True, env=os.environ | ONE_THREAD)
    return max((folder / "outputs").glob("*.parquet"), key=lambda path: path.stat().st_mtime)


def time_solvers(curves: Any) -> Any:
    """Return the seconds of each solver, a column, for each problem, a row."""
    curves = curves.assign(problem=curves["objective_name"] + ", " + curves["data_name"])
    least = curves.groupby("problem")["objective_value"].transform("min")
    near = curves[curves["objective_value"] - least <= GAP * least.abs()]
    return near.groupby(["problem", "solver_name"])["time"].min().unstack()


def main() -> None:
    """Run the benchmarks, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", type=Path, metavar="BENCHMARK", help="folders of benchmarks")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], metavar="FILE", help="files of earlier runs")
    arguments, options = parser.parse_known_args()
    for path in [*arguments.runs, *(run_benchmark(folder, options) for folder in arguments.benchmarks)]:
        curves = pd.read_parquet(path)
        seconds = time_solvers(curves)
        print(f"\nProcessor seconds, the least of {curves['idx_rep'].nunique()} repetitions")
        print(f"\n| problem | {' | '.join(seconds.columns)} |\n|{' --- |' * (1 + len(seconds.columns))}")
        for problem, row in seconds.iterrows():
            cells = ["" if pd.isna(value) else f"{value:.3g} s" for value in row]
            print(f"| {problem} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
