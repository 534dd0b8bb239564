"""Groups in this process, side by side on its cores."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from fcorun.base.system.machine import compute_policy, limit_blas_threads
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.batch import check_devices
from fcorun.runs.executors.executor import Executor, has_failed
from fcorun.runs.job import SweepWatcher
from fcorun.runs.shared_cores import SharedCores
from fcorun.runs.sweep_point import PointGroups, run_group


class InlineExecutor(Executor):
    """This process. Points that another process is computing are waited for at the end."""

    def start(self, experiments: Sequence[PreparedExperiment], show: Callable[[str], None]) -> None:
        check_devices(experiments)

    def run(self, groups: PointGroups, watch: SweepWatcher) -> None:
        groups_to_run = list(groups)
        is_debugged = any(point.experiment and point.experiment.settings.debug for group in groups for point in group)
        cores = SharedCores()
        # more threads of BLAS would take cores from other groups, to wait there; also for a group that is left alone,
        # whose numbers else were others
        blas_threads = 1 if compute_policy().threaded_batches else None
        while groups_to_run:
            calls = [partial(run_group, group, watch, cores, self.keeps_places) for group in groups_to_run]
            ends_early = partial(self._ends_by_failure, groups_to_run)
            with limit_blas_threads(blas_threads):
                cores.run_side_by_side(calls, ends_early, one_by_one=is_debugged)
            if ends_early():
                return
            n_locked = 0
            locked_groups = []
            for group in groups_to_run:
                locked = [point for point in group if point.end_status == "locked"]
                n_locked += len(locked)
                if locked:
                    locked_groups.append(group if self.keeps_places else locked)
            groups_to_run = locked_groups
            if groups_to_run:
                watch.on_wait(n_locked)
                time.sleep(1)

    def _ends_by_failure(self, groups: PointGroups) -> bool:
        """Return whether ``fail_fast`` ends the sweep by an error in these groups."""
        return self.fail_fast and has_failed(groups)
