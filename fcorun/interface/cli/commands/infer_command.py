"""fcorun infer: intervals for the coefficients of a linear model."""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.config import SECTIONS, Settings, field_marks, import_classes
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import set_up_jax
from fcorun.base.trust import locate
from fcorun.interface.cli.commands.common_command import CommandParser, warn_of_formulas
from fcorun.interface.cli.commands.predict_command import TRUST_HELP, find_record
from fcorun.interface.cli.commands.study_command import split_options
from fcorun.interface.cli.terminal import Terminal
from fcorun.results.inference.methods import CLIENT_ESTIMATES_FILE, INTERVALS_FILE

_KEYS = (
    "method=auto|debiased|wald|split, level=0.95, cluster=auto|none|client|group, errors=robust|model, seed=0, "
    "imputations=0, out=DIR; data.path=FILE: the rows, as all files that the record names"
)
_MAX_PRINTED = 15  # features


def run(argv: Sequence[str]) -> int:
    """Compute an interval, a standard error and a p value for each coefficient of a record's problem, least squares,
    logistic, poisson, gamma or cox with reg=none, l1 or elastic_net. The problem is solved anew to a small gap. With a
    penalty the intervals are those of the debiased lasso (debiased), or of a model without a penalty on the half of the
    rows that did not select its features (split); without one they are Wald intervals (wald). Standard errors are
    robust, also by client or group, or with errors=model those of the likelihood. With imputations=20 gaps are filled
    20 times by chained equations, and estimates without a penalty are pooled by Rubin's rules. The record of a
    meta-analysis has the intervals of its combined estimates, at any level. DIR, by default the folder of the record
    (RECORD/refit of a selection), gets inference.csv, .txt, .png and .pdf."""
    parser = CommandParser("infer", run.__doc__, folders=False)
    parser.add_argument(
        "record",
        type=Path,
        metavar="RECORD",
        help="the folder of a run that is done, of a selection or of a stability selection",
    )
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help=_KEYS)
    parser.add_argument("--trust", metavar="DIR", help=TRUST_HELP)
    arguments = parser.parse_intermixed_args(argv)
    record = find_record(arguments.record)
    if arguments.trust is not None:
        import_classes(record.config, arguments.trust)
    set_up_jax()
    from fcorun.reports.pictures.forest import make_files
    from fcorun.results.models.inference_problem import InferenceOptions
    from fcorun.results.models.meta_analysis import compute_record_intervals

    options, overrides, out = split_options(InferenceOptions, arguments.options)
    named = _find_paths(record.config)
    paths, unknown = _split_paths(overrides, named)
    if unknown:
        key = unknown[0].partition("=")[0]
        known = [*(field.name for field in fields(InferenceOptions)), "out"]
        raise UserError(f"'{unknown[0]}' is no option of fcorun infer: {suggest_name(key, known)}")
    unnamed = {key: path for key, path in named.items() if key not in paths}
    if unnamed and not (record.folder / CLIENT_ESTIMATES_FILE).exists():  # a meta-analysis opens no other file
        shown = [f"{key}={path}" for key, path in unnamed.items()]
        command = shlex.join(["fcorun", "infer", *argv, *shown])
        raise UserError(f"{record.folder} names files, and fcorun infer opens those alone that you name: {command}")
    record = record.relocate(paths)
    folder = record.folder if out is None else Path(out)
    try:
        found = compute_record_intervals(record, options)
    except UserError as error:
        if not (folder / INTERVALS_FILE).exists():
            raise
        raise UserError(
            f"{error}; the inference files in {folder} stay, which an earlier computation or the plan of sites made"
        ) from error
    warnings = [f"warning: {sentence}" for sentence in found.warnings]
    files = make_files(found.table, [*found.description, *warnings], record.picture_style)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    console = Terminal()
    console.print_lines(found.description)
    _print_table(found.table, console)
    console.print_lines(warnings)
    console.print_lines(warn_of_formulas([folder / name for name in files]))
    console.print(f"{folder}: {', '.join(files)}")
    if out is None:
        console.print(f"fcorun report {arguments.record} puts them on the page")
    return 0


def _split_paths(overrides: Sequence[str], named: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the paths among some overrides, by the keys that a record ``named``, and the other overrides."""
    paths = {}
    unknown = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key in named:
            paths[key] = re.sub(r"""^(['"])(.*)\1$""", r"\2", value)
        else:
            unknown.append(text)
    return paths, unknown


def _print_table(table: Any, console: Terminal) -> None:
    """Print the features with the smallest p values, with ratios where the model has them."""
    from fcorun.reports.pictures.forest import format_interval
    from fcorun.results.models.inference_table import format_p, order_by_p_value

    rows = order_by_p_value(table)
    lines = []
    ratios: dict[str, list[str]] = {}  # by the heading of their column
    if table.ratio_name and rows:
        has_units = np.isfinite(table.estimate[rows]).any()
        kind = "" if has_units else "_standardized"
        with np.errstate(over="ignore"):
            ends = [np.exp(getattr(table, f"{name}{kind}")) for name in ("low", "estimate", "high")]
        heading = f"{table.ratio_name} per {'unit' if has_units else 'deviation'}"
        ratios[heading] = [format_interval(*numbers, null=1.0) for numbers in zip(*ends, strict=True)]
    for row in rows[:_MAX_PRINTED]:
        numbers = (
            *(table.estimate[row], table.low[row], table.high[row]),
            *(table.estimate_standardized[row], table.low_standardized[row], table.high_standardized[row]),
        )
        name = table.features[row]
        cells = ["" if math.isnan(value) else f"{value:.4g}" for value in numbers]
        if name in table.curve_of_feature:  # no term of which varies alone
            name = f"{table.curve_of_feature[name]} (curve)"
            cells = [""] * len(numbers)
        texts = ["" if table.features[row] in table.curve_of_feature else column[row] for column in ratios.values()]
        lines.append([name, *cells, *texts, format_p(table.p_value[row])])
    headers = ["feature", "per unit", "low", "high", "per deviation", "low", "high"]
    console.print_table([*headers, *ratios, "p"], lines)
    if len(rows) > _MAX_PRINTED:
        console.print(f"and {len(rows) - _MAX_PRINTED} more in inference.csv")


def _find_paths(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the files and folders that a configuration names for a run to read, by key, without fcorun's defaults.

    Raises UserError for a class that may not be imported.
    """
    paths = {}
    owners = {"": (Settings, config)}
    for section in SECTIONS:
        values = config.get(section)
        if isinstance(values, Mapping) and "class" in values:
            owners[f"{section}."] = (locate(values["class"], f"{section}.class"), values)
    for prefix, (cls, values) in owners.items():
        marks = field_marks(cls)
        for field in fields(cls):
            value = values.get(field.name)
            may_be_path = "a path" in marks[field.name] or field.name == getattr(cls, "file_field", "")
            is_name = value == field.default or value in getattr(cls, "names_beside_file", ())
            if may_be_path and isinstance(value, str) and not is_name:
                paths[prefix + field.name] = value
    return paths
