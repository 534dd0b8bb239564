"""The contract of executors, and groups of points as tasks for other processes."""

import os
import pickle
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from fcorun.base.config import Count, build, find_user_code, import_classes
from fcorun.base.errors import RemoteError, UserError, describe_error
from fcorun.base.plugin_code import PluginCode
from fcorun.base.records.record import Record
from fcorun.base.system.machine import check_versions, read_versions, set_up_jax
from fcorun.base.trust import class_path, forget_folder_modules, locate_user_class
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import PointGroups, SweepPoint

PointResult = tuple[str, str]  # the end status of a point, and its error in words


@dataclass(frozen=True)
class LauncherOptions:
    """The keys of hydra.launcher: see conf/hydra/launcher/fcorun.yaml."""

    executor: Literal["inline", "dask", "submitit"] = "inline"
    batch: Count | None = None
    pictures: bool = True
    address: str | None = None
    dask: dict | None = None
    submitit: dict | None = None
    wait: bool = True


def check_launcher(values: Mapping[str, Any], on_several_hosts: bool = False) -> None:
    """Raise UserError for keys of hydra.launcher that are not valid.

    Args:
        on_several_hosts: whether the command computes on several hosts, which are workers of Dask.
    """
    if values.get("executor") == "joblib":
        raise UserError("`hydra.launcher.executor=joblib` is no more: give `hydra.launcher.executor=dask`, whose "
                        "workers are processes of this machine, as many as it has cores")  # fmt: skip
    options: LauncherOptions = build(LauncherOptions, values, "hydra.launcher")  # names a wrong key as it was given
    for name, executor in (("address", "dask"), ("dask", "dask"), ("submitit", "submitit"), ("wait", "submitit")):
        if getattr(options, name) in (None, True) or options.executor == executor:
            continue
        if not on_several_hosts:
            raise UserError(f"`hydra.launcher.{name}` is of `hydra.launcher.executor={executor}`: leave it out, or "
                            "give that executor, too")  # fmt: skip
        if executor != "dask":
            raise UserError(f"`hydra.launcher.{name}` is of `hydra.launcher.executor={executor}`, and several hosts "
                            "are workers of Dask: leave it out")  # fmt: skip


def check_launcher_of_run(values: Mapping[str, Any], given: Collection[str], on_several_hosts: bool) -> None:
    """Raise UserError for keys of hydra.launcher that are not valid, or that a single run does not use.

    Args:
        given: the keys that the command gives; an experiment may have others, for its sweep.
    """
    for option in fields(LauncherOptions):
        is_of_hosts = option.name in ("address", "dask")
        is_used = is_of_hosts and on_several_hosts
        if option.name in given and values.get(option.name) != option.default and not is_used:
            owners = "sweeps and several hosts" if is_of_hosts else "sweeps"
            raise UserError(f"`hydra.launcher.{option.name}` is of {owners}: leave it out of a single run")
    check_launcher(values, on_several_hosts)


@dataclass
class Executor(ABC):
    """The place where the groups of a sweep are computed.

    Attributes:
        fail_fast: whether the first failure ends the sweep.
        keeps_places: whether groups are made of all points, finished or not, and each point keeps its place in the
            program of its group, so that numbers do not depend on what is finished, to the last bit.
        opened: what ``close`` closes.
    """

    options: LauncherOptions
    fail_fast: bool = False
    opened: ExitStack = field(default_factory=ExitStack)
    keeps_places: ClassVar[bool] = False

    @abstractmethod
    def start(self, experiments: Sequence[PreparedExperiment], show: Callable[[str], None]) -> None:
        """Prepare to run these experiments, before any file is written. Raises UserError."""

    def largest_group(self, n_points: int) -> int:
        """Return how many of ``n_points`` points that differ in numbers and seed only are computed together at most."""
        return self.options.batch or n_points

    @abstractmethod
    def run(self, groups: PointGroups, watch: SweepWatcher) -> None:
        """Run the points of groups that are not over. Sets the ``end_status`` and ``error`` of each."""

    def check_removal(self, points: Sequence[SweepPoint]) -> None:  # noqa: B027  # most executors keep no queue
        """Raise UserError if ``force`` may not remove the records of these points."""

    def close(self) -> None:
        """Give back what ``start`` has taken."""
        self.opened.close()


@dataclass(frozen=True)
class PackedWork:
    """Work for another process, which imports the plug-ins' classes before it unpickles the content.

    Attributes:
        folder: the current folder of the process that made the task.
        config: the configuration of an experiment, which names the classes.
        content: the pickled work, such as a group of points.
        n_cores: the number of cores that the process may use; None: all.
        code: the user's code by which the identities of the runs were computed, by section.
        versions: those of the process that made the task, by package.
    """

    folder: str
    config: dict[str, Any]
    content: bytes
    n_cores: int | None
    code: Mapping[str, PluginCode] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=read_versions)

    @classmethod
    def of_group(cls, group: list[SweepPoint], n_cores: int | None) -> "PackedWork":
        """Return the task of a group."""
        experiments = [point.experiment for point in group if point.experiment]
        assert all(experiment.identity for experiment in experiments)  # which the pickles hold from then on
        return cls.of_content(group, experiments[0], n_cores)

    @classmethod
    def of_content(cls, content: Any, experiment: PreparedExperiment, n_cores: int | None) -> "PackedWork":
        """Return a task with this content, whose classes ``experiment`` names."""
        config = experiment.config | {"tracker": {"class": class_path(type(experiment.tracker))}}
        return cls(os.getcwd(), config, pickle.dumps(content), n_cores, experiment.plugin_code)

    def start(self) -> Any:
        """Prepare this process for the work, and return the content.

        Raises UserError if this process has other versions, does not see the folder, or cannot run the code by which
        the identities were computed.
        """
        here = f"the process {os.getpid()} on {socket.gethostname()}, which computes the runs,"
        if vars(self).keys() != {option.name for option in fields(self)}:
            raise UserError(f"{here} has another version of fcorun than the command had: give the command again")
        check_versions(self.versions, here)
        if self.n_cores is not None:
            os.environ["FCORUN_CORES"] = str(self.n_cores)
        set_up_jax()
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UserError(f"{here} cannot enter the command's folder {self.folder} ({error.strerror}): give the "
                            "command again, in a folder that all such processes see") from error  # fmt: skip
        forget_folder_modules()  # of an earlier task, which may be of another folder, or of a file before an edit
        import_classes(self.config)
        for section, code in self.code.items():
            code_here = find_user_code(locate_user_class(code.path, f"{section}.class"))
            if code_here is None or code_here.digest != code.digest:
                raise UserError(code.explain_difference(code_here))
        return pickle.loads(self.content)


def compute_group(task: PackedWork, executor: Executor) -> list[PointResult]:
    """Run the group of points of a task in this process; return the result of each.

    Raises UserError if the code, or the files of a run, have changed since its identity was computed.
    """
    group = task.start()
    check_files([point.experiment for point in group if point.experiment and not point.is_over])
    executor.run([group], SweepWatcher())
    return list_results(group)


def check_files(experiments: Iterable[PreparedExperiment]) -> None:
    """Raise UserError if the files of experiments have changed since their identities were computed."""
    checked: set[str] = set()  # the fingerprints of data, which the points of a group share
    for experiment in experiments:
        anew = replace(experiment)
        if experiment.fingerprint in checked:
            vars(anew)["fingerprint"] = experiment.fingerprint
        elif anew.fingerprint != experiment.fingerprint:
            raise UserError(f"the rows of `data={experiment.names['data']}` have changed since the command was given: "
                            "give the command again")  # fmt: skip
        checked.add(experiment.fingerprint)
        if anew.identity != experiment.identity:
            raise UserError("a file that the run reads, such as the record of `start`, has changed since the command "
                            "was given: give the command again")  # fmt: skip


def list_results(group: list[SweepPoint], failure: BaseException | None = None) -> list[PointResult]:
    """Return the result of each point; those that have not ended have failed by ``failure``."""
    results = []
    for point in group:
        error = point.error if point.end_status else failure
        results.append((point.end_status or "failed", describe_error(error) if error else ""))
    return results


def take_results(group: list[SweepPoint], results: Sequence[PointResult], watch: SweepWatcher) -> None:
    """Set the ``end_status`` and ``error`` of each point of a group that another process has computed.

    Shows the warnings in the records of these points.
    """
    for point, (end_status, error_text) in zip(group, results, strict=True):
        point.end_status = end_status
        point.error = RemoteError(error_text) if error_text else None
        if point.folder_state != "finished":
            watch.warn(Record(point.folder).summary_or_empty.get("warnings", ()))
            watch.on_point_end(point)


def has_failed(groups: Iterable[list[SweepPoint]]) -> bool:
    """Return whether a point of these groups ended by an error."""
    return any(point.error is not None for group in groups for point in group)


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Keep the current folder out of the ``sys.path`` of processes that are started by Python's -m."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
