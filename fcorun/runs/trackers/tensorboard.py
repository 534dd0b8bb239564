"""TensorBoard event files: tensorboard --logdir FOLDER."""

import time
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from fcorun.base.config import PathOption
from fcorun.base.records.record import Record
from fcorun.experiment.tracker import Tracker, end_time, final_scalars, flat_parameters, run_name, scalars_of_rows


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files with scalars, hyper-parameters with the final metrics, the configuration, and the curves.

    The event files of a run are in ``folder``/DATA/ALGORITHM-IDENTITY. A complete record replaces those of the run
    while it went on, and those of an earlier run.
    """

    folder: PathOption = "tensorboard"
    required_modules = ("tensorboardX",)
    pip_extra = "tensorboard"

    def on_evaluation(self, record, rows):
        from tensorboardX import SummaryWriter

        with SummaryWriter(str(self._log_dir(record))) as writer:
            for name, value, step, now in scalars_of_rows(rows, time.time()):
                writer.add_scalar(name, value, step, walltime=now)

    def _log_dir(self, record: Record) -> FilePath:
        return FilePath(self.folder) / record.config["data"]["name"] / run_name(record)

    def log(self, record):
        from matplotlib.image import imread
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        log_dir = self._log_dir(record)
        for event_file in log_dir.glob("events.out.tfevents.*"):
            event_file.unlink()
        status = record.status
        with SummaryWriter(str(log_dir)) as writer:
            for name, value, step, now in [*scalars_of_rows(record.rows, end_time(record)), *final_scalars(record)]:
                writer.add_scalar(name, value, step, walltime=now)
            final = {f"final_{name}": value for name, value in record.summary["final"].items()}
            events: Any = writer.file_writer
            for summary in hparams(flat_parameters(record) | {"status": status["status"]}, final):
                events.add_summary(summary)
            writer.add_text("status", f"{status['status']} {status['reason']}".strip())
            config = (record.folder / "config.yaml").read_text(encoding="utf-8")
            writer.add_text("config", f"```\n{config}```")
            if (curves := record.folder / "curves.png").exists():  # points of a sweep have no picture
                picture = (imread(curves)[..., :3] * 255).astype("uint8")
                writer.add_image("curves", picture, dataformats="HWC")
