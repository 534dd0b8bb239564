"""fcorun, as its command line runs it, with the record and the picture that it leaves.

Modifications:
- None. Its own data set ``lasso`` and its own draws are what the others are given. Every tenth round it evaluates, and
  the time of that counts as the rounds'; nobody else evaluates. The times are those of its own `metrics.csv`.
"""

import tempfile
from pathlib import Path

from export import overrides
from task import given

import fcorun

task, out = given()
config = fcorun.compose([*overrides(task.method, task.cohort.shape[1], task.rounds), "verbose=false"])
with tempfile.TemporaryDirectory() as top:
    record = fcorun.run(config, Path(top, "run"))
    task.marks, task.marked = (record.metrics[name].tolist() for name in ("seconds", "round"))
    task.leave(record.solution["weights"], record.solution["bias"], out)
