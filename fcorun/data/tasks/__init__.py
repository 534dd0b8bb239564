"""Tasks: what a target is, one a file.

It imports ``base``.
"""

from fcorun.data.tasks.binary import Binary
from fcorun.data.tasks.multiclass import Multiclass
from fcorun.data.tasks.regression import Regression
from fcorun.data.tasks.task import Task, find_task, find_tasks
from fcorun.data.tasks.time_to_event import Survival

__all__ = ["Binary", "Multiclass", "Regression", "Survival", "Task", "find_task", "find_tasks"]
