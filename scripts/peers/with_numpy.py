"""No framework: a NumPy loop over the clients, one after another.

Modifications:
- None. The script is what one would write first. It computes the objective after every tenth round, as fcorun does.
"""

import numpy as np
from task import EVAL_EVERY, load_task

task, out = load_task()
state = task.start()
for number, cohort in enumerate(task.cohort, start=1):
    ends = [task.local(state, number - 1, client) for client in cohort]
    state = [np.mean(parts, axis=0) for parts in zip(*ends, strict=True)]
    if number % EVAL_EVERY == 0:
        task.evaluate(state)
    task.record_time()
task.save_result(*task.solution(state), out)
