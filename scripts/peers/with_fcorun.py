"""fcorun, as its command line runs it: cores are devices, programs are stored; with the record and the picture.

Modifications:
- None. The task consists of fcorun's data set ``lasso`` and of its draws. The times are those of `metrics.csv`,
  with evaluations of the objective, and of held-out rows (a quarter as many), structure and support besides.
"""

import tempfile
from pathlib import Path

from export import overrides
from task import load_task

import fcorun
from fcorun.base.system.machine import set_up_jax

set_up_jax()
task, out = load_task()
config = fcorun.compose([*overrides(task.method, task.cohort.shape[1], task.rounds), "verbose=false"])
with tempfile.TemporaryDirectory() as top:
    record = fcorun.run(config, Path(top, "run"))
    task.marks, task.marked = (record.metrics[name].tolist() for name in ("seconds", "round"))
    task.save_result(record.solution["weights"], record.solution["bias"], out)
