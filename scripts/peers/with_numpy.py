"""No framework: a NumPy loop over the clients, one after another.

Modifications:
- None. The script is what one would write first.
"""

import numpy as np
from task import load_task

task, out = load_task()
state = task.start()
for number, cohort in enumerate(task.cohort):
    ends = [task.local(state, number, client) for client in cohort]
    state = [np.mean(parts, axis=0) for parts in zip(*ends, strict=True)]
    task.record_time()
task.save_result(*task.solution(state), out)
