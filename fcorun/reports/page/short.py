"""The short page of a model of a user's table: question, result and performance on one sheet of A4, without scripts."""

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.reports.build_table import drop_superseded
from fcorun.reports.page import clinical, performance
from fcorun.reports.page.elements import embed_picture, facts_table, read_template, render_template, warning_list
from fcorun.reports.page.findings import (
    finding_table,
    interval_warnings,
    missing_intervals_sentence,
    reading_sentences,
    warnings_of,
)
from fcorun.reports.page.question import client_table, data_warnings, describe_preparation
from fcorun.reports.page.studies import find_studies
from fcorun.reports.page.table_model import FittedTableModel, find_table_model

_FACTS = ("Left out", "Gaps", "Held out")
_CURVES = ("roc.png", "calibration.png", "decision.png")  # of survival, calibration alone
_MAX_FEATURES = 12  # in the table of coefficients
_MAX_FEATURES_BESIDE_INTERVALS = 6
_MAX_DATA_WARNINGS = 6
_MAX_LETTERS = 240  # of a warning about the data


def build_short_page(folders: Sequence[Path], records: Sequence[Record]) -> str:
    """Return the sheet about the records in and under ``folders``, as HTML.

    Raises UserError if they are not one finished run on a table with named columns, or one selection.
    """
    model = find_table_model(drop_superseded(records)[0] if records else [], find_studies(folders))
    if model is None:
        raise UserError(
            f"--short is about one finished run, or one selection, on a table with named columns, and "
            f"{', '.join(map(str, folders))} holds something else: leave --short out, or give the folder of one"
        )
    intervals = embed_picture(model.record.folder / "inference.png", "") if model.intervals else ""
    n_features = _MAX_FEATURES_BESIDE_INTERVALS if intervals else _MAX_FEATURES
    rows = performance.rows_of_all(model)
    folder = model.record.folder
    if model.selection_folder and not any((folder / name).exists() for name in _CURVES):
        folder = model.selection_folder
    forest_caption = "Left: estimates with intervals of all features, whether or not the model uses them."
    if str(model.config.get("reg.name")) != "none":
        forest_caption += (
            " They are not the coefficients that predict, which the penalty shrinks: those are on the right."
        )
    return render_template(
        "short.html",
        title=clinical.clinical_title(model),
        style=read_template("short.css"),
        date=time.strftime("%Y-%m-%d"),
        summary=clinical.clinical_summary(model),
        warnings=warning_list([*warnings_of(model), *interval_warnings(model), *_first_data_warnings(model)]),
        clients=client_table(model),
        facts=facts_table(fact for fact in describe_preparation(model) if fact[0] in _FACTS),
        forest=intervals,
        forest_caption=forest_caption,
        coefficients=finding_table(model, n_features),
        reading=" ".join(reading_sentences(model)),
        no_intervals=missing_intervals_sentence(model),
        scores=performance.score_table(model, rows, performance.score_names(without=["prevalence"])),
        scores_by_client=performance.client_scores(model, performance.score_names(brief=True, without=["events"])),
        brackets=" ".join(performance.describe_brackets(model)),
        curves=[embed_picture(folder / name, "") for name in _CURVES],
        no_scores=performance.NO_HELD_OUT_ROWS,
    )


def _first_data_warnings(model: FittedTableModel) -> list[str]:
    """Return the first warnings about the data, long ones shortened, and how many more the long page has."""
    warnings = data_warnings(model)
    shown = [textwrap.shorten(text, _MAX_LETTERS, placeholder=" ...") for text in warnings[:_MAX_DATA_WARNINGS]]
    n_more = len(warnings) - len(shown)
    return [*shown, f"Warnings about the data that report.html has: {n_more} more."] if n_more else shown
