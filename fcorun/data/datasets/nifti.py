"""A user's images of brains: a table lists the images, and their voxels in a mask are the features."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import numpy as np

from fcorun.base.config import Index, PathOption, SplitSeed
from fcorun.base.errors import UserError, abbreviate, suggest_name, word
from fcorun.base.system.files import file_digest
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.datasets.images import (
    RUN_DEPENDENCE,
    VoxelGrid,
    check_same_grid,
    compute_mask,
    extract_voxels,
    file_stats,
    load_image,
    load_or_make,
    open_image,
    read_errors,
    standardize_within_runs,
    unreadable_error,
)
from fcorun.data.datasets.table import Table
from fcorun.data.tables.cells import names_as_text, parse_numbers
from fcorun.data.tables.column_roles import ParsedRows
from fcorun.data.tables.data_warnings import warn_huge_numbers
from fcorun.data.tables.readers import TEXT_ENDINGS, find_file, read_named_columns
from fcorun.data.tasks import Task, find_task

Names = list[str]
_MARKS = ("group", "split", "fold")  # columns that assign images to groups, splits and folds
_SHOWN = 5  # missing images that a message names


@dataclass(frozen=True)
class Nifti(Dataset):
    """Images that a table lists, each with its label and its client. ``conf/data/nifti.yaml`` explains the options."""

    source = "yours"

    path: PathOption
    image: str = "image"
    target: str = "label"
    client: str = "client"
    volume: str | None = None
    run: str | None = None
    categories: list[str] | None = None
    mask: PathOption | None = None
    task: str = "binary"
    validation: float | list[str] | None = None
    standardize: Literal["none", "pooled", "per_client", "per_run"] | None = None
    scaling: PathOption | None = None
    seed: Index = 0
    test: Annotated[float | list[str] | None, "default outside identity"] = None
    positive: Annotated[str | bool | None, "default outside identity"] = None
    group: Annotated[str | None, "default outside identity"] = None
    group_across: Annotated[Literal["refuse", "keep"], "default outside identity"] = "refuse"
    split: Annotated[str | None, "default outside identity"] = None
    fold: Annotated[str | None, "default outside identity"] = None
    split_seed: SplitSeed = None

    def __post_init__(self):
        if self.standardize == "per_run" and self.run is None:
            raise UserError("`data.standardize=per_run` needs `data.run`: name the column of each image's run")
        if self.run is not None and self.standardize not in (None, "per_run"):
            raise UserError(f"`data.run={self.run}` standardizes within runs, which "
                            f"`data.standardize={self.standardize}` contradicts: leave one of them out")  # fmt: skip
        if self.target_task.has_events:
            raise UserError(f"`data.task={self.task}` needs times to events, which a table of images does not have: "
                            "give `data.task=regression`, binary or multiclass")  # fmt: skip
        if self.categories is not None and not self.target_task.has_classes:
            raise UserError(
                f"`data.categories` are labels, and `data.task={self.task}` has none: leave one of them out"
            )
        if self.categories == []:
            raise UserError("`data.categories=[]` keeps no image: name labels to keep, or leave `data.categories` out")
        _ = self._table  # raises the errors of the options of a table

    @property
    def target_task(self) -> Task:
        """The task of the targets."""
        return find_task(self.task)

    @property
    def dependence_warning(self):  # type: ignore[override]
        """Return a warning for splits that hold out some of a client's images and train on others, or ""."""
        return "" if self.run is None else word(RUN_DEPENDENCE)

    def memory_needed(self) -> tuple[float, str]:
        """Return the bytes of the largest image as stored, since images are read whole, one at a time."""
        headers = {file.name: open_image(file) for file in dict.fromkeys(self._files(self._read_columns()[self.image]))}
        sizes = {name: math.prod(image.shape) * image.get_data_dtype().itemsize for name, image in headers.items()}
        largest = max(sizes, key=lambda name: sizes[name])
        shape = " x ".join(map(str, headers[largest].shape))
        return sizes[largest], f"`data.path={self.path}`: the image '{largest}' of {shape} voxels"

    def load(self) -> FederatedData:
        """Return images x voxels, float32, the rows sorted by client, within a client in the order of the table."""
        import pandas as pd

        columns = self._read_columns()
        files = self._files(columns[self.image])
        unique = list(dict.fromkeys(files))
        volumes = self._volumes(files, unique, columns)
        mask = [] if self.mask is None else [self._mask()]
        content = (3, file_stats(unique), file_stats(mask))
        arrays = load_or_make("nifti", "images", content, lambda: self._read(unique))
        x, grid = arrays["x"][volumes], VoxelGrid(arrays["mask"], arrays["affine"])
        y, client = np.array(columns[self.target]), np.array(columns[self.client])
        if self.run is not None:
            x = standardize_within_runs(x, client, np.array(columns[self.run]), f"`data.run={self.run}`")
        row = np.arange(len(y), dtype=np.int32)
        if self.categories is not None:
            for name in self.categories:
                if name not in y:
                    raise UserError(f"`data.categories`: no image has the label '{name}'; {suggest_name(name, set(y))}")
            included = np.isin(y, self.categories)
            x, y, client, row = x[included], y[included], client[included], row[included]
            columns = {name: np.array(values)[included].tolist() for name, values in columns.items()}
        metadata = pd.DataFrame({name: columns[name] for name in (self.group, self.split, self.fold) if name})
        rows = ParsedRows(x, _numbers(y), client, row=row, metadata=metadata)
        data = self._table.to_federated_data(rows, warn_of_columns=False)
        warnings = [*data.warnings]
        gaps = [
            f"'{file.parent.name}/{file.name}' ({n})"
            for file, n in zip(unique, arrays["gaps"].tolist(), strict=True)
            if n
        ]
        if gaps:
            warnings.append(word(f"`data.path={self.path}`: voxels of images are not finite: {abbreviate(gaps)}: taken "
                                 "as 0"))  # fmt: skip
        if warn_huge_numbers(x):
            voxels = [f"voxel {tuple(position)}" for position in np.argwhere(arrays["mask"]).tolist()]
            warnings += [word(f"`data.path={self.path}`: {text}") for text in warn_huge_numbers(x, voxels)]
        features = replace(data.features, voxel_grid=grid)
        if self.run is not None:
            features = replace(features, standardized={"by": "per_run"})
        return replace(data, features=features, warnings=tuple(warnings))

    def sources(self) -> Any:
        """Return digests of the table, of each image, and of the mask."""
        names = dict.fromkeys(self._read_columns()[self.image])
        images = {name: file_digest(file) for name, file in zip(names, self._files(list(names)), strict=True)}
        mask = None if self.mask is None else file_digest(self._mask())
        digests = [file_digest(find_file(self.path)), images, mask]
        return digests if self.scaling is None else [*digests, self._table.sources()]

    @property
    def _table(self) -> Table:
        """Return the table data set that splits the rows and assigns them to clients."""
        names = {option.name for option in fields(Table)} & {option.name for option in fields(self)}
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.run is not None or self.standardize is None:
            options["standardize"] = "none"
        return Table(**options)

    def _read_columns(self) -> dict[str, Names]:
        """Read the requested columns of the table as text. Raises UserError for missing columns and empty values."""
        where = f"`data.path={self.path}`"
        file = find_file(self.path, endings=TEXT_ENDINGS)
        ending = file.suffix.lower()
        if ending not in TEXT_ENDINGS:
            raise UserError(f"{where}: give a table of images that ends in {' or '.join(TEXT_ENDINGS)}")
        options = {key: getattr(self, key) for key in ("image", "target", "client", "volume", "run", *_MARKS)}
        options = {key: column for key, column in options.items() if column is not None}
        frame = read_named_columns(file, ending, None, list(options.values()), where=where).frame
        for key, column in options.items():
            if column not in frame:
                raise UserError(f"`data.{key}={column}`: there is no such column in {self.path}; "
                                f"{suggest_name(column, list(frame))}")  # fmt: skip
        if frame.empty:
            raise UserError(f"{where}: the table lists no image; give one a row")
        columns = {}
        for key, column in options.items():
            values = frame[column].fillna("").str.strip().tolist()
            if "" in values and key != "fold":
                raise UserError(f"`data.{key}={column}`: row {values.index('') + 1} of {self.path} has no value there; "
                                "fill it in or drop it")  # fmt: skip
            if key in ("client", "run"):
                values = names_as_text(np.array(values)).tolist()
            columns[column] = values
        return columns

    def _files(self, names: Sequence[str]) -> list[FilePath]:
        """Return the files of images. Raises UserError that names missing files."""
        folder = find_file(self.path).parent
        files = [folder / FilePath(name).expanduser() for name in names]
        missing = list(dict.fromkeys(name for name, file in zip(names, files, strict=True) if not file.is_file()))
        if missing:
            raise UserError(
                f"`data.path={self.path}`: {len(missing)} images are not there: {abbreviate(missing, _SHOWN)}; "
                f"give files that lie in '{folder}' or whole paths"
            )
        return files

    def _mask(self) -> FilePath:
        return find_file(str(self.mask), "data.mask=", (".nii", ".nii.gz"))

    def _volumes(self, files: list[FilePath], unique: list[FilePath], columns: dict[str, Names]) -> np.ndarray:
        """Return the index of each row's volume among the volumes of all files, one file after the other."""
        lengths = {}
        for file in unique:
            shape = open_image(file).shape
            lengths[file] = 1 if len(shape) == 3 else shape[3]
        first = dict(zip(unique, np.cumsum([0, *lengths.values()])[:-1], strict=True))
        n_rows = dict.fromkeys(unique, 0)
        volumes = []
        for row, file in enumerate(files):
            text = str(n_rows[file]) if self.volume is None else columns[self.volume][row]
            volume = int(text) if text.isdecimal() else None
            n_rows[file] += 1
            if volume is None or (self.volume is not None and not 0 <= volume < lengths[file]):
                raise UserError(
                    f"`data.volume={self.volume}`: row {row + 1} of {self.path} has {text}, and '{file.name}' has "
                    f"volumes 0 to {lengths[file] - 1}; give one of them"
                )
            volumes.append(first[file] + volume)
        for file in unique if self.volume is None else ():
            if n_rows[file] != lengths[file]:
                raise UserError(f"`data.path={self.path}`: '{file.name}' has {lengths[file]} volumes and "
                                f"{n_rows[file]} rows: give a row for each, in order, or their indices by "
                                "`data.volume`")  # fmt: skip
        return np.array(volumes)

    def _read(self, files: list[FilePath]) -> dict[str, np.ndarray]:
        """Read all volumes of these files x voxels, and the grid of the voxels. Raises UserError for unequal grids."""
        headers = [open_image(file) for file in files]
        reference, reference_name = headers[0], f"'{files[0].name}'"
        if self.mask is not None:
            reference, reference_name = open_image(self._mask()), "the mask"
        for file, image in zip(files, headers, strict=True):
            check_same_grid(file, image, reference, reference_name)
        if self.mask is not None:
            mask = load_image(self._mask())
            if_empty = f"`data.mask={self.mask}` is 0 everywhere"
        else:
            mask = compute_mask(files)
            if_empty = "nilearn finds no voxel of these images"
        values = np.asarray(mask.dataobj)
        if n_gaps := int((~np.isfinite(values)).sum()):
            raise UserError(f"`data.mask={self.mask}` has {n_gaps} voxels that are not finite: make them 0, or another "
                            "number where voxels are to be features")  # fmt: skip
        inside = values != 0
        if not inside.any():
            raise UserError(f"{if_empty}: give `data.mask`, an image that is 1 where voxels are to be features")
        voxels = []
        gaps = []
        for file in files:
            image = load_image(file)
            try:
                voxels.append(extract_voxels(image, mask))
            except read_errors() as error:
                raise unreadable_error(file, error) from error
            gaps.append(int((~np.isfinite(image.dataobj[inside])).sum()))
        return {"x": np.concatenate(voxels), "mask": inside, "affine": np.asarray(mask.affine), "gaps": np.array(gaps)}


def _numbers(values: np.ndarray) -> np.ndarray:
    """Convert text to integers or real numbers, or return it unchanged where any value is neither."""
    import pandas as pd

    try:
        return np.asarray(parse_numbers(pd.Series(values)))
    except ValueError:
        return values
