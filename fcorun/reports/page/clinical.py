"""The page of a model of a user's table, in the order in which a clinician asks, and its short form on a sheet."""

import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.reports.bibliography import build_bibliography
from fcorun.reports.build_table import drop_superseded
from fcorun.reports.page import elements, findings, models, performance, question, runs, studies
from fcorun.reports.page.studies import find_studies
from fcorun.reports.page.table_model import FittedTableModel, find_table_model
from fcorun.reports.run_table import RunTable

_RULES = {
    "min": "the value with the best mean",
    "cv": "the value with the best mean",  # as study.strength has it
    "one_se": "the simplest model whose mean is within one standard error of the best mean",
}
_PENALTIES = {"l1": "lasso, l1", "elastic_net": "elastic net", "group_lasso": "group lasso"}
_METRICS = {"val_loss": "loss on the rows left out", "val_auc": "AUC on the rows left out"}
_SOURCES = "TRIPOD: Collins et al., BMJ 2015;350:g7594. TRIPOD+AI: Collins et al., BMJ 2024;385:e078378."
_WITH_INTERVALS, _BY_CLIENT = "23a", "23b"  # items of TRIPOD+AI
# item of TRIPOD, of TRIPOD+AI, what it asks for, and the section with the item ("" for none)
_ITEMS = (
    ("1", "1", "title", "main"),
    ("2", "2", "summary of question, rows and result", "main"),
    ("3a", "3a", "medical context and reason for the model", ""),
    ("4a", "5a", "source of the data", ""),
    ("4b", "5b", "dates of the data", ""),
    ("5a", "6a", "setting: the clients", "asked"),
    ("5b", "6b", "eligibility of participants", ""),
    ("6a", "8a", "outcome", "asked"),
    ("7a", "9b", "predictors: the candidate features", "asked"),
    ("7b", "9c", "how predictors were measured", ""),
    ("8", "10", "how the sample size was arrived at", ""),
    ("9", "11", "missing data", "asked"),
    ("10a", "7", "preparation of predictors", "asked"),
    ("10b", "12c", "type of model, and how it was built and chosen", "chosen"),
    ("10d", "12e", "measures of performance", "performance"),
    ("13a", "20a", "numbers of participants with and without the outcome", "asked"),
    ("13b", "20b", "characteristics of the participants", ""),
    ("14a", "21", "participants and events of each analysis", "asked"),
    ("15a", "22", "the full model, with its intercept", "result"),
    ("15b", "27a", "how to use the model for one person", ""),
    ("16", "23a", "performance, with intervals", "performance"),
    ("", "23b", "performance in different clients", "performance"),
    ("18", "26", "limitations", ""),
    ("21", "18f", "versions and settings of the software", "configuration"),
    ("22", "18a", "funding", ""),
)
_SHORT_FACTS = ("Left out", "Gaps", "Held out")
_SHORT_CURVES = ("calibration.png", "decision.png", "roc.png")  # two in a row; of survival, calibration alone
_MAX_FEATURES = 12  # in the table of coefficients
_MAX_DATA_WARNINGS = 6
_MAX_LETTERS = 240  # of a warning about the data


def clinical_title(model: FittedTableModel) -> str:
    """Return the title of the page: the key ``title`` of the run, else what the model predicts."""
    return str(model.config.get("title") or f"Prediction of {model.outcome}")


def clinical_summary(model: FittedTableModel) -> list[str]:
    """Return the sentences below the title: the question, the answer, and how well it holds on other rows."""
    answer = " ".join(filter(None, (findings.finding_sentence(model), performance.performance_sentence(model))))
    return [question.asked_sentence(model), answer]


def add_main_sections(page: elements.Page, model: FittedTableModel) -> None:
    """Add what was asked, the result, the performance on held-out rows, and how the model was chosen."""
    page.add_section("asked", "What was asked", *question.question_blocks(model))
    page.add_section("result", "The result", *findings.finding_blocks(model))
    page.add_section("performance", "Performance on held-out rows", *performance.performance_blocks(model))
    blocks = [elements.paragraph(_describe_choice(model))]
    if model.selection_folder:
        blocks += studies.selection_blocks(model.selection_folder)
    page.add_section("chosen", "How the model was chosen", *blocks)


def _describe_choice(model: FittedTableModel) -> str:
    """Return a sentence on how the strength of the penalty was chosen."""
    name = str(model.config.get("reg.name"))
    penalty = _PENALTIES.get(name, name)
    strength = models.parse_float(model.summary.get("strength"))
    about = model.choice
    if about:
        rule = _RULES.get(str(about.get("rule")), f"the rule {about.get('rule')}")
        metric = str(about.get("metric"))
        scores = f"{_METRICS.get(metric, metric)} over {studies.describe_folds(about)}"
        chosen = models.parse_float(about.get("chosen"))
        return (
            f"The {about.get('param_name')} of the penalty ({penalty}) was chosen by cross-validation: of all values "
            f"tried, {rule} of {scores}. Chosen: {chosen:.3g}{studies.describe_second(about)}."
        )
    if name == "none":
        return "The model has no penalty: nothing was chosen, and each feature has a coefficient."
    value = "" if strength != strength else f", {strength:.3g},"
    return f"The strength of the penalty ({penalty}){value} was given; this run did not choose it from the rows."


def add_technical_sections(
    page: elements.Page, model: FittedTableModel, table: RunTable, comments: Mapping[str, str]
) -> None:
    """Add the sections that open on demand: coefficients as trained, rounds, configuration, versions, BibTeX, TRIPOD.

    ``comments`` explain keys of the configuration.
    """
    record = model.record
    coefficients = models.coefficient_blocks([(record.folder.name, record)], with_intervals=False)
    is_collapsed = not model.has_coefficients_by_class
    page.add_section("coefficients", "Coefficients as trained", *coefficients, collapsed=is_collapsed)
    page.add_section("all-scores", "All scores", elements.csv_table(model.held_out_scores, "scores"), collapsed=True)
    rounds = [elements.paragraph(runs.describe_runs([record], table))]
    if model.selection:
        rounds.append(elements.paragraph(studies.describe_selection(model.selection, record.folder.name)))
    rounds += [runs.result_table(record, table), runs.run_facts(table)]
    page.add_section("rounds", "Rounds and convergence", *rounds, collapsed=True)
    if page.curves:
        page.add_section("curves", "Curves", elements.render_template("curves.html", left_out=""), collapsed=True)
    configuration = runs.configuration_table([record], comments)
    page.add_section("configuration", "Configuration", configuration, collapsed=True)
    page.add_section("versions", "Versions", elements.bullet_list(runs.describe_versions([record])), collapsed=True)
    page.add_section(
        "cite", "BibTeX of the methods", elements.preformatted(build_bibliography([record])), collapsed=True
    )
    places = {section.name: section.heading for section in page.sections} | {"main": "title and summary"}
    items = tripod_table(
        places,
        has_intervals=bool(model.score_intervals),
        has_clients=any(row["client"] for row in model.held_out_scores),
    )
    page.add_section("tripod", "Where the items of TRIPOD are", items, collapsed=True)


def tripod_table(sections: dict[str, str], *, has_intervals: bool, has_clients: bool) -> str:
    """Return the items as a table.

    Args:
        sections: the headings of the page's sections by their ids.
        has_intervals, has_clients: whether the section on performance has intervals, and scores by client.
    """
    items = []
    for *cells, section in _ITEMS:
        new = cells[1]
        place = ""
        if section in sections and (new != _BY_CLIENT or has_clients):
            suffix = ", without intervals" if new == _WITH_INTERVALS and not has_intervals else ""
            place = elements.link_to_section(section, sections[section], suffix)
        items.append((cells, place))
    return elements.items_table(["TRIPOD", "TRIPOD+AI", "item"], items, _SOURCES)


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
    intervals = elements.embed_picture(model.record.folder / "inference.png", "") if model.intervals else ""
    rows = performance.rows_of_all(model)
    folder = model.record.folder
    if model.selection_folder and not any((folder / name).exists() for name in _SHORT_CURVES):
        folder = model.selection_folder
    forest_caption = "Estimates with intervals of all features, whether or not the model uses them."
    if str(model.config.get("reg.name")) != "none":
        forest_caption += (
            " The coefficients that predict, which the penalty shrinks, are other numbers: see report.html."
        )
    data_warnings = question.data_warnings(model)
    shown = [textwrap.shorten(text, _MAX_LETTERS, placeholder=" ...") for text in data_warnings[:_MAX_DATA_WARNINGS]]
    if len(data_warnings) > len(shown):
        shown.append(f"Warnings about the data that report.html has: {len(data_warnings) - len(shown)} more.")
    return elements.render_template(
        "short.html",
        title=clinical_title(model),
        style=elements.read_template("short.css"),
        date=time.strftime("%Y-%m-%d"),
        summary=clinical_summary(model),
        warnings=elements.warning_list([*findings.warnings_of(model), *findings.interval_warnings(model), *shown]),
        clients=question.client_table(model),
        facts=elements.facts_table(fact for fact in question.describe_preparation(model) if fact[0] in _SHORT_FACTS),
        forest=intervals,
        forest_caption=forest_caption,
        coefficients=findings.finding_table(model, _MAX_FEATURES),
        reading=" ".join(findings.reading_sentences(model)),
        no_intervals=findings.missing_intervals_sentence(model),
        scores=performance.score_table(model, rows, performance.score_names(without=["prevalence"])),
        scores_by_client=performance.client_scores(model, performance.score_names(brief=True, without=["events"])),
        brackets=" ".join([*performance.describe_threshold_rows(model), *performance.describe_scores(model)]),
        curves=[elements.embed_picture(folder / name, "") for name in _SHORT_CURVES if (folder / name).exists()],
        no_scores=performance.NO_HELD_OUT_ROWS,
    )
