"""Rows that a Python program has in memory: arrays of NumPy, or a DataFrame of pandas."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.datasets.table import Table
from fcorun.data.tables.column_roles import ParsedRows
from fcorun.data.tables.columns import NumberColumn
from fcorun.data.tables.encoding import Encoding, MissingPolicy
from fcorun.data.tables.parsed_table import Codes, ParsedTable, mask_codes
from fcorun.data.tables.readers import parse_columns
from fcorun.data.tasks import Binary


class MemoryRows:
    """The rows of a Python program: a DataFrame, or arrays by name. The digest tells whether they have changed.

    Attributes:
        values: a pandas.DataFrame, or the arrays "x" (N, d) and "y" (N,), and optionally "client", "weight",
            "offset", "event", "group", "fold", and "validation" and "test", True for held-out rows, each (N,); and
            "feature_names" (d,).
        digest: sixteen hex digits of the content when the rows were given.
    """

    def __init__(self, values: Any):
        self.values = values
        self.digest = self.compute_digest()

    def __repr__(self) -> str:
        return f"MemoryRows({self.digest})"

    def __deepcopy__(self, memo: Any) -> "MemoryRows":
        return self

    def compute_digest(self) -> str:
        """Return sixteen hex digits of the content, which change with the rows."""
        digest = hashlib.sha256()
        if isinstance(self.values, dict):
            for name, array in self.values.items():
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                if array.dtype.kind == "O":
                    digest.update("\x00".join(map(str, array.tolist())).encode())
                else:
                    digest.update(array.tobytes())
        else:
            from pandas.core.util.hashing import hash_pandas_object

            for name in self.values.columns:
                column = self.values[name]
                digest.update(f"{name} {column.dtype} {len(column)}".encode())
                try:
                    hashes = hash_pandas_object(column, index=False)
                except TypeError:  # lists, for example
                    hashes = hash_pandas_object(column.astype(str), index=False)
                digest.update(hashes.to_numpy().tobytes())
        return digest.hexdigest()[:16]


class ArrayOptions(TypedDict, total=False):
    """Options of ``fcorun.Table`` for arrays, whose columns have no names."""

    partition: Literal["iid", "dirichlet", "by_label", "sorted"]
    alpha: float
    standardize: Literal["none", "scale", "pooled", "per_client"]
    scaling: str
    positive: str | bool | None
    order: list[str] | None
    splines: dict[str, int] | None
    weight_kind: Literal["sampling", "frequency"] | None
    seed: int
    split_seed: int | None
    truth: str | None


class FrameOptions(ArrayOptions, total=False):
    """Options of ``fcorun.Table`` for the named columns of a frame."""

    clients: int
    validation: float | list[str] | None
    test: float | list[str] | None
    missing: MissingPolicy
    ignore: list[str] | None
    only: list[str] | None
    na: Codes
    encoding: str
    weight: str | None
    offset: str | None
    event: str | None
    group: str | None
    group_across: Literal["refuse", "keep"]
    split: str | None
    fold: str | None
    keep: list[str] | None
    labels: str | None


@dataclass(frozen=True, kw_only=True)
class InMemoryTable(Table):
    """Rows in memory, made by ``from_arrays`` and ``from_frame``. All options but the path are those of a table.

    Attributes:
        path: the name of the data, in messages and folders.
        rows: the rows; None in a configuration that was read from a record, which has no rows.
        task_is_guessed: whether the task was guessed from the targets, so that ``for_tasks`` may take another one.
    """

    source = "yours"

    rows: Annotated[Any, "outside identity", "in memory"] = None
    task_is_guessed: Annotated[bool, "outside identity", "in memory"] = False

    def __repr__(self) -> str:
        """Return the name, the size of the rows, and the options that differ from their defaults."""
        parts = [repr(self.path)]
        if self.rows is not None:
            values = self.rows.values
            if isinstance(values, dict):
                parts.append(f"{len(values['x'])} rows, {values['x'].shape[1]} features")
            else:
                parts.append(f"{len(values)} rows, {len(values.columns)} columns")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("path", "rows", "task_is_guessed") and value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"InMemoryTable({', '.join(parts)})"

    def load(self) -> FederatedData:
        """Return the rows sorted by client, as ``Table.load`` does."""
        import pandas as pd

        values = self._get_rows().values
        if isinstance(values, dict):
            metadata = {}
            for option in ("weight", "offset", "event", "group", "fold"):
                if option in values:
                    metadata[option] = values[option]
            encoding = None
            if "feature_names" in values:
                encoding = Encoding(tuple(NumberColumn(str(name)) for name in values["feature_names"]))
            parsed = ParsedRows(
                x=values["x"],
                y=values["y"],
                client=values.get("client"),
                validation=values.get("validation"),
                test=values.get("test"),
                metadata=pd.DataFrame(metadata) if metadata else None,
                encoding=encoding,
            )
        else:
            table = ParsedTable(values.copy(deep=False))
            codes = self.file_options.codes_by_column(list(values.columns), self.roles.text_columns)
            table.missing_tokens = mask_codes(table.frame, codes)
            parsed = parse_columns(table, self.path, self.roles)
        return self.to_federated_data(parsed)

    def memory_needed(self) -> tuple[float, str]:
        return Dataset.memory_needed(self)

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        return Dataset.load_shard(self, host, n_hosts)

    @property
    def has_explicit_task(self) -> bool:
        return not self.task_is_guessed

    def for_tasks(self, tasks: Sequence[str]) -> "InMemoryTable":
        if not self.task_is_guessed:
            return self
        if self.target_task.name in tasks:
            return replace(self, task_is_guessed=False)
        targets = self.rows.values[self.target] if self.target else self.rows.values["y"]
        task = tasks[-1]
        if Binary.name in tasks and len(set(np.asarray(targets).tolist())) == 2:
            task = Binary.name
        return replace(self, task=task, task_is_guessed=False)

    def _digest_rows(self) -> str:
        rows = self._get_rows()
        if rows.compute_digest() != rows.digest:
            raise UserError(f"`data.path={self.path}`: the rows have changed since they were given to fcorun: call "
                            "from_arrays or from_frame again, or give a copy")  # fmt: skip
        return rows.digest

    def _get_rows(self) -> MemoryRows:
        if self.rows is None:
            raise UserError(f"`data.path={self.path}`: the rows were given to a Python program and are in no file: "
                            "give them again, by from_arrays or from_frame")  # fmt: skip
        return self.rows
