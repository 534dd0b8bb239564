"""Time choices, intervals and scores against the R and Python programs that a user would pick instead.

``python scripts/peers/clinical.py`` prints the table of docs/measurements.md; names of tasks limit it. Programs of R
run in Rscript and those of Python in ``--python`` (default: this one), and what is not installed is skipped with its
name. Times of peers are those of the computation alone, without the start of R or Python and without reading the table.
Those of fcorun are of commands from the shell to their files, beside a single run of the same algorithm.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
from benchmarks.measure import FCORUN, measure_command

from fcorun.base.system.machine import available_cores

TABLE = ["data=table", "data.path=t.csv", "data.target=y", "data.client=h", "data.task=binary", "verbose=false"]
READ_R = 't <- read.csv("t.csv"); y <- t$y; x <- as.matrix(t[, setdiff(names(t), c("y", "h", "p"))])\n'
READ_PYTHON = "import pandas as pd\nt = pd.read_csv('t.csv')\ny, x = t.y, t.drop(columns=['y', 'h', 'p'])\n"
R_PROGRAM = """{read}library({package})
seconds <- min(sapply(1:2, function(i) {{ set.seed(i); system.time({{ {code} }})[["elapsed"]] }}))
cat("{package}", as.character(packageVersion("{package}")), seconds)
"""
PYTHON_PROGRAM = """{read}import time, {package}, warnings
warnings.simplefilter("ignore")
{imports}
def seconds():
    begun = time.perf_counter()
    {code}
    return time.perf_counter() - begun
print("{package}", {package}.__version__, min(seconds(), seconds()))
"""


@dataclass(frozen=True)
class Peer:
    """A program of another package: its code, with the table as x and y, in R or with ``imports`` in Python."""

    package: str
    code: str
    imports: str = ""
    in_python: bool = False


@dataclass(frozen=True)
class Task:
    """A task on a table of ``rows`` and ``features``: fcorun's commands, of which the last is timed, and its peers."""

    label: str
    rows: int
    features: int
    single: list[str]
    commands: list[list[str]]
    peers: list[Peer] = field(default_factory=list)


def _choice(rows: int, features: int, algo: str = "centralized", peers: bool = True) -> Task:
    """Return the task of choosing a strength of the logistic LASSO by cross-validation, with peers if wanted."""
    glmnet = Peer("glmnet", 'cv.glmnet(x, y, family="binomial", nlambda=30, nfolds=5)')
    saga = Peer(
        "sklearn",
        "LogisticRegressionCV(Cs=30, cv=5, penalty='l1', solver='saga', tol=1e-6, max_iter=10000, "
        "scoring='neg_log_loss').fit(StandardScaler().fit_transform(x), y)",
        "from sklearn.linear_model import LogisticRegressionCV\nfrom sklearn.preprocessing import StandardScaler",
        in_python=True,
    )
    command = ["select", f"algo={algo}", *TABLE, "data.ignore=[p]", "points=30", "folds=5", "out=OUT"]
    single = [f"algo={algo}", *TABLE, "data.ignore=[p]", "out=OUT"]
    label = f"30 strengths x 5 folds, {rows:,} x {features}, {algo}"
    return Task(label, rows, features, single, [command], [glmnet, saga] if peers else [])


COMPARE_R = """fold <- sample(5, nrow(x), TRUE)
choose <- function(rows) cv.glmnet(x[rows, ], y[rows], family="binomial", nlambda=20)
for (f in 1:5) { choose(fold != f); for (h in unique(t$h)) choose(fold != f & t$h == h) }
"""
_RECORD = ["algo=newton", *TABLE, "data.ignore=[p]", "reg=none"]
_LASSO = ["algo=newton", *TABLE, "data.ignore=[p]", "reg=l1", "reg.strength=0.005"]
_INFER = ["infer", "r", "data.path=t.csv"]
TASKS = {
    "choice": _choice(427, 7),
    "choice_newton": _choice(427, 7, "newton", peers=False),
    "large_choice": _choice(3660, 79),
    "large_choice_newton": _choice(3660, 79, "newton", peers=False),
    "large_choice_feddualavg": _choice(3660, 79, "feddualavg", peers=False),
    "stability": Task(
        "stability selection, 100 halves, 3,660 x 79", 3660, 79, [*_LASSO, "out=OUT"],
        [["stability", *_LASSO[:-1], "points=20", "out=OUT"]],
        [Peer("stabs", "stabsel(x, y, fitfun=glmnet.lasso, args.fitfun=list(family='binomial'), cutoff=0.75, PFER=1)")],
    ),
    "compare": Task(
        "which model for which client, 5 folds, 3,660 x 79", 3660, 79, [*_LASSO, "out=OUT"],
        [["compare", *_LASSO[:-1], "points=20", "folds=5", "out=OUT"]],
        [Peer("glmnet", COMPARE_R)],
    ),
    "wald": Task(
        "Wald intervals, 3,660 x 79", 3660, 79, [*_RECORD, "out=OUT"], [[*_RECORD, "out=r"], _INFER],
        [
            Peer("stats", 'summary(glm(y ~ x, family="binomial"))'),
            Peer("statsmodels", "sm.Logit(y, sm.add_constant(x)).fit(disp=0).summary()",
                 "import statsmodels.api as sm", in_python=True),
        ],
    ),
    "debiased": Task(
        "debiased intervals, 3,660 x 79", 3660, 79, [*_LASSO, "out=OUT"], [[*_LASSO, "out=r"], _INFER],
        [Peer("hdi", 'lasso.proj(x, y, family="binomial")')],
    ),
    "bootstrap": Task(
        "1,000 bootstrap samples of scores, 3,660 rows", 3660, 79, [*_RECORD, "out=OUT"],
        [["select", "algo=newton", *TABLE, "data.ignore=[p]", "points=5", "out=r"], ["scores", "r"]],
        [
            Peer("pROC", 'ci.auc(roc(y, t$p, quiet=TRUE), method="bootstrap", boot.n=1000, progress="none")'),
            Peer("boot", "boot(t, function(t, i) mean((t$p[i] - t$y[i])^2), 1000)"),
        ],
    ),
}  # fmt: skip


def write_table(folder: Path, rows: int, features: int) -> None:
    """Write t.csv: two classes, hospitals of unequal sizes, and ``p``, the true probability, for programs of scores."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features))
    score = x[:, : min(features, 8)] @ np.array([0.8, -0.8, 0.6, -0.6, 0.5, 0.4, 0.3, 0.3])[:features]
    p = 1 / (1 + np.exp(1 - score))
    frame = pd.DataFrame(x, columns=[f"x{k}" for k in range(features)]).round(6)
    frame["p"] = p
    frame["y"] = (rng.random(rows) < p).astype(int)
    frame["h"] = rng.choice(list("ABCDE"), size=rows, p=[0.1, 0.15, 0.2, 0.25, 0.3])
    frame.to_csv(folder / "t.csv", index=False)


def time_fcorun(commands: list[list[str]], folder: Path) -> float:
    """Return the least seconds of two runs of the last command after the others, with a filled cache of programs."""
    cache = folder / "cache"
    for command in commands[:-1]:
        measure_command([*FCORUN, *command], folder, cache)
    found = []
    for attempt in range(3):  # the first one fills the cache
        command = [text.replace("OUT", f"out{attempt}") for text in commands[-1]]
        found.append(measure_command([*FCORUN, *command], folder, cache)[0])
        for name in (f"out{attempt}", "r/intervals"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return min(found[1:])


def time_peer(peer: Peer, folder: Path, python: str) -> tuple[str, float | None]:
    """Return the name and version of a peer, and the least seconds of two runs; None where it is not installed."""
    template, read = (PYTHON_PROGRAM, READ_PYTHON) if peer.in_python else (R_PROGRAM, READ_R)
    program = template.format(read=read, package=peer.package, code=peer.code, imports=peer.imports)
    command = [python, "-c", program] if peer.in_python else ["Rscript", "-e", program]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        lines = str(getattr(error, "stderr", error)).strip().splitlines()
        reason = lines[-1] if peer.in_python else lines[0]  # R ends with "Execution halted"
        print(f"{peer.package} is skipped: {reason}", file=sys.stderr)
        return peer.package, None
    name, version, seconds = done.stdout.split()[-3:]
    return f"{name} {version}", float(seconds)


def main() -> None:
    """Measure the tasks and print a row of a Markdown table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"the tasks: {', '.join(TASKS)} (default: all)")
    parser.add_argument("--python", default=sys.executable, help="the Python with scikit-learn and statsmodels")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(TASKS):
        parser.error(f"there is no task '{min(unknown)}': give {', '.join(TASKS)}")
    print(f"load {os.getloadavg()[0]:.1f} on {available_cores()} cores in the minute before\n")
    print("| task | `fcorun` | of which a single run | peers |\n| --- | --- | --- | --- |")
    for name in arguments.names or TASKS:  # the least of two after one that fills the caches
        task = TASKS[name]
        with tempfile.TemporaryDirectory() as top:
            folder = Path(top)
            write_table(folder, task.rows, task.features)
            single = time_fcorun([task.single], folder)
            seconds = time_fcorun(task.commands, folder)
            timed = [time_peer(peer, folder, arguments.python) for peer in task.peers]
        peers = ", ".join(f"{peer} {found:.2f} s" for peer, found in timed if found is not None)
        label = f"{task.label}: `fcorun {task.commands[-1][0]}`"
        print(f"| {label} | {seconds:.1f} s | {single:.1f} s | {peers or 'none is installed'} |", flush=True)


if __name__ == "__main__":
    main()
