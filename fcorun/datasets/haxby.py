"""Haxby's fMRI scans of faces, houses and other things: a client is one run of one subject."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from fcorun import config
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.datasets.images import (
    RUN_DEPENDENCE,
    extract_voxels,
    file_digest,
    file_stats,
    load_or_make,
    read_errors,
    read_voxel_grid,
)
from fcorun.errors import UserError, suggest_name

ARCHIVE = "http://data.pymvpa.org/datasets/haxby2001/subj{}-2010.01.14.tar.gz"
MASK = "https://www.nitrc.org/frs/download.php/7868/mask.nii.gz"
SUBJECTS = (1, 2, 3, 4, 5, 6)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Haxby(Dataset):
    """fMRI scans of people who look at faces, houses and objects: two of these categories.

    The brain is masked by nilearn's mask, and every voxel of a run brought to mean 0 and sample deviation 1 over all
    volumes of that run, whatever they show. What is missing below ``root`` is downloaded, 300 MB a subject; masked
    scans are kept in the cache.

    Attributes:
        root: nilearn's data folder, the one that holds ``haxby2001/``.
        subjects: those to load, of 1 to 6.
        validation_subjects: held out wholly. None: the last of several subjects, if no ``validation_runs`` are given.
        validation_runs: held out of every subject, numbered as in the column ``chunks`` of labels.txt, from 0.
        test_subjects, test_runs: likewise, what nothing but the scores at the end of a run ever sees; what is of both
            the test and the validation is of the test.
        categories: the two to tell apart, as in the column ``labels``.
    """

    source = "@haxby2001, from PyMVPA by way of nilearn"
    units: ClassVar[bool] = False
    dependence_warning = RUN_DEPENDENCE

    root: config.PathOption = "data"
    subjects: list[int] = field(default_factory=lambda: list(SUBJECTS))
    validation_subjects: list[int] | None = None
    validation_runs: list[int] | None = None
    categories: list[str] = field(default_factory=lambda: ["face", "house"])
    test_subjects: Annotated[list[int] | None, "default outside identity"] = None
    test_runs: Annotated[list[int] | None, "default outside identity"] = None

    def __post_init__(self):
        if not self.subjects:
            raise UserError(f"data.subjects=[] is empty: give some of {list(SUBJECTS)}")
        for subject in self.subjects:
            if subject not in SUBJECTS:
                raise UserError(
                    f"data.subjects: there is no subject {subject}; {suggest_name(subject, map(str, SUBJECTS))}"
                )
        for key in ("validation_subjects", "test_subjects"):
            for subject in getattr(self, key) or []:
                if subject not in self.subjects:
                    raise UserError(
                        f"data.{key}: subject {subject} is not one of data.subjects={self.subjects}; add it"
                    )
        for kind in ("subjects", "runs"):
            validation, test = (getattr(self, f"{part}_{kind}") or [] for part in ("validation", "test"))
            for number in (n for n in test if n in validation):
                raise UserError(
                    f"data.validation_{kind} and data.test_{kind} both name {number}: name it in one of them"
                )
        if len(self.categories) != 2 or len(set(self.categories)) != 2:
            raise UserError(
                f"data.categories={self.categories} must be two different ones: give data.categories=[face,house]"
            )

    def load(self) -> FederatedData:
        """Volumes x voxels (39,912 under nilearn's mask), float32, by subject, run and time; y indexes ``classes``."""
        files = self._files()
        parts, names = [], []
        for subject, (bold, labels_file, mask) in files.items():
            labels, runs = _read_labels(labels_file)
            for category in self.categories:
                if category not in labels:
                    known = suggest_name(category, set(labels.tolist()))
                    raise UserError(f"data.categories: subject {subject} has no '{category}'; {known}")
            x, y, run = _masked((bold, labels_file, mask), labels, runs, sorted(self.categories))
            for number in np.unique(run):
                names.append((subject, int(number)))
                parts.append((x[run == number], y[run == number]))
        runs = {run for _, run in names}
        for key in ("validation_runs", "test_runs"):
            for number in getattr(self, key) or []:
                if number not in runs:
                    raise UserError(f"data.{key}: there is no run {number}; the runs are {sorted(runs)}")
        of = [self._part(subject, run) for subject, run in names]
        if "" not in of:
            tested = " and the keys of the test" if "_test" in of else ""
            raise UserError(
                f"data.validation_subjects and data.validation_runs{tested} hold out every run: leave some to train on"
            )
        fields: dict[str, Any] = {
            "standardized": {"by": "per_run"},
            "voxel_grid": read_voxel_grid(next(iter(files.values()))[2]),
        }
        for part in set(of):
            mine = [p for p, own in zip(parts, of, strict=True) if own == part]
            called = [f"subject{s}_run{r}" for (s, r), own in zip(names, of, strict=True) if own == part]
            sizes = [len(y) for _, y in mine]
            fields |= {
                f"x{part}": np.concatenate([x for x, _ in mine]),
                f"y{part}": np.concatenate([y for _, y in mine]),
            }
            fields |= {f"clients{part}": np.repeat(called, sizes) if part else tuple(called)}
            fields |= {} if part else {"offsets": np.cumsum([0, *sizes])}
        return FederatedData(task="binary", classes=tuple(sorted(self.categories)), **fields).validate()

    def fetch(self) -> None:
        self._files()

    def sources(self) -> Any:
        """For each subject digests of the labels, of the mask and of both ends of the scan, wherever they lie."""
        return {
            subject: [file_digest(file) for file in files] for subject, files in self._files(download=False).items()
        }

    def _part(self, subject: int, run: int) -> str:
        """What a run of a subject is for: "_test", "_val", or "" for training."""
        if subject in (self.test_subjects or []) or run in (self.test_runs or []):
            return "_test"
        return "_val" if subject in self._subjects_held() or run in (self.validation_runs or []) else ""

    def _subjects_held(self) -> list[int]:
        if self.validation_subjects is not None:
            return self.validation_subjects
        others = [subject for subject in self.subjects if subject not in (self.test_subjects or [])]
        return others[-1:] if len(set(others)) > 1 and self.validation_runs is None else []

    def _files(self, download: bool = True) -> dict[int, tuple[Path, Path, Path]]:
        """Scan, labels and mask of each subject, downloaded where one is missing if that is wanted."""
        folder = Path(self.root).expanduser() / "haxby2001"
        files = {
            s: (folder / f"subj{s}" / "bold.nii.gz", folder / f"subj{s}" / "labels.txt", folder / "mask.nii.gz")
            for s in sorted(set(self.subjects))
        }
        missing = [s for s, needed in files.items() if not all(f.exists() for f in needed)]
        if missing and not download:
            raise UserError(f"data.root={self.root}: subject {missing[0]} of the Haxby data is not in '{folder}' yet; "
                            "a run that is not dry downloads it")  # fmt: skip
        for subject in missing:  # one at a time, so that what has arrived stays when the next one fails
            try:
                _fetch(folder.parent, subject)
            # network, disk, checksum, archive: nilearn lets all sorts of errors through
            except Exception as error:
                wanted = ", ".join(map(str, missing[missing.index(subject) :]))
                raise UserError(
                    f"data.root={self.root}: subject {wanted} of the Haxby data is not in '{folder}' and cannot be "
                    f"downloaded ({type(error).__name__}); unpack {ARCHIVE.format(subject)} (so for each subject) into "
                    f"that folder, which gives subj{subject}/, and put {MASK} beside it"
                ) from error
        return files


def _fetch(root: Path, subject: int) -> None:
    """Downloads what ``root`` lacks of one subject by nilearn; when that fails, no empty folder stays behind."""
    from nilearn.datasets import fetch_haxby

    def present() -> set[Path]:
        return {root, root / "README.md", root / "haxby2001", *(root / "haxby2001").glob("*")}

    before = {p for p in present() if p.exists()}
    log.info("downloading subject %d of the Haxby data to %s", subject, root)
    try:
        # one subject a call: nilearn 0.14 mixes files up where subject 6, which has no anatomical scan, is not the last
        fetch_haxby(data_dir=str(root), subjects=[subject], fetch_stimuli=False, verbose=0)
    except BaseException:
        for path in sorted(present() - before, reverse=True):  # a partial download is kept: nilearn resumes it
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.name == "README.md":
                path.unlink(missing_ok=True)
        raise


def _read_labels(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """What each volume shows, and its run, both of shape (volumes,)."""
    try:
        header, *rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        label, run = header.index("labels"), header.index("chunks")
        return np.array([r[label] for r in rows]), np.array([int(r[run]) for r in rows])
    except (ValueError, IndexError) as error:
        raise UserError(f"data.root: {file} is not a table of labels and chunks ({error}); download it anew") from error


def _masked(files: tuple[Path, Path, Path], labels: np.ndarray, runs: np.ndarray, categories: list[str]):
    """The volumes of two categories, cached: x (n, voxels) float32, y (n,) int32 and run (n,)."""
    bold, _, mask = files

    def make() -> dict[str, np.ndarray]:
        x = _standardized(bold, mask, runs)
        order = np.argsort(runs, kind="stable")  # nilearn returns the volumes run by run
        shown = np.isin(labels[order], categories)
        y = np.searchsorted(categories, labels[order][shown]).astype(np.int32)
        return {"x": x[shown], "y": y, "run": runs[order][shown]}

    found = load_or_make("haxby", bold.parent.name, (1, file_stats(files), categories), make)
    return found["x"], found["y"], found["run"]


def _standardized(bold: Path, mask: Path, runs: np.ndarray) -> np.ndarray:
    """All volumes x voxels in the mask, standardized within each run, float32, sorted by run."""
    log.info("masking %s", bold)
    try:
        return extract_voxels(str(bold), str(mask), runs)
    except read_errors() as error:
        try:
            read_voxel_grid(mask)
            file = bold
        except read_errors():
            file = mask
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"data.root: {file} cannot be read ({reason}); delete it and download it anew") from error
