"""Small brain images and their table, as data=nifti reads them."""

from pathlib import Path

import numpy as np

SHAPE = (7, 6, 5)
AFFINE = np.array([[3.0, 0, 0, -9], [0, 3, 0, -6], [0, 0, 4, -8], [0, 0, 0, 1]])


def head_mask() -> np.ndarray:
    """Return the mask of a head, shape SHAPE."""
    i, j, k = np.indices(SHAPE)
    return ((i - 3) / 3) ** 2 + ((j - 2.5) / 2.6) ** 2 + ((k - 2) / 2.2) ** 2 <= 1


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    """Write an image; return its path."""
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), affine), path)
    return path


def write_maps(folder: Path, clients: int = 3, each: int = 8, classes: int = 2) -> Path:
    """Write 3D maps of some clients with alternating labels, and their table; return the table's path.

    A blob is stronger in the maps of label b.
    """
    rng, lines, inside = np.random.default_rng(0), ["image,label,client,age,subject"], head_mask()
    for m in range(clients):
        for n in range(each):
            image = rng.standard_normal(SHAPE) + 5
            image[1:3, 2:4, 1:3] += 1.5 * (n % classes)
            save(folder / f"site{m}" / f"map{n}.nii.gz", image * inside)
            lines.append(f"site{m}/map{n}.nii.gz,{'abcdef'[n % classes]},site{m},{20 + n + m},site{m} person{n // 2}")
    save(folder / "mask.nii.gz", inside)
    (folder / "maps.csv").write_text("\n".join(lines) + "\n")
    return folder / "maps.csv"


def write_series(folder: Path, clients: int = 2, runs: int = 2, each: int = 6) -> Path:
    """Write one 4D image a client, of some runs with labels a, b, rest, and the table; return the table's path."""
    rng, lines, inside = np.random.default_rng(1), ["image,label,client,run"], head_mask()
    for m in range(clients):
        volumes = rng.standard_normal((*SHAPE, runs * each)) + 10 + 3 * np.repeat(np.arange(runs), each)
        save(folder / f"sub{m}.nii", volumes * inside[..., None])
        lines += [f"sub{m}.nii,{('a', 'b', 'rest')[n % 3]},sub{m},{r}" for r in range(runs) for n in range(each)]
    save(folder / "mask.nii.gz", inside)
    (folder / "series.csv").write_text("\n".join(lines) + "\n")
    return folder / "series.csv"
