"""What data sets of images have in common: scans as rows of voxels by nilearn, kept in the cache, and their digests."""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.grid import Grid
from fcorun.errors import UserError
from fcorun.records.formats import DAMAGED, npz_bytes, read_npz
from fcorun.system.cache import cache_dir
from fcorun.system.files import write_whole

PART = 1 << 20  # bytes at either end of an image that its digest reads; a .gz ends in a checksum of the whole


def damage() -> tuple[type[Exception], ...]:
    """What reading an image raises that is damaged or none."""
    from nibabel.filebasedimages import ImageFileError

    return OSError, EOFError, ValueError, zlib.error, ImageFileError


def rows_of(images: Any, mask: Any, runs: np.ndarray | None = None) -> np.ndarray:
    """The voxels in a mask of an image (X, Y, Z[, n]), float32, shape (n, d); either may be a file.

    With ``runs`` (n,), each voxel has mean 0 and sample deviation 1 within each of them, and the rows come run by run.
    An image on another grid than the mask is resampled to it. Raises what ``damage`` names.
    """
    from nilearn.maskers import NiftiMasker

    standardize: Any = False if runs is None else "zscore_sample"
    found = NiftiMasker(mask_img=mask, runs=runs, standardize=standardize, reports=False).fit_transform(images)
    return np.atleast_2d(found).astype(np.float32, copy=False)


def read_grid(mask: Path) -> Grid:
    """The voxels of a mask that is on disk. Raises what ``damage`` names."""
    from nibabel import load

    image: Any = load(mask)
    return Grid(np.asarray(image.dataobj) != 0, np.asarray(image.affine, float))


def kept(room: str, name: str, of: object, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What ``make()`` gives, from a file of the cache where it was made before of the same ``of``."""
    key = hashlib.sha256(repr(of).encode()).hexdigest()[:16]
    file = cache_dir(room) / f"{name}_{key}.npz"
    try:
        return read_npz(file)
    except DAMAGED:
        pass  # absent or damaged: made anew
    found = make()
    write_whole(file, npz_bytes(found))
    return found


def stats(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """What changes when files do, without reading them."""
    return [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]


def digest(file: Path) -> str:
    """A digest of a file's size, its first and its last megabyte."""
    size = file.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with file.open("rb") as data:
        found.update(data.read(PART))
        data.seek(max(0, size - PART))
        found.update(data.read(PART))
    return found.hexdigest()


def masked_by(strategy: str, files: Sequence[Path], like: Any) -> Any:
    """The mask of these images, on the grid of the image ``like``, by nilearn; its strategies epi, background, brain.

    Raises UserError where there is none that nilearn could make.
    """
    from nilearn import masking

    names = [str(file) for file in files]
    grid = {"target_affine": like.affine, "target_shape": like.shape[:3]}
    try:
        if strategy == "brain":
            return masking.compute_brain_mask(like)
        make = masking.compute_multi_epi_mask if strategy == "epi" else masking.compute_multi_background_mask
        return make(names, **grid)
    except damage() as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"data.mask_strategy={strategy}: nilearn finds no mask in these images ({reason}); give "
                        "data.mask, an image that is 1 where voxels are to be features") from error  # fmt: skip
