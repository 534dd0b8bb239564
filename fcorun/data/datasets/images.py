"""Scans as rows of voxels by nilearn, the positions of these voxels, and a cache of arrays."""

import hashlib
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError, first_line
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import cache_dir, write_atomically

# a warning for splits of a client's images that were standardized together
RUN_DEPENDENCE = (
    "every volume was standardized over all volumes of its run, held-out ones too, and follows its neighbours in time: "
    "`by=clients` keeps runs whole"
)


@dataclass(frozen=True, eq=False)
class VoxelGrid:
    """The voxels in a mask, in nilearn's order, that of ``mask.nonzero()``; each voxel is a feature.

    Attributes:
        mask: True for voxels that are features, shape (X, Y, Z).
        affine: the map from the indices of a voxel to millimetres, shape (4, 4).
    """

    mask: Bool[np.ndarray, "X Y Z"]
    affine: Float[np.ndarray, "4 4"]

    @property
    def n_voxels(self) -> int:
        """Return the number of voxels in the mask, d."""
        return int(self.mask.sum())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return each voxel's name, made of its indices in the image: voxel 12 30 22."""
        return tuple(f"voxel {i} {j} {k}" for i, j, k in np.argwhere(self.mask).tolist())

    def to_image(self, values: np.ndarray) -> np.ndarray:
        """Return values (d,) as a float32 image (X, Y, Z), or values (d, k) as k images (X, Y, Z, k).

        Voxels outside the mask are 0.
        """
        out = np.zeros((*self.mask.shape, *values.shape[1:]), np.float32)
        out[self.mask] = values
        return out

    def neighbours(self) -> Int[np.ndarray, "d 6"]:
        """Return the numbers of the voxels that share a face with each voxel; d for neighbours outside the mask."""
        numbers = np.full(np.add(self.mask.shape, 2), self.n_voxels)  # padded by one voxel on every side
        numbers[1:-1, 1:-1, 1:-1][self.mask] = np.arange(self.n_voxels)
        positions = np.argwhere(self.mask) + 1
        steps = np.concatenate([np.eye(3, dtype=int), -np.eye(3, dtype=int)])
        return np.stack([numbers[tuple((positions + step).T)] for step in steps], axis=1)


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that are raised for a damaged image, or a file that is no image."""
    from nibabel.filebasedimages import ImageFileError

    return OSError, EOFError, ValueError, zlib.error, ImageFileError


def extract_voxels(images: Any, mask: Any, runs: np.ndarray | None = None) -> np.ndarray:
    """Return the voxels in a mask of an image (X, Y, Z[, n]) as rows (n, d), float32; either may be a file.

    With ``runs`` (n,), standardize each voxel to mean 0 and sample deviation 1 within each run, and sort rows by run.
    An image on another grid than the mask is resampled. Raises the errors of ``read_errors``.
    """
    from nilearn.maskers import NiftiMasker

    standardize: Any = None if runs is None else "zscore_sample"
    masker = NiftiMasker(mask_img=mask, runs=runs, standardize=standardize, reports=False)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "imgs are being resampled"
        )  # callers that want no resampling check the grid before
        voxels = masker.fit_transform(images)
    return np.atleast_2d(voxels).astype(np.float32, copy=False)


def read_voxel_grid(mask: Path) -> VoxelGrid:
    """Read the voxels of a mask from its file. Raises the errors of ``read_errors``."""
    from nibabel import load

    image: Any = load(mask)
    return VoxelGrid(np.asarray(image.dataobj) != 0, np.asarray(image.affine, float))


def load_or_make(
    folder: str, name: str, content: object, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays of ``make()``, from a cache file if it was called before for the same ``content``."""
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    file = cache_dir(folder) / f"{name}_{key}.npz"
    try:
        return read_npz(file)
    except READ_ERRORS:
        pass  # no cache file, or a damaged one
    arrays = make()
    with suppress(OSError):  # a full disk needs no cache
        write_atomically(file, npz_bytes(arrays))
    return arrays


def file_stats(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return paths, sizes and times of files, which change when the files do."""
    return [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]


def compute_mask(files: Sequence[Path]) -> Any:
    """Compute a mask of these images by nilearn, of what differs from the background in at least half of them.

    Raises UserError where nilearn finds no mask.
    """
    from nilearn import masking

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # callers refuse an empty mask
            return masking.compute_multi_background_mask([str(file) for file in files])
    except read_errors() as error:
        raise UserError(f"nilearn finds no mask in these images ({first_line(error)}): give `data.mask`, an image that "
                        "is 1 where voxels are to be features") from error  # fmt: skip


def load_image(file: Path) -> Any:
    """Read an image with its values. Raises UserError for a damaged file."""
    image = open_image(file)
    try:
        return type(image)(np.asarray(image.dataobj), image.affine, image.header)
    except read_errors() as error:
        raise unreadable_error(file, error) from error


def open_image(file: Path) -> Any:
    """Open an image without reading its values. Raises UserError unless the image has 3 or 4 axes."""
    from nibabel import load

    try:
        image: Any = load(file)
    except read_errors() as error:
        raise unreadable_error(file, error) from error
    if len(image.shape) not in (3, 4):
        raise UserError(
            f"`data.path`: '{file}' has {len(image.shape)} axes: give images of 3, or of 4 with time the last"
        )
    return image


def unreadable_error(file: Path, error: Exception) -> UserError:
    reason = first_line(error)
    return UserError(f"`data.path`: '{file}' cannot be read as an image ({reason}); make it anew, as .nii or .nii.gz")


def check_same_grid(file: Path, image: Any, other: Any, reference_name: str) -> None:
    """Raise UserError where an image is on another grid, by the test that nilearn uses to decide on resampling."""
    shapes = [" x ".join(map(str, each.shape[:3])) for each in (image, other)]
    if shapes[0] == shapes[1] and np.allclose(image.affine, other.affine):
        return
    why = f"has {shapes[0]} voxels and {reference_name} {shapes[1]}"
    if shapes[0] == shapes[1]:
        why = f"has another affine than {reference_name}"
    raise UserError(f"`data.path`: '{file}' {why}: resample it to that grid, such as by "
                    "nilearn.image.resample_to_img")  # fmt: skip


def standardize_within_runs(x: np.ndarray, client: np.ndarray, run: np.ndarray, where: str) -> np.ndarray:
    """Standardize each voxel of x (N, d) within the runs (N,) of each client (N,), by nilearn.

    Raises UserError, which begins with ``where``, for a run of one image.
    """
    from nilearn.signal import clean

    clients, runs = (np.unique(names, return_inverse=True)[1] for names in (client, run))
    _, codes, counts = np.unique(clients * (runs.max() + 1) + runs, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        row = int(np.flatnonzero(counts[codes] < 2)[0])
        raise UserError(f"{where}: run {run[row]} of client {client[row]} has one image only, whose "
                        "deviation is none: leave `data.run` out, or give `data.standardize=per_client`")  # fmt: skip
    order, out = np.argsort(codes, kind="stable"), np.empty_like(x)
    out[order] = clean(x[order], runs=codes[order], detrend=False, standardize="zscore_sample", filter=False)
    return out
