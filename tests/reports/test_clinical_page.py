"""The page of a model of a user's table: its sections, sentences and tables, from files of a record."""

import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import yaml
from browser import print_pdf
from fake_records import fake_config, fake_record

from fcorun.base.records.formats import csv_text
from fcorun.base.records.record import load_records
from fcorun.base.records.single_patients import hide_row_numbers
from fcorun.base.records.tables import COEFFICIENTS
from fcorun.data.tables.scaling import explain_own_scale
from fcorun.interface.cli.commands import main
from fcorun.reports.page import build_page as build
from fcorun.reports.page import clinical
from fcorun.reports.page.clinical import build_short_page
from fcorun.reports.page.elements import Page, PageSection, parse_cell, read_table
from fcorun.reports.page.findings import _rows_of_columns, finding_table, missing_intervals_sentence
from fcorun.reports.page.performance import format_score, performance_blocks
from fcorun.reports.page.question import describe_preparation
from fcorun.reports.page.studies import find_studies, selection_blocks
from fcorun.reports.page.table_model import FittedTableModel, find_table_model, format_share

COLUMNS = [
    {"name": "age", "kind": "number", "levels": [], "fill": None, "indicator": False},
    {"name": "sex", "kind": "levels", "levels": ["F", "M"], "fill": "F", "indicator": False},
    {"name": "ward", "kind": "levels", "levels": ["er", "eye", "icu"], "fill": "er", "indicator": False},
]
FEATURES = ["age", "sex=M", "ward=er", "ward=eye", "ward=icu"]


def write_model(folder="run", reason="", **data):
    """Write the record of a logistic model of 100 rows of two hospitals, and return its folder."""
    table = {"class": "fcorun.Table", "target": "dead", "client": "hospital", "path": "x.csv"}
    table |= {"ignore": ["patient"], "missing": "median", "standardize": "pooled", "validation": None}
    logistic = {"name": "logistic", "class": "fcorun.Logistic"}
    settings = fake_config(data="table", objective=logistic)
    settings["data"] |= table
    record = fake_record(folder, settings, reason=reason)
    outcome = []
    for split, counts in (("train", (50, 30)), ("validation", (10, 10))):
        outcome.append({"set": split, "client": "", "rows": sum(counts), "events": sum(counts) // 4})
        for client, n in zip(("Bern", "Lund"), counts, strict=True):
            outcome.append({"set": split, "client": client, "rows": n, "events": n // 5})
    summary = json.loads((record.folder / "summary.json").read_text())
    summary["data"] = {"clients": 2, "examples": 80, "validation_examples": 20, "features": 5, "task": "binary",
                       "feature_names": FEATURES, "classes": ["no", "yes"], "outcome": outcome, "gaps": {"sex": 7},
                       "standardized": {"by": "pooled"}} | data  # fmt: skip
    summary |= {"threshold": {"shared": 0.5}, "strength": 0.1}
    summary["warnings"] = ["data.path=x.csv: columns that look like dates in 3 rows (4, 8, 17) are text",
                           "data.path=x.csv: gaps are filled: 'sex' by 'F' in 7 rows (1, 2, 3, ...)"]  # fmt: skip
    (record.folder / "summary.json").write_text(json.dumps(summary))
    (record.folder / "encoding.json").write_text(json.dumps({"columns": COLUMNS, "features": FEATURES}))
    rows = [{"parameter": "weights", "feature": name, "class": "yes", "value": value, "value_original": 2 * value}
            for name, value in zip(FEATURES, (0.3, 0.0, -0.5, 0.0, 0.1), strict=True)]  # fmt: skip
    rows.append({"parameter": "bias", "feature": "", "class": "yes", "value": -1.0, "value_original": -2.0})
    (record.folder / "coefficients.csv").write_text(csv_text(rows))
    scores = []
    for split, client, auc in (("train", "", 0.9), ("validation", "", 0.75), ("validation", "Bern", 0.71)):
        scores.append({"set": split, "model": "shared", "client": client, "positive": "yes", "n": 20, "auc": auc})
    (record.folder / "scores.csv").write_text(csv_text(scores))
    return record.folder


def write_intervals(folder):
    """Write inference.csv and inference.txt of the model."""
    rows = []
    for name in FEATURES:
        row = dict.fromkeys(("estimate", "low", "high", "p_value", "p_holm"), "")
        row |= dict.fromkeys(("estimate_standardized", "low_standardized", "high_standardized"), "")
        row |= {"feature": name, "method": "reference"}
        if name != "ward=er":
            row |= {"estimate": 0.0, "low": -1.0, "high": 1.0, "p_value": 0.04, "p_holm": 0.16, "method": "Wald"}
            row |= {"estimate_standardized": 0.0, "low_standardized": -0.5, "high_standardized": 0.5}
        rows.append(row)
    (folder / "inference.csv").write_text(csv_text(rows))
    text = "Wald, 95 % intervals, 80 rows, robust standard errors\nwarning: few rows, in row 3\n"
    (folder / "inference.txt").write_text(text)


def read_model(folder) -> FittedTableModel:
    model = find_table_model(load_records(folder), find_studies([Path(folder)]))
    assert model is not None
    return model


def main_sections(folder) -> dict[str, PageSection]:
    page = Page()
    clinical.add_main_sections(page, read_model(folder))
    return {section.name: section for section in page.sections}


def plain(html: str) -> str:
    """Return HTML as text, a bar between two cells of a table."""
    return re.sub(r"<[^>]*>", "", re.sub(r"</t[dh]><t[dh][^>]*>", "|", html))


def test_the_sentences_below_the_title():
    model = read_model(write_model())
    assert clinical.clinical_title(model) == "Prediction of dead: yes"
    question, answer = clinical.clinical_summary(model)
    assert "the probability of “dead: yes” from 3 columns of a table: 100 rows of 2 clients (by hospital)" in question
    assert "25 rows (25 %) have the outcome" in question
    assert "The model uses 3 of 5 features; those with the largest coefficients are ward: er, age, ward: icu." in answer
    assert "On 20 held-out rows (validation rows), the AUC is 0.75." in answer


@pytest.mark.parametrize(("value", "low", "high", "text"), [
    (0.75, 0.7, 0.8, "0.75 (0.70 to 0.80)"),
    (12345.6, 12000.123, 13000.5, "12,346 (12,000 to 13,000)"),
    (0.0004, 0.000312, 0.0005, "0.00040 (0.00031 to 0.00050)"),
    (0.00444, -0.141, 0.141, "0.00 (-0.14 to 0.14)"),
    (-0.27, -0.57, -0.003, "-0.270 (-0.570 to -0.003)"),
    (2.5e7, 2e7, 3e7, "2.5e+07 (2e+07 to 3e+07)"),
    (-0.25, -1500, 0.5, "-0.25 (-1,500.00 to 0.50)"),
])  # fmt: skip
def test_a_score_and_its_interval_have_one_format(value, low, high, text):
    assert format_score({"rmse": value, "rmse_low": low, "rmse_high": high}, "rmse") == text


@pytest.mark.parametrize(("value", "text"), [("", ""), (800, "inf"), (0.5, "1.65")])
def test_a_ratio_that_is_not_known_is_blank(value, text):
    folder = write_model()
    line = {"parameter": "weights", "feature": "age", "class": "yes", "value": 0.3, "value_original": value}
    other = line | {"feature": "sex=M", "value": 0.1, "value_original": 0.0}
    (folder / "coefficients.csv").write_text(csv_text([line, other]))
    table = finding_table(FittedTableModel(load_records(folder)[0]))
    assert f"age|{text}|1.35" in plain(table)


@pytest.mark.parametrize(("value", "text"), [(0.0022, "1.0022"), (-0.0022, "0.9978"), (0.0, "1"), (0.02, "1.02")])
def test_a_ratio_near_1_differs_from_1(value, text):
    folder = write_model()
    line = {"parameter": "weights", "feature": "age", "class": "yes", "value": 0.3, "value_original": value}
    (folder / "coefficients.csv").write_text(csv_text([line]))
    assert f"age|{text}|1.35" in plain(finding_table(read_model(folder)))


def test_scores_at_a_threshold_name_the_threshold():
    folder = write_model()
    scores = {"set": "validation", "model": "shared", "client": "", "n": 20, "balanced_accuracy": 0.7, "auc": 0.8}
    (folder / "scores.csv").write_text(csv_text([scores]))
    text = plain(main_sections(folder)["performance"].content)
    assert "balanced accuracy (threshold 0.5)|0.70" in text
    assert "AUC (0.5: chance, 1: perfect)|0.80" in text


@pytest.mark.parametrize(("events", "sentence"), [
    (3, "Scores from fewer than 5 events say little: Bern (3)."),
    (5, "Scores of few rows are uncertain."),
])  # fmt: skip
def test_scores_of_few_events(events, sentence):
    headline = "with 3 events, the AUC is 0.70; scores from fewer than 5 events say little."
    if events == 5:
        headline = "with 5 events, the AUC is 0.70."
    folder = write_model()
    scores = [
        {"set": "validation", "model": "shared", "client": client, "n": 20, "events": events, "auc": 0.7}
        for client in ("", "Bern")
    ]
    (folder / "scores.csv").write_text(csv_text(scores))
    text = plain(main_sections(folder)["performance"].content)
    assert f"By hospital, validation rows. {sentence}" in text
    assert f"On 20 held-out rows (validation rows) {headline}" in clinical.clinical_summary(read_model(folder))[1]
    assert "hospital|rows|events|AUC" in text


def test_levels_with_few_rows_or_events_are_in_the_caption():
    folder = write_model(few_levels={"ward=er": "1 event in 30 rows", "ward=icu": "4 rows", "ward=eye": "2 rows"})
    text = plain(main_sections(folder)["result"].content)  # the coefficient of ward=eye is 0
    assert "Few training rows or events, which say little: ward: er (1 event in 30 rows), ward: icu (4 rows)." in text


def test_clients_that_are_held_out_are_counted():
    question = clinical.clinical_summary(read_model(write_model(clients=1)))[0]
    assert "100 rows of 2 clients (by hospital), one of them held out; 25 rows" in question


def test_what_was_asked():
    text = plain(main_sections(write_model())["asked"].content)
    assert "hospital|rows|for training|for validation|with the outcome|share" in text
    assert "Bern|60|50|10|12|20 %" in text
    assert "all|100|80|20|25|25 %" in text
    assert "the column patient; no row was left out" in text
    assert "20 rows (20 %) for validation, drawn at random among each hospital&#39;s rows" in text
    assert "sex|7|7.0 %|F" in text


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("frequency", "each row stands for as many equal rows, in all numbers of this page, as it has of 'n'"),
        ("sampling", "rows count in training, and in losses, by 'n'"),
        (None, "rows count in training, and in losses, by 'n'"),
    ],
)
def test_the_page_says_what_weights_did(kind, sentence):
    folder = write_model()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] |= {"weight": "n", "weight_kind": kind}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    facts = dict(describe_preparation(read_model(folder)))
    assert facts["Weight"] == sentence


def test_gaps_by_outcome():
    folder = write_model()
    counts = {"rows": 80, "missing": 7, "events": 20, "missing_among_events": 6, "share_among_events": 0.3}
    counts |= {"others": 60, "missing_among_others": 1, "share_among_others": 1 / 60}
    rows = [{"column": "sex", "client": client, "outcome": "yes", **counts} for client in ("", "Bern")]
    (folder / "missing.csv").write_text(csv_text(rows))
    text = plain(main_sections(folder)["asked"].content)
    assert "column|rows without a value|with the outcome|without the outcome" in text
    assert "sex|7 of 80 (8.8 %)|6 of 20 (30 %)|1 of 60 (1.7 %)" in text
    assert "sex|Bern|7 of 80" in text


def test_no_row_is_named():
    folder = write_model(reason="a doubt about row 12")
    write_intervals(folder)
    text = "".join(plain(section.content) for section in main_sections(folder).values())
    assert "Columns that look like dates in 3 rows are text." in text
    assert not re.search(r"\brow \d|rows \(\d", text.replace("rows (20 %)", ""))


@pytest.mark.parametrize(("sentence", "without"), [
    ("'bmi' in 140 rows (941, 942, ...) and row 7", "'bmi' in 140 rows and 1 row"),
    ("3 rows (20 %) of 2 clients", "3 rows (20 %) of 2 clients"),
])  # fmt: skip
def test_numbers_of_rows_are_hidden(sentence, without):
    assert hide_row_numbers(sentence) == without


def test_a_result_without_intervals_says_how_to_get_them():
    text = plain(main_sections(write_model())["result"].content)
    assert "feature|odds ratio per unit|odds ratio per SD" in text
    assert "age|1.82|1.35" in text
    assert "intercept (its logarithm)|\N{MINUS SIGN}2|" in text
    assert "fcorun infer RECORD adds them" in text
    assert "reference level of their column, sex: F." in text
    assert "Each level of ward has a coefficient of its own" in text


@pytest.mark.parametrize(("key", "value", "sentence"), [
    ("imputations", 5, "imputations=5 averages fits to completed tables"),
    ("relax", 0.5, "relax=0.5: the coefficients of a relaxed lasso have no certificate"),
])  # fmt: skip
def test_a_record_that_cannot_have_intervals_says_why(key, value, sentence):
    model = read_model(write_model())
    model.config[key] = value
    model.summary["relaxed"] = {"share_of_lasso": value} if key == "relax" else None
    text = missing_intervals_sentence(model)
    assert sentence in text
    assert "adds them" not in text


def test_a_model_without_features_has_its_intercept():
    folder = write_model()
    table = folder / "coefficients.csv"
    kept = [row | ({} if row["parameter"] == "bias" else {"value": 0.0}) for row in read_table(COEFFICIENTS, folder)]
    table.write_text(csv_text(kept))
    assert "intercept (its logarithm)|\N{MINUS SIGN}2|" in plain(finding_table(read_model(folder)))


def test_the_page_says_what_coefficients_are_per_and_which_intercepts_stand_beside_them():
    folder = write_model()
    plain_text = plain("".join(section.content for section in main_sections(folder).values()))
    assert "an intercept of its own" not in plain_text
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"]["standardize"] = "none"
    config["objective"]["client_intercepts"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = plain("".join(section.content for section in main_sections(folder).values()))
    assert "those with the largest coefficients, each per unit, are ward: er" in text
    assert "Each hospital has an intercept of its own, so that rows of one hospital are compared; a new one" in text
    summary = json.loads((folder / "summary.json").read_text())
    summary["data"]["sites"] = ["a", "b"]
    (folder / "summary.json").write_text(json.dumps(summary))
    text = plain("".join(section.content for section in main_sections(folder).values()))
    assert "rows of one hospital are compared; the intercept stays at its site" in text


def test_features_in_large_units_are_used_by_the_model():
    """A coefficient of 2e-5 per platelet is an odds ratio of 3 per standard deviation."""
    folder = write_model(cutoff_factors=[2e-5, 1, 1, 1, 1])
    table = folder / "coefficients.csv"
    table.write_text(table.read_text().replace("age,yes,0.3,", "age,yes,2e-05,"))
    text = plain("".join(section.content for section in main_sections(folder).values()))
    assert "The model uses 3 of 5 features; those with the largest coefficients are ward: er, ward: icu, age." in text


def test_a_page_over_sites_says_what_its_record_has(monkeypatch):
    folder = write_model(sites=["bern", "lund"])
    summary = json.loads((Path(folder) / "summary.json").read_text())
    del summary["data"]["gaps"]
    (Path(folder) / "summary.json").write_text(json.dumps(summary))
    row = {"set": "test", "model": "shared", "client": "", "n": 20, "auc_low": 0.6, "auc_high": 0.9}
    (Path(folder) / "scores.csv").write_text(csv_text([row]))
    text = plain(build.build_page([folder], load_records(folder)))
    assert "fcorun infer RECORD" not in text
    assert "a plan with --infer" in text
    assert "Gaps|if any, filled over all sites by the median of the training rows" in text
    assert "the AUC is between 0.600 and 0.900 (certain bounds, no confidence interval)" in text
    assert "16|23a|performance, with intervals|Performance on held-out rows, without intervals" in text
    assert "|23b|performance in different clients|not on this page" in text


def test_intervals_of_imputed_tables_have_their_missing_information():
    folder = write_model()
    write_intervals(folder)
    assert "missing information" not in plain(main_sections(folder)["result"].content)
    rows = [row | {"missing_information": 0.27 if row["p_value"] else ""} for row in read_model(folder).intervals]
    (folder / "inference.csv").write_text(csv_text(rows))
    text = plain(main_sections(folder)["result"].content)
    assert "|p|used by the model|missing information" in text
    assert "|yes|27%" in text
    assert "the model itself was fit to filled gaps" in text


def test_a_feature_without_an_interval_says_why():
    folder = write_model()
    write_intervals(folder)
    table = folder / "inference.csv"
    table.write_text(table.read_text().replace("reference", "no events in 12 rows"))
    assert "ward: er|no events in 12 rows|no events in 12 rows||yes" in plain(main_sections(folder)["result"].content)


def test_a_result_with_intervals():
    folder = write_model(reason="not finished: more rounds may help")
    write_intervals(folder)
    content = main_sections(folder)["result"].content
    text = plain(content)
    assert "feature|odds ratio per unit (95 % CI)|odds ratio per SD (95 % CI)|p|used by the model" in text
    assert "sex: M|1.00 (0.37 to 2.72)|1.00 (0.61 to 1.65)|0.040|no" in text
    assert "ward: er|reference|reference||ward: eye" in text.replace("\n", "")
    assert "They compare levels with a reference level, which the model does not" in text
    assert "sex: F, ward: er." in text
    assert "4 tests of no association: 4 with p below 0.05, and 0 when corrected for 4 tests by Holm" in text
    assert content.index("Not finished: more rounds may help") < content.index("<table")
    assert content.index("Few rows") < content.index("<table")
    table = folder / "inference.csv"
    table.write_text(table.read_text().replace("0.16", "0.01", 1))
    assert "with p below 0.05, and 1 when corrected" in main_sections(folder)["result"].content


def test_filled_gaps_are_warned_of():
    folder = write_model()
    write_intervals(folder)
    (folder / "inference.txt").write_text("warning: gaps in 'dead' were filled in\n")
    assert "Gaps in &#39;dead&#39; were filled in" in build_short_page([folder], load_records(folder))


def test_performance_is_of_held_out_rows():
    text = plain(main_sections(write_model())["performance"].content)
    assert "AUC (0.5: chance, 1: perfect)|0.75" in text
    assert "Bern|20|0.71" in text
    assert "0.9" not in text


def test_clients_that_their_held_out_rows_standardize_are_named_where_the_scores_are():
    """The page says so once, at the scores, and the short sheet too, also of a study over sites."""
    folder = write_model()
    summary = json.loads((folder / "summary.json").read_text())
    warnings = [*summary.get("warnings", []), explain_own_scale("the rows of Lund")]
    (folder / "summary.json").write_text(json.dumps(summary | {"warnings": warnings}))
    sentence = "without training rows, the rows of Lund are standardized by the mean and deviation of their own"
    sections = main_sections(folder)
    assert sentence in plain(sections["performance"].content)
    assert sum(plain(section.content).count(sentence) for section in sections.values()) == 1
    assert sentence in plain(build_short_page([folder], load_records(folder)))


@pytest.mark.parametrize("chosen_on", ["validation", ""])
def test_rows_that_chose_the_threshold_are_named_beside_test_rows(chosen_on):
    folder = write_model()
    summary = json.loads((folder / "summary.json").read_text())
    summary["threshold"] = {"rule": "youden", "chosen_on": chosen_on, "shared": 0.3}
    (folder / "summary.json").write_text(json.dumps(summary))
    test_row = {"set": "test", "model": "shared", "client": "", "positive": "yes", "n": 20, "auc": 0.7}
    lines = (folder / "scores.csv").read_text()
    (folder / "scores.csv").write_text(lines + csv_text([test_row]).split("\n", 1)[1])
    text = plain(main_sections(folder)["performance"].content)
    sentence = "Validation rows: the training has not seen them. The threshold was chosen on these rows"
    assert (sentence in text) == (chosen_on == "validation")
    assert "Test rows: neither the training nor any choice has seen them; scored once." in text
    assert "scored once. The threshold" not in text


def test_a_threshold_that_is_chosen_out_of_fold_is_told_with_the_folds():
    folder = write_model("study/refit")
    study = folder.parent
    selection = {"threshold": {"rule": "youden", "chosen_on": "out_of_fold", "shared": 0.3}, "nested": {"folds": 5}}
    (study / "selection.json").write_text(json.dumps(selection))
    row = {"set": "out_of_fold", "model": "shared", "client": "", "positive": "yes", "n": 80, "auc": 0.7}
    (study / "scores.csv").write_text(csv_text([row]))
    text = plain(str(performance_blocks(replace(read_model(folder), selection_folder=study))))
    assert "(nested cross-validation). The threshold was chosen on these rows" in text
    assert "Validation rows: the training has not seen them. The threshold" not in text


@pytest.mark.parametrize("measure", ["rows", "rows' weights", None])
def test_a_page_without_a_refit_says_what_weighs_folds(measure):
    folder = Path("study")
    folder.mkdir()
    stored = {} if measure is None else {"fold_measure": measure}
    about = {"fold_weights": "rows", "folds": 5, "metric": "val_loss", **stored}
    (folder / "selection.json").write_text(json.dumps(about))
    (folder / "selection.png").write_bytes(b"\x89PNG")
    text = plain(" ".join(selection_blocks(folder))).replace("&#39;", "'")
    assert f"over 5 folds weighed by their {measure or 'size'}, with" in text


def test_scores_have_their_intervals():
    folder = write_model()
    row = {"set": "test", "model": "shared", "client": "", "n": 20, "auc": 0.8, "auc_low": 0.6, "auc_high": 0.9}
    bounds = row | {"model": "sites", "auc": ""}
    (folder / "scores.csv").write_text(csv_text([row, bounds]))
    text = plain(main_sections(folder)["performance"].content)
    assert "0.80 (0.60 to 0.90)|between 0.600 and 0.900" in text


def test_a_numeric_target_has_its_mean_and_deviation():
    outcome = [{"set": "train", "client": "", "rows": 3, "mean": 2.0, "deviation": 1.0},
               {"set": "test", "client": "", "rows": 1, "mean": 6.0, "deviation": None}]  # fmt: skip
    folder = write_model(task="regression", classes=[], outcome=outcome)
    assert "the mean of the outcome is 3 (standard deviation 2.16)" in clinical.clinical_summary(read_model(folder))[0]
    assert "all|4|3|1|3|2.16" in plain(main_sections(folder)["asked"].content)


def test_the_order_of_the_page(monkeypatch):
    folder = write_model()
    text = build.build_page([folder], load_records(folder))
    assert re.findall(r'<section id="([^"]*)"', text)[:4] == ["asked", "result", "performance", "chosen"]
    assert '<section id="configuration" class="collapsed"' in text
    assert '<td>8a</td><td>outcome</td><td><a href="#asked">What was asked</a></td>' in text
    assert "<td>funding</td><td>not on this page</td>" in text


def test_pages_of_other_runs_stay_as_they_are():
    fake_record("simulated/run")
    assert find_table_model(load_records("simulated"), []) is None
    write_model("two/a")
    write_model("two/b")
    assert find_table_model(load_records("two"), []) is None


def test_a_share_below_all_is_not_all():
    assert [format_share(part, 200) for part in (0, 1, 199, 200)] == ["0 %", "0.5 %", "99.5 %", "100 %"]


def test_a_run_that_is_no_refit_of_a_selection_is_not_told_as_one():
    write_model("apart/run")
    Path("apart/selection.json").write_text(json.dumps({"metric": "val_auc"}))
    assert find_table_model(load_records("apart"), [Path("apart")]) is None


@pytest.mark.parametrize(
    "known_by", ["a selection beside the refit", "study.strength", "the plan of a site", "nothing"]
)
def test_a_page_says_that_the_strength_was_chosen_wherever_a_record_tells(known_by):
    folder = write_model("chosen/refit")
    about = {"metric": "val_loss", "rule": "min", "folds": 5}
    summary = json.loads((folder / "summary.json").read_text())
    if known_by == "a selection beside the refit":
        beside = about | {"by": "rows", "param_name": "strength", "chosen": 0.1}
        Path("chosen/selection.json").write_text(json.dumps(beside))
    elif known_by == "study.strength":
        summary["selection"] = about | {"rule": "cv", "strength": 0.1}
    elif known_by == "the plan of a site":
        summary["selection"] = about | {"by": "rows", "param_name": "strength", "chosen": 0.1}
    (folder / "summary.json").write_text(json.dumps(summary))
    sections = main_sections(folder)
    text = plain(str(sections["chosen"].content))
    if known_by == "nothing":
        assert "was given; this run did not choose it from the rows" in text
        return
    assert "was chosen by cross-validation: of all values tried, the value with the best mean of loss" in text
    assert "over 5 folds of rows. Chosen: 0.1." in text
    assert "the 80 training rows were divided into 5 folds of rows" in plain(str(sections["asked"].content))


def test_a_client_called_007_stays_007():
    assert [parse_cell(name, "007") for name in ("client", "positive", "n")] == ["007", "007", 7]


def test_the_short_page_is_the_first_three_sections():
    folder = write_model(reason="not finished: more rounds may help")
    text = build_short_page([folder], load_records(folder))
    assert re.findall("<h2>(.*?)</h2>", text) == ["What was asked", "The result", "Performance on held-out rows"]
    assert "Not finished: more rounds may help</li><li>Columns that look like dates in 3 rows are text." in text
    assert "age|1.82|1.35" in plain(text)
    assert "AUC (0.5: chance, 1: perfect)|0.75" in plain(text)
    assert "<script" not in text


@pytest.mark.parametrize(("of_refit", "shown"), [("calibration", ["refit"]), ("", ["calibration", "roc"])])
def test_the_curves_of_the_short_page_are_of_one_folder(of_refit, shown):
    """A model of survival has no ROC curve: its calibration is shown, not that out of fold."""
    folder = write_model("chosen/refit")
    Path("chosen/selection.json").write_text(json.dumps({"metric": "val_auc"}))
    for name in ("roc", "calibration"):
        Path(f"chosen/{name}.png").write_bytes(b"\x89PNG" + name.encode())
    if of_refit:
        (folder / f"{of_refit}.png").write_bytes(b"\x89PNGrefit")
    pictures = re.findall('base64,([^"]*)', build_short_page([Path("chosen")], load_records("chosen")))
    assert [b64decode(picture)[4:].decode() for picture in pictures] == shown


def test_the_short_page_has_the_first_warnings_about_the_data():
    folder = write_model()
    summary = json.loads((folder / "summary.json").read_text())
    summary["warnings"] = [f"doubt {i} " + "is long " * 50 for i in range(8)]
    (folder / "summary.json").write_text(json.dumps(summary))
    text = plain(build_short_page([folder], load_records(folder)))
    assert [i for i in range(8) if f"Doubt {i} is long" in text] == [*range(6)]
    assert " ..." in text
    assert "Warnings about the data that report.html has: 2 more." in text


def test_the_short_page_has_one_estimate_of_a_feature():
    """The forest plot takes the place of the coefficients that the penalty shrinks."""
    folder = write_model()
    assert "age|1.82|1.35" in plain(build_short_page([folder], load_records(folder)))
    write_intervals(folder)
    (folder / "inference.png").write_bytes(b"\x89PNG")
    text = plain(build_short_page([folder], load_records(folder)))
    assert "age|" not in text
    assert "The coefficients that predict, which the penalty shrinks, are other numbers: see report.html" in text


@pytest.mark.slow
@pytest.mark.parametrize(("n_warnings", "sides"), [(0, 1), (6, 2)])
def test_the_short_page_is_printed_on_one_sheet(n_warnings, sides):
    """Below a forest plot and long warnings no room is left in which curves could be read: they are on the back."""
    folder = write_model()
    summary = json.loads((folder / "summary.json").read_text())
    summary["warnings"] = [f"doubt {i} " + "is long " * 30 for i in range(n_warnings)]
    (folder / "summary.json").write_text(json.dumps(summary))
    for name, size in (("roc", (700, 1600)), ("calibration", (1200, 1000)), ("decision", (900, 1000))):
        plt.imsave(folder / f"{name}.png", np.ones((*size, 3)))
    row = {"set": "validation", "model": "shared", "positive": "yes", "n": 20, "auc": 0.7}
    (folder / "scores.csv").write_text(csv_text(row | {"client": name} for name in ("", *map(str, range(8)))))
    if n_warnings:
        write_intervals(folder)
        plt.imsave(folder / "inference.png", np.ones((900, 1600, 3)))
    Path("page.html").write_text(build_short_page([folder], load_records(folder)))
    sheets = print_pdf(Path("page.html"), Path("page.pdf").resolve())
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) == sides


def test_the_short_page_is_written_into_the_folder(capsys):
    folder = write_model()
    assert main(["report", str(folder), "--short"]) == 0
    assert (folder / "report_short.html").exists()
    assert not (folder / "report.html").exists()
    fake_record("simulated")
    assert main(["report", "simulated", "--short"]) == 2
    assert "--short is about one finished run, or one selection" in capsys.readouterr().err


def test_labels_are_the_names_of_features():
    labels = {"age": {"label": "age at admission", "unit": "years"}, "ward": {"label": "Ward", "unit": ""},
              "dead": {"label": "death within 30 days", "unit": ""}}  # fmt: skip
    folder = write_model(labels=labels)
    assert clinical.clinical_title(read_model(folder)) == "Prediction of death within 30 days: yes"
    text = plain(main_sections(folder)["result"].content)
    assert "age at admission (years)|1.82|1.35" in text
    assert "Ward: er|" in text


def test_a_curve_has_one_row_of_intervals_with_or_without_a_test():
    curves = {"age": "age", "age'": "age", "dose": "dose", "dose'": "dose"}
    features = {"age": "", "age'": "", "sex": "0.1", "dose": "", "dose'": "0.2"}  # dose itself was not selected
    rows = [{"feature": name, "p_holm": p} for name, p in features.items()]
    assert [row["feature"] for row in _rows_of_columns(rows, curves)] == ["age", "sex", "dose'"]
