"""A run is its record: one folder, whose files appear whole or not at all."""

import contextlib
import errno
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fcorun.base.errors import UserError, WriteError, check_type, describe_error
from fcorun.base.gone_options import drop_unused_of_sections
from fcorun.base.metrics import EPSILON
from fcorun.base.picture_style import name_picture_files, name_recorded_style
from fcorun.base.plugin_code import PluginCode
from fcorun.base.records import contents, formats, tables
from fcorun.base.records.archive_sums import check_sums
from fcorun.base.system import locks
from fcorun.base.system.files import append_line, find_paths, remove_path, write_atomically

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


Item = TypeVar("Item")

# The lock of a record's folder, which ends with the process that computes the record.

LOCK_FILE = ".lock"  # also the beginning of the name of its claim
IN_USE = "is being computed by another process: stop that process, or wait for it to end"  # said of a folder
_TIMEOUT = 0.05  # seconds to wait for a process that only looks whether the folder is locked


def try_lock(folder: Path) -> locks.Lock | None:
    """Lock a folder for this process; None if another process has the lock. Raises OSError if it cannot be created."""
    try:
        return locks.acquire(folder / LOCK_FILE, _TIMEOUT)
    except locks.LockedError:
        return None


def is_abandoned(folder: Path, status: dict[str, Any]) -> bool:
    """Return whether no process computes a record whose status is "running", because its process was killed.

    Returns False for a process of another machine, because a folder over a network need not share its locks.
    """
    is_here = status.get("host", platform.node()) == platform.node()
    return is_here and not locks.is_locked(folder / LOCK_FILE)


# A record on disk, the names of its files, and words in them.

PREDICTIONS_FILE = "predictions.csv"
SHARED = "shared"  # the model of all clients
PERSONAL = "personal"  # the personal models of the clients
CLIENT_INTERCEPTS = "client_intercepts"  # the parameter of a solution with the intercept of each client
TRAIN = "train"  # a set of rows
OUT_OF_FOLD = "out_of_fold"  # another one
SELECTION_FILE = contents.SELECTION.name  # the result of a selection
PERMUTATION_FILE = contents.PERMUTATION.name  # the result of a permutation test
STABILITY_FILE = contents.STABILITY.name  # the result of a stability selection
BASELINE_HAZARD_FILE = "baseline_hazard.csv"  # the cumulative baseline hazard of each client, of times to events
AT_SITES = "at their sites"  # the value of summary["personal_models"] for a study over sites
AWAY_FILE = "away_sites.csv"  # the requests that absent sites did not answer
REFIT_FOLDER = "refit"  # the folder in a selection that holds the run with the selected strength
SITE_SELECTION_FOLDER = "selection"  # the folder in a site's result that holds its predictions out of fold
PLUGIN_FOLDER = "plugins"  # the folder in a record with copies of the user's own files, to be read and never imported
PLUGIN_INDEX = f"{PLUGIN_FOLDER}/index.json"  # the digests of these files, by section of the configuration
PAGE_FILES = ("report.html", "report_short.html")  # the whole page, and one sheet
RECORD_FILES = (  # in the order of their importance to a reader
    *("metrics.csv", "clients.parquet", "scores.csv", PREDICTIONS_FILE),
    *("coefficients.csv", "coefficients_by_client.csv", "client_estimates.csv"),
    *("inference.csv", "inference.txt", "relaxed.csv", "lasso_metrics.csv", "imputations.csv"),
    *("roc.csv", "calibration.csv", "thresholds.csv", BASELINE_HAZARD_FILE, AWAY_FILE),
    *(
        f"{name}.{ending}"
        for ending in ("png", "pdf", "svg")
        for name in (
            *("curves", "clients", "coefficients", "inference", "splines", "brain", "brain_by_client"),
            *("roc", "calibration", "decision"),
        )
    ),
    *("weights.nii.gz", "weights_by_client.nii.gz", "mask.nii.gz"),
    *("summary.json", "solution.npz", "personal.npz", "encoding.json", "scaling.npz", "missing.csv", "config.yaml"),
    *(PLUGIN_FOLDER, *PAGE_FILES, "run.log", "status.json"),
)
# the files of a selection about the rows out of fold, some of which a choice has
OUT_OF_FOLD_FILES = (
    *(PREDICTIONS_FILE, "scores.csv", "nested.csv", "roc.csv", "calibration.csv", "thresholds.csv"),
    *name_picture_files("roc", "calibration", "decision"),
)
VOXEL_FILES = ("mask.nii.gz", "frequency.nii.gz", "stable.nii.gz")  # of a stability selection
# the results of each study, beside the file that names the study
STUDY_FILES = {
    SELECTION_FILE: ("selection.csv", "curve.csv", "path.csv", *OUT_OF_FOLD_FILES, *name_picture_files("selection")),
    STABILITY_FILE: ("stability.csv", "clients.csv", *VOXEL_FILES, *name_picture_files("stability", "brain")),
    PERMUTATION_FILE: ("permutations.csv", *name_picture_files("permutation")),
}
FINISHED_STATUSES = ("done", "diverged")


@dataclass(frozen=True)
class Record:
    """A run on disk. Each file is read when its property is first used."""

    folder: Path

    def __post_init__(self):
        check_type(self.folder, (str, os.PathLike), "the folder of a record", "give a path")
        object.__setattr__(self, "folder", Path(self.folder))

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json: ``status`` (running, done, diverged, failed, interrupted), ``reason``, ...

        Empty without the file. A record whose process was killed while running is reported as interrupted. Raises
        UserError for a value of another type, as ``config`` and ``summary`` do.
        """
        status = contents.STATUS.read(self.folder)
        if status.get("status") != "running" or not is_abandoned(self.folder, status):
            return status
        status = contents.STATUS.read(self.folder)  # the run may have ended since the first reading
        if status.get("status") == "running":
            status |= {"status": "interrupted", "reason": "killed, or its machine went down, or its disk was full"}
        return status

    @property
    def finished(self) -> bool:
        """True if nothing is left to compute: the run is done or has diverged."""
        return self.status.get("status") in FINISHED_STATUSES

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, without the tracker and the hosts, which belong to one invocation.

        Raises UserError for a damaged file.
        """
        try:
            written = self._written_config
        except formats.yaml.YAMLError as error:
            raise UserError(f"{self.folder} has a damaged configuration ({error}): {contents.CONFIG.cure}") from error
        return {key: value for key, value in written.items() if key not in ("tracker", "hosts")}

    @property
    def config_or_empty(self) -> dict[str, Any]:
        """The configuration of ``config``; empty without the file, or if it cannot be read."""
        try:
            return self.config
        except (OSError, UserError, AttributeError):
            return {}

    @cached_property
    def _written_config(self) -> dict[str, Any]:
        config = drop_unused_of_sections(formats.read_yaml(self.folder / contents.CONFIG.name))
        data = config.get("data")
        declared = config
        if isinstance(data, dict) and not str(data.get("class", "fcorun.")).startswith("fcorun."):
            shared = {key: data[key] for key in contents.SECTION_KEYS & data.keys()}
            declared = {**config, "data": shared}  # a user's data set may have other options
        contents.CONFIG.check(declared, self.folder)
        return config

    def relocate(self, paths: Mapping[str, str]) -> "Record":
        """Return the record with other places of files that its configuration names, by key: ``data.path``."""
        record = type(self)(self.folder)
        config = deepcopy(self.config)
        for key, path in paths.items():
            section, _, name = key.rpartition(".")
            holder = config[section] if section else config
            holder[name] = path
        vars(record)["config"] = config
        return record

    @property
    def flat_config(self) -> dict[str, Any]:
        """The configuration with dotted keys, lists as text; empty if the file is missing or cannot be read."""
        try:
            return formats.flatten(self._written_config)
        except (OSError, formats.yaml.YAMLError, AttributeError):
            return {}

    @property
    def picture_title(self) -> str:
        """The title of the run's pictures: the key ``title``, else the plug-ins and numbers of the run in one line."""
        return str(self.flat_config.get("title") or self.status.get("label", self.folder.name))

    @property
    def picture_style(self) -> str:
        """The name of the style of the run's pictures."""
        return name_recorded_style(self.flat_config.get("style", "paper"), self.flat_config.get("width"))

    @cached_property
    def plugins(self) -> dict[str, Any]:
        """The code of the user's own plug-ins when they ran, by section; empty if all plug-ins are fcorun's.

        A section has ``class``, ``digest``, ``files`` with their SHA-256 and ``distributions`` with their versions.
        """
        return formats.read_json(self.folder / PLUGIN_INDEX)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final, best and tail-averaged metrics, times, versions. Raises FileNotFoundError without summary.json."""
        summary = contents.SUMMARY.read(self.folder)
        if not summary:
            raise FileNotFoundError(f"{self.folder} holds no summary.json that can be read")
        return summary

    @property
    def summary_or_empty(self) -> dict[str, Any]:
        """The content of summary.json; empty without the file, or if it cannot be read."""
        try:
            return self.summary
        except FileNotFoundError:
            return {}

    def check(self) -> None:
        """Raise UserError, which names the file, for a file of the record that is damaged; a missing one is none.

        A file that differs from the archive it was unpacked from is damaged, too.
        """
        for file in (contents.STATUS, contents.ENCODING):
            file.check_file(self.folder)
        if not self.summary_or_empty:
            contents.SUMMARY.check_file(self.folder)
        try:
            _ = self.config
        except FileNotFoundError:  # of a run that failed before it began
            pass
        except OSError as error:
            raise UserError(f"{self.folder} has a damaged configuration ({error}): {contents.CONFIG.cure}") from error
        _ = self.rows
        check_sums(self.folder)

    @property
    def spent_epsilon(self) -> str:
        """The cost of a private run with a secret key, such as "epsilon 1.2 by round 40"; "" of other runs.

        "" also of a run that told no round with noise: it stopped before its first checkpoint, or in round 0.
        """
        if self.flat_config.get("privacy.key") != "secret":
            return ""
        with contextlib.suppress(UserError, KeyError):
            if rows := self.rows:
                if rows[-1]["round"]:
                    return f"epsilon {rows[-1][EPSILON]:.3g} by round {rows[-1]['round']:g}"
                if self.status.get("status") != "diverged":  # which is told of a later round
                    return ""
            elif not self.finished and not (self.folder / _CHECKPOINT).exists():
                return ""
        return "epsilon"

    def check_replaceable(self) -> None:
        """Refuse to replace a private run with a secret key, whose epsilon nobody would add. Raises UserError."""
        if spent := self.spent_epsilon:
            raise UserError(f"`force=true` would replace the private run in {self.folder}, whose {spent} is spent: "
                            "another run has another secret key, and costs its epsilon besides; choose another folder, "
                            "which keeps both records, and add the two")  # fmt: skip

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.csv as plain values; none without the file. Raises UserError for a damaged one."""
        return tables.METRICS.read_rows(self.folder)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """The evaluations, one a row: round, seconds, bytes_up, bytes_down, grad_evals, prox_evals, then metrics."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """The scores of the models on the rows of training, validation and test; empty without scores.csv.

        Each row has a set of rows, a ``model`` and a ``client`` (empty for all):
        ``fcorun.results.models.predictions`` writes them.
        """
        import pandas as pd

        return pd.DataFrame(tables.SCORES.read(self.folder))

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """The predictions for the held-out rows, of ``fcorun.results.models.predictions``; empty without the file.

        Names of clients, labels of classes and the columns that ``data.keep`` names are text.
        """
        import pandas as pd

        predictions = pd.DataFrame(tables.PREDICTIONS.read(self.folder))
        if not len(predictions.columns):
            return predictions
        is_regression = "classes" in self.summary["data"] and not self.summary["data"]["classes"]
        for name in predictions:
            if name.startswith("probability_") or (is_regression and name in ("target", "prediction")):
                try:
                    predictions[name] = predictions[name].astype(float)  # Python's float() is exact in any version
                except ValueError as error:
                    raise tables.PREDICTIONS.describe_damage(self.folder, f"'{name}' has no number") from error
        return predictions

    @cached_property
    def scaling(self) -> "dict[str, np.ndarray]":
        """The standardization of each client's features if it was ``per_client``; else empty.

        The arrays are ``client`` (M,), ``rows`` (M,) of training, ``mean_`` and ``var_`` (M, d).
        """
        return self._read_arrays("scaling.npz")

    @cached_property
    def solution(self) -> "dict[str, np.ndarray]":
        """The parameters of the output, by name."""
        return formats.read_npz(self.folder / "solution.npz")

    @cached_property
    def personal(self) -> "dict[str, np.ndarray]":
        """The clients' personal models by parameter, with a leading axis M, and ``client``, their names; or empty."""
        return self._read_arrays("personal.npz")

    def _read_arrays(self, name: str) -> "dict[str, np.ndarray]":
        """Read named arrays; none without the file."""
        return formats.read_npz(self.folder / name) if (self.folder / name).exists() else {}

    @property
    def has_personal_models_at_sites(self) -> bool:
        """Return whether personal models have stayed at their sites, each in the record that its site keeps."""
        return self.summary.get("personal_models") == AT_SITES


def is_refit_of_stability(record: Record) -> bool:
    """Return whether a record is in the refit folder of a stability selection, which chose its features."""
    folder = record.folder.resolve()
    return folder.name == REFIT_FOLDER and (folder.parent / STABILITY_FILE).exists()


def is_refit_of_adaptive_lasso(record: Record) -> bool:
    """Return whether a record is in the refit folder of a selection whose rows gave the weights of the penalty."""
    folder = record.folder.resolve()
    return folder.name == REFIT_FOLDER and bool(contents.SELECTION.read(folder.parent).get("adaptive"))


def split_damaged(items: Iterable[Item], check: Callable[[Item], None]) -> tuple[list[Item], list[str]]:
    """Return the records, or folders of studies, without a damaged file, and a sentence about each other one.

    ``check`` raises UserError for a damaged one.
    """
    whole = []
    sentences = []
    for item in items:
        try:
            check(item)
        except UserError as error:
            sentences.append(str(error))
        else:
            whole.append(item)
    return whole, sentences


def load_records(*roots: str | Path) -> list[Record]:
    """Load the records in and under these folders, in the order of their paths.

    Raises UserError for a folder that does not exist.
    """
    for root in roots:
        check_type(root, (str, os.PathLike), "a folder", "give each folder as a path of its own")
        check_folder(Path(root))
    folders = {path.parent for root in roots for path in find_paths(Path(root), "status.json")}
    return [Record(folder) for folder in sorted(folders)]


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder of records that is not there, and for an archive that is not unpacked."""
    if folder.suffix == ".zip" and folder.is_file():
        unpacked = folder.with_suffix("")
        raise UserError(f"{folder} is an archive: unpack it by `python -m zipfile -e {folder} {unpacked}`, and give "
                        f"{unpacked}")  # fmt: skip
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one that holds records")


# The folder of a run that is being computed.

_CHECKPOINT = ".checkpoint.npz"
_CLIENT_STATES = ".states.bin"  # a part of the checkpoint


@dataclass
class RunFolder:
    """The folder of a run that is being computed. No file is written before ``claim``.

    Attributes:
        identity: the identity of the run's experiment.
        lock: the lock of the folder while this process has claimed it.
    """

    path: Path
    identity: str
    lock: locks.Lock | None = field(default=None, repr=False)

    def inspect(self, force: bool = False) -> str:
        """Return the state of the folder: "new" (to compute), "resume", or "finished" (the same run). Changes nothing.

        Raises UserError if the folder holds another run and ``force`` is not set, or if it has no status.json but
        other files of a record.
        """
        record = Record(self.path)
        # The status is read between two looks for files: a process that begins a run meanwhile writes status.json
        # before other files, and a process that removes a record removes status.json after them.
        first_file = self._first_record_file()
        status = record.status
        if not status:
            if first_file and self._first_record_file():
                raise UserError(f"`out={self.path}` has a file {first_file} that is of no run; choose another folder")
            return "new"
        if force:
            return "new"
        if status.get("identity") != self.identity:
            code = f", by the code in {PLUGIN_FOLDER}/: an edit of it makes another run" if record.plugins else ""
            raise UserError(
                f"`out={self.path}` holds another run ({status.get('label', 'unknown')}, "
                f"{status.get('status')}{code}); choose another folder, or `force=true` to replace it"
            )
        return "finished" if record.finished else "resume"

    def touch(self) -> None:
        """Set the time of status.json to now, because the finished run was requested again.

        Of several records of one configuration, by different code or on other data, tables take the latest.
        """
        with contextlib.suppress(OSError):
            os.utime(self.path / "status.json")
            # a lock may be that of a process killed after the end of the run
            if self.lock is None and any(self.path.glob(f"{LOCK_FILE}*")):
                self.lock = try_lock(self.path)
                self.release()

    def _first_record_file(self) -> str:
        """Return the name of the first existing file that a run would replace; empty if there is none."""
        try:
            present = os.listdir(self.path)
        except OSError:  # no folder
            return ""
        return next((name for name in RECORD_FILES if name in present), "")

    def claim(self, force: bool = False, label: str = "") -> str:
        """Lock the folder for this process unless its run is finished, and return its state.

        The state is that of ``inspect``, or "locked" if another process has the folder. A "new" folder is left
        without old files, and with a status.json that shows ``label``. The lock ends with its process.
        Raises UserError if the folder cannot be written, and as ``inspect`` does.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = try_lock(self.path)
        except OSError as error:
            raise UserError(f"`out={self.path}` cannot be written ({error.strerror}); choose another folder") from error
        if self.lock is None:
            return "locked"
        try:
            state = self.inspect(force)
            if state == "new":  # in this order, an interruption leaves the old record or a resumable one
                self.delete_checkpoint()
                self.mark_running(label)
                self._unlink(set(RECORD_FILES) - {"status.json"})
            elif state == "resume":
                has_checkpoint = (self.path / _CHECKPOINT).exists()
                if not has_checkpoint and not Record(self.path).spent_epsilon:  # it tells what a lost key has cost
                    # begins anew; an interrupted claim may have left old files
                    self._unlink(set(RECORD_FILES) - {"status.json", "run.log", "config.yaml"})
                names = (*RECORD_FILES, _CHECKPOINT, _CLIENT_STATES)
                links = [name for name in names if (self.path / name).is_symlink()]
                self._unlink([*links, PLUGIN_FOLDER])  # no file is written through a link; plug-ins are copied again
                if self.lock.is_taken_over and self.client_states_path.exists():
                    # the former process has the file open, and may only be suspended: this one takes a copy
                    copy = self.path / f"{_CLIENT_STATES}.tmp"
                    shutil.copyfile(self.client_states_path, copy)
                    copy.replace(self.client_states_path)
        except BaseException:
            self.release()
            raise
        if state == "finished":
            self.touch()
            self.release()
        return state

    def _unlink(self, names: Iterable[str]) -> None:
        """Remove these files of the record, and temporary files that an interrupted process has left."""
        names = set(names)
        for name in os.listdir(self.path):
            if name in names or (name.startswith(".") and name.endswith(".tmp")):
                remove_path(self.path / name)

    def remove(self) -> None:
        """Delete the record's files, and the folder if nothing else is in it. Raises UserError if it is in use."""
        if self.claim(force=True) == "locked":
            raise UserError(f"{self.path} {IN_USE}")
        self._unlink(RECORD_FILES)
        self.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def release(self) -> None:
        """Unlock the folder if this process has locked it."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    @property
    def is_lost(self) -> bool:
        """Return whether another process may have taken the claimed folder over, because this one was suspended."""
        return self.lock is not None and not self.lock.is_held

    def write_file(self, name: str, content: bytes | str, private: bool = False) -> None:
        """Write a file of the record atomically, a ``private`` one for its owner alone.

        Raises WriteError, also if the folder is lost.
        """
        self._check_held(name)
        write_atomically(self.path / name, content, private=private)

    def _check_held(self, name: str) -> None:
        """Raise WriteError for a file of a folder that is lost."""
        if self.is_lost:
            raise WriteError(errno.ESTALE, "another process may have taken the record over", str(self.path / name))

    def save_plugins(self, plugins: Mapping[str, PluginCode]) -> None:
        """Save copies of the files of the user's own plug-ins, and their digests by section."""
        if not plugins:
            return
        (self.path / PLUGIN_FOLDER).mkdir(exist_ok=True)
        for code in plugins.values():
            for file_name, content in code.files.items():
                (self.path / PLUGIN_FOLDER / file_name).parent.mkdir(parents=True, exist_ok=True)
                self.write_file(f"{PLUGIN_FOLDER}/{file_name}", content)
        index = {section: code.to_json() for section, code in plugins.items()}
        self.write_file(PLUGIN_INDEX, formats.json_text(index))

    def mark_running(self, label: str, progress: str = "", **more: Any) -> None:
        """Write to status.json that this process is computing the run, and as its ``reason`` the progress so far."""
        self.write_status("running", label, progress, pid=os.getpid(), host=platform.node(), **more)

    def write_status(self, status: str, label: str, reason: str = "", **more: Any) -> None:
        """Write status.json."""
        content = {"status": status, "reason": reason, "label": label, "identity": self.identity, **more}
        self.write_file("status.json", formats.json_text(content))

    def log(self, line: str) -> None:
        """Append a line to run.log, with the time in UTC. Raises WriteError, also if the folder is lost."""
        self._check_held("run.log")
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        append_line(self.path / "run.log", f"{stamp}  {line}")

    def mark_failed(self, error: BaseException, label: str) -> None:
        """Record a failure: the traceback in run.log, one line in status.json."""
        self.log("failed\n" + "".join(traceback.format_exception(error)).rstrip())
        self.write_status("failed", label, describe_error(error))

    @property
    def client_states_path(self) -> Path:
        """The file of the clients' states during the run, if they are too large for the checkpoint."""
        return self.path / _CLIENT_STATES

    def save_checkpoint(self, checkpoint: formats.Checkpoint, private: bool = False) -> None:
        """Save the state from which a restart resumes, ``private`` if it has a secret, and the rows in metrics.csv."""
        self.write_file("metrics.csv", formats.csv_text(checkpoint.rows))
        self.write_file(_CHECKPOINT, formats.checkpoint_bytes(checkpoint), private)

    def load_checkpoint(self) -> formats.Checkpoint | None:
        """Load what ``save_checkpoint`` has saved; None if the file is missing or cannot be read."""
        return formats.read_checkpoint(self.path / _CHECKPOINT)

    @property
    def checkpoint_path(self) -> Path:
        """The file of the checkpoint."""
        return self.path / _CHECKPOINT

    def delete_checkpoint(self) -> None:
        """Delete the checkpoint, because the run is over or starts again."""
        for name in (_CHECKPOINT, _CLIENT_STATES):
            (self.path / name).unlink(missing_ok=True)
