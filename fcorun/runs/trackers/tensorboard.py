"""TensorBoard event files: tensorboard --logdir FOLDER."""

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from fcorun.base.config import PathOption
from fcorun.experiment.tracker import Tracker, flat_parameters, iterate_scalars, run_name


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files with scalars, hyper-parameters with the final metrics, the configuration, and the curves.

    The event files of a run are in ``folder``/DATA/ALGORITHM-IDENTITY. A run that is computed again replaces them.
    """

    folder: PathOption = "tensorboard"
    required_modules = ("tensorboardX",)
    pip_extra = "tensorboard"

    def log(self, record):
        from matplotlib.image import imread
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        log_dir = FilePath(self.folder) / record.config["data"]["name"] / run_name(record)
        for event_file in log_dir.glob("events.out.tfevents.*"):
            event_file.unlink()
        status = record.status
        with SummaryWriter(str(log_dir)) as writer:
            for name, value, step, time in iterate_scalars(record):
                writer.add_scalar(name, value, step, walltime=time)
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
