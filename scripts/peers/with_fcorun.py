"""fcorun, as its command line runs it, including the record and the picture.

Modifications:
- None. The task consists of fcorun's data set ``lasso`` and of its draws. fcorun evaluates every tenth round, and the
  time of the evaluations is part of the rounds; no other framework evaluates. The times are those of `metrics.csv`.
"""

import tempfile
from pathlib import Path

from export import overrides
from task import load_task

import fcorun

task, out = load_task()
config = fcorun.compose([*overrides(task.method, task.cohort.shape[1], task.rounds), "verbose=false"])
with tempfile.TemporaryDirectory() as top:
    record = fcorun.run(config, Path(top, "run"))
    task.marks, task.marked = (record.metrics[name].tolist() for name in ("seconds", "round"))
    task.save_result(record.solution["weights"], record.solution["bias"], out)
