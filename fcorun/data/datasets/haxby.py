"""Haxby's fMRI scans of subjects who look at faces, houses and other objects: a client is one run of one subject."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fcorun.base import config
from fcorun.base.errors import UserError, first_line, suggest_name, word
from fcorun.base.system.files import file_digest
from fcorun.data.datasets.dataset import Dataset, Features, FederatedData
from fcorun.data.datasets.images import (
    RUN_DEPENDENCE,
    extract_voxels,
    file_stats,
    load_or_make,
    read_errors,
    read_voxel_grid,
)
from fcorun.data.rows.rows import Rows, renumber_clients

ARCHIVE = "http://data.pymvpa.org/datasets/haxby2001/subj{}-2010.01.14.tar.gz"
CHECKSUMS = "http://data.pymvpa.org/datasets/haxby2001/MD5SUMS"
MASK = "https://www.nitrc.org/frs/download.php/7868/mask.nii.gz"
SUBJECTS = (1, 2, 3, 4, 5, 6)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Haxby(Dataset):
    """fMRI scans of people who look at objects of two categories, such as faces and houses.

    The brain is masked by nilearn's mask. Every voxel of a run is standardized to mean 0 and sample deviation 1 over
    all volumes of that run, of every category. Files missing in ``root`` are downloaded, 300 MB a subject; masked scans
    are cached.
    """

    source = "@haxby2001, from PyMVPA by way of nilearn"
    units: ClassVar[bool] = False

    root: config.PathOption = "data"
    subjects: list[int] = field(default_factory=lambda: list(SUBJECTS))
    validation_subjects: list[int] | None = None
    validation_runs: list[int] | None = None
    categories: list[str] = field(default_factory=lambda: ["face", "house"])
    test_subjects: Annotated[list[int] | None, "default outside identity"] = None
    test_runs: Annotated[list[int] | None, "default outside identity"] = None
    fold: Annotated[Literal["subject"] | None, "default outside identity"] = None
    group: Annotated[Literal["subject"] | None, "default outside identity"] = None
    split_seed: config.SplitSeed = None

    def __post_init__(self):
        if not self.subjects:
            raise UserError(f"`data.subjects=[]` is empty: give some of {list(SUBJECTS)}")
        for subject in self.subjects:
            if subject not in SUBJECTS:
                raise UserError(
                    f"`data.subjects`: there is no subject {subject}; {suggest_name(subject, map(str, SUBJECTS))}"
                )
        for key in ("validation_subjects", "test_subjects"):
            for subject in getattr(self, key) or []:
                if subject not in self.subjects:
                    raise UserError(
                        f"`data.{key}`: subject {subject} is not one of `data.subjects={self.subjects}`; add it"
                    )
        for kind in ("subjects", "runs"):
            validation, test = (getattr(self, f"{split}_{kind}") or [] for split in ("validation", "test"))
            for number in (n for n in test if n in validation):
                raise UserError(
                    f"`data.validation_{kind}` and `data.test_{kind}` both name {number}: name it in one of them"
                )
        if len(self.categories) != 2 or len(set(self.categories)) != 2:
            raise UserError(
                f"`data.categories={self.categories}` must be two different ones: give `data.categories=[face,house]`"
            )

    @property
    def dependence_warning(self):  # type: ignore[override]
        """Return a warning for splits that divide runs; whole subjects have whole runs."""
        return word(RUN_DEPENDENCE) if self.group is None else ""

    def load(self) -> FederatedData:
        """Return volumes x voxels (39,912 in nilearn's mask), float32, by subject, run and time; y indexes classes."""
        files = self._files()
        parts = []
        for subject, (bold, labels_file, mask) in files.items():
            labels, runs = _read_labels(labels_file)
            for category in self.categories:
                if category not in labels:
                    known = suggest_name(category, set(labels.tolist()))
                    raise UserError(f"`data.categories`: subject {subject} has no '{category}'; {known}")
            x, y, run = _mask_volumes((bold, labels_file, mask), labels, runs, sorted(self.categories))
            parts.append((x, y, np.full(len(y), subject), run))
        x, y, subject, run = (np.concatenate(values) for values in zip(*parts, strict=True))
        for key in ("validation_runs", "test_runs"):
            for number in getattr(self, key) or []:
                if number not in run:
                    known = sorted(set(run.tolist()))
                    raise UserError(f"`data.{key}`: there is no run {number}; the runs are {known}")
        validation_subjects = self.validation_subjects
        if validation_subjects is None:
            others = [subject for subject in self.subjects if subject not in (self.test_subjects or [])]
            has_default = len(set(others)) > 1 and self.validation_runs is None
            validation_subjects = others[-1:] if has_default else []
        is_test = np.isin(subject, self.test_subjects or []) | np.isin(run, self.test_runs or [])
        is_validation = np.isin(subject, validation_subjects) | np.isin(run, self.validation_runs or [])
        masks = {"train": ~is_test & ~is_validation, "validation": is_validation & ~is_test, "test": is_test}
        if not masks["train"].any():
            tested = " and the keys of the test" if is_test.any() else ""
            raise UserError(
                f"`data.validation_subjects` and `data.validation_runs`{tested} hold out every run: leave some to "
                "train on"
            )
        subject_names = np.char.add("subject", subject.astype(str))
        codes = subject * (run.max() + 1) + run  # of clients, which are runs of subjects
        client, trained, others = renumber_clients(codes, masks["train"])
        fold = None if self.fold is None else subject_names
        group = None if self.group is None else subject_names
        rows = Rows(x, y, client, fold=fold, group=group)
        names = {code: f"{s}_run{r}" for code, s, r in zip(codes.tolist(), subject_names, run, strict=True)}
        return FederatedData(
            train=rows.take(masks["train"]),
            validation=rows.take(masks["validation"]),
            test=rows.take(masks["test"]),
            features=Features(
                standardized={"by": "per_run"}, voxel_grid=read_voxel_grid(next(iter(files.values()))[2])
            ),
            task="binary",
            classes=tuple(sorted(self.categories)),
            clients=tuple(names[code] for code in trained.tolist()),
            held_out_clients=tuple(names[code] for code in others.tolist()),
        ).validate()

    def fetch(self) -> None:
        self._files()

    def sources(self) -> Any:
        """Return for each subject digests of the labels, of the mask and of both ends of the scan."""
        return {
            subject: [file_digest(file) for file in files] for subject, files in self._files(download=False).items()
        }

    def _files(self, download: bool = True) -> dict[int, tuple[Path, Path, Path]]:
        """Return scan, labels and mask of each subject. Downloads missing files if ``download``."""
        folder = Path(self.root).expanduser() / "haxby2001"
        files = {
            s: (folder / f"subj{s}" / "bold.nii.gz", folder / f"subj{s}" / "labels.txt", folder / "mask.nii.gz")
            for s in sorted(set(self.subjects))
        }
        missing = [s for s, needed in files.items() if not all(f.exists() for f in needed)]
        if missing and not download:
            raise UserError(f"`data.root={self.root}`: subject {missing[0]} of the Haxby data is not in '{folder}' "
                            "yet; a run that is not dry downloads it")  # fmt: skip
        if missing:
            from nilearn.datasets import fetch_haxby
        for subject in missing:  # one at a time, so that complete subjects stay when the next download fails
            log.info("downloading subject %d of the Haxby data to %s", subject, folder.parent)
            try:
                # one subject a call: nilearn 0.14 mixes files up where subject 6, without anatomical scan, is not last
                fetch_haxby(data_dir=str(folder.parent), subjects=[subject], fetch_stimuli=False, verbose=0)
            # nilearn raises errors of many types: network, disk, checksum, archive
            except Exception as error:
                left = missing[missing.index(subject) :]
                wanted = f"subject {subject} of the Haxby data is"
                if len(left) > 1:
                    wanted = f"subjects {', '.join(map(str, left))} of the Haxby data are"
                raise UserError(
                    f"`data.root={self.root}`: {wanted} not in '{folder}' and cannot be downloaded "
                    f"({type(error).__name__}); unpack {ARCHIVE.format(subject)} (so for each subject, 300 MB of "
                    f"PyMVPA, whose checksums are in {CHECKSUMS}) into that folder, which gives subj{subject}/, and "
                    f"put {MASK} of nilearn into the same folder"
                ) from error
        return files


def _read_labels(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the label and the run of each volume, both of shape (volumes,)."""
    import pandas as pd

    try:
        frame = pd.read_csv(file, sep=r"\s+", dtype={"labels": str, "chunks": int}, keep_default_na=False)
        return frame["labels"].to_numpy(str), frame["chunks"].to_numpy()
    except OSError as error:
        raise UserError(
            f"`data.root`: {file} cannot be read ({error.strerror}); give yourself the right to read it, or "
            "delete it and download it anew"
        ) from error
    except (ValueError, KeyError) as error:
        raise UserError(
            f"`data.root`: {file} is not a table of labels and chunks ({error}); download it anew"
        ) from error


def _mask_volumes(files: tuple[Path, Path, Path], labels: np.ndarray, runs: np.ndarray, categories: list[str]):
    """Return the volumes of two categories, cached: x (n, voxels) float32, y (n,) int32 and run (n,).

    Each voxel is standardized over all volumes of a run.
    """
    bold, _, mask = files

    def make() -> dict[str, np.ndarray]:
        log.info("masking %s", bold)
        file = mask
        try:
            read_voxel_grid(mask)
            file = bold
            x = extract_voxels(str(bold), str(mask), runs)
        except read_errors() as error:
            raise UserError(
                f"`data.root`: {file} cannot be read ({first_line(error)}); delete it and download it anew"
            ) from error
        order = np.argsort(runs, kind="stable")  # nilearn returns the volumes run by run
        shown = np.isin(labels[order], categories)
        y = np.searchsorted(categories, labels[order][shown]).astype(np.int32)
        return {"x": x[shown], "y": y, "run": runs[order][shown]}

    arrays = load_or_make("haxby", bold.parent.name, (1, file_stats(files), categories), make)
    return arrays["x"], arrays["y"], arrays["run"]
