"""Numbers of few rows, which are left out of what is sent."""

import csv
import io
import json

import pytest

from fcorun.base.errors import UserError
from fcorun.base.records.few_rows import LEAST_ROWS, FewRows, name_few
from fcorun.base.records.formats import csv_text
from fcorun.base.records.single_patients import PATIENT_FILES

FEW = LEAST_ROWS - 1


def write_tables(folder, n_of_small, data="{class: fcorun.Table, path: rows.csv}"):
    """Write a record with two clients, b with 30 rows and a with this number, and a fold for each."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(f"data: {data}\n")
    sizes = {"": 30 + n_of_small, "a": n_of_small, "b": 30}
    lines = [{"set": "train", "model": "shared", "client": client, "n": n} for client, n in sizes.items()]
    lines.append({"set": "train", "model": "personal", "client": "", "n": 30})  # b's alone
    (folder / "scores.csv").write_text(csv_text(lines))
    folds = [{"outer_fold": fold, "n": sizes[client]} for fold, client in enumerate("ab", 1)]
    (folder / "nested.csv").write_text(csv_text(folds))
    (folder / "selection.csv").write_text(csv_text([{"fold": fold, "val_loss": 1} for fold in ("all", "1", "2")]))
    (folder / "metrics.csv").write_text(csv_text([{"round": 0, "val_loss": 1, "val_loss_best_tenth": 0.5}]))
    gaps = {"column": "x", "client": "b", "outcome": "yes", "rows": 30, "missing": 12, "events": 6}
    (folder / "missing.csv").write_text(csv_text([gaps]))
    (folder / "results.csv").write_text(csv_text([{"clock.link_spread": 0.1, "tail_val_loss_spread": 2}]))


def summarize():
    outcome = [{"set": "train", "client": client, "rows": 30, "events": 9} for client in ("", "b")]
    values = {"val_loss": 1.0, "val_loss_best_tenth": 0.5}
    return {"final": values, "data": {"outcome": outcome, "few_levels": {"w=x": "1 row"}}, "warnings": ["first"]}


def test_nothing_by_client_and_fold_is_sent_if_one_has_few_rows(tmp_path):
    write_tables(tmp_path, FEW)
    few = FewRows.find([tmp_path])
    assert set(few.small) == {"a", "fold 1"}
    assert {"nested.csv", "missing.csv", "clients.parquet"} <= few.list_files(tmp_path)
    sent = {name: few.read_rest(tmp_path / f"{name}.csv") for name in ("scores", "selection", "metrics", "results")}
    assert sent["scores"] == "set,model,client,n\ntrain,shared,,34\n"
    assert sent["selection"] == "fold,val_loss\nall,1\n"
    assert sent["metrics"] == "round,val_loss\n0,1\n"
    assert sent["results"] == "clock.link_spread\n0.1\n"
    shown = few.hide_numbers(summarize(), tmp_path / "summary.json")
    assert shown["final"] == {"val_loss": 1.0}
    assert [line["client"] for line in shown["data"]["outcome"]] == [""]
    assert shown["data"]["few_levels"] == {"w=x": "few rows"}
    assert shown["warnings"][0] == "first"
    assert "numbers by client and by fold" in shown["warnings"][1]


@pytest.mark.parametrize("by_group", [False, True])
def test_no_number_on_held_out_rows_is_sent_if_they_are_few_in_all(by_group, tmp_path):
    """Metrics lie in every table of a record, in statistics of them, and in pictures of these tables."""
    write_tables(tmp_path, 20)
    n = 12 if by_group else FEW
    total = {"set": "validation", "model": "shared", "client": "", "n": n}
    with (tmp_path / "scores.csv").open("a") as scores:
        scores.write(",".join(map(str, total.values())) + "\n")
    if by_group:
        rows = [{"set": "validation", "client": "b", "row": i, "group": i % FEW} for i in range(n)]
        (tmp_path / "predictions.csv").write_text(csv_text(rows))
    metrics = {
        "val_loss": 62.8,
        "personal_val_loss": 62.8,
        "best_val_loss": 62.8,
        "tail_val_loss_worst_tenth_low": 62.8,
    }
    for name in ("metrics", "lasso_metrics", "results", "table"):
        lines = [{"seed": 1, "reg.val_loss": 1, "train_loss": 0.7} | metrics]
        (tmp_path / f"{name}.csv").write_text(csv_text(lines))
    (tmp_path / "claims.csv").write_text(csv_text([{"says": "below", "measured": "worst val_loss 62.8"}]))
    for name in (
        "curves.png",
        "best.pdf",
        "roc.png",
        "decision.svg",
        "figure.png",
        "coefficients.png",
    ):
        (tmp_path / name).touch()
    for name in ("roc.csv", "thresholds.csv"):
        (tmp_path / name).write_text("threshold\n0.5\n")
    few = FewRows.find([tmp_path])
    assert few.small_sets == {"validation"}
    left_out = few.list_files(tmp_path)
    assert "coefficients.png" not in left_out
    for path in tmp_path.iterdir():
        if path.name not in left_out and path.suffix == ".csv" and path.name != "predictions.csv":
            assert "62.8" not in (few.read_rest(path) or path.read_text()), path.name
            assert "validation" not in (few.read_rest(path) or path.read_text()), path.name
    assert {path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".pdf", ".svg")} - left_out == {
        "coefficients.png"
    }
    assert few.read_rest(tmp_path / "results.csv") == "seed,reg.val_loss,train_loss\n1,1,0.7\n"
    outcome = [{"set": rows, "client": "", "rows": n} for rows, n in (("train", 40), ("validation", n))]
    content = {"final": {"val_loss": 62.8}, "best": {"val_loss": {"value": 62.8}}, "data": {"outcome": outcome}}
    told = ["val_loss 62.8 was still falling", "of the validation rows none is above 62.8", "train_loss falls latest"]
    shown = few.hide_numbers(content | {"warnings": told}, tmp_path / "summary.json")
    assert shown["data"]["outcome"] == outcome[:1]
    assert shown["warnings"][1] == told[2]
    assert "numbers on held-out rows (validation)" in shown["warnings"][2]
    assert "62.8" not in json.dumps(shown)


@pytest.mark.parametrize(
    ("rows", "kept"), [("test", {"metrics", "curve"}), ("validation", {"curve"}), ("out_of_fold", {"metrics"})]
)
def test_few_rows_of_one_set_leave_the_numbers_on_others(rows, kept, tmp_path):
    """Metrics of a record are of validation rows, those of a selection of rows out of fold, and none of test rows."""
    write_tables(tmp_path, 20)
    (tmp_path / "results.csv").unlink()
    data = {f"{rows}_examples": FEW}
    if rows == "out_of_fold":
        (tmp_path / "scores.csv").write_text(f"set,model,client,n\n{rows},shared,,{FEW}\n")
    else:
        (tmp_path / "summary.json").write_text(json.dumps({"data": data}))
    pictures = {"metrics": "curves.png", "curve": "selection.png"}
    for name, picture in pictures.items():
        (tmp_path / f"{name}.csv").write_text("strength,val_loss\n1,62.8\n")
        (tmp_path / picture).touch()
    few = FewRows.find([tmp_path])
    assert {name for name in pictures if few.read_rest(tmp_path / f"{name}.csv") is None} == kept
    assert {name for name in pictures if pictures[name] not in few.list_files(tmp_path)} == kept
    assert rows not in (few.read_rest(tmp_path / "scores.csv") or rows)
    content = {"final": {"val_loss": 62.8}, "data": data, "rows": {"training": 20, rows: FEW}, "warnings": []}
    shown = few.hide_numbers(content, tmp_path / "summary.json")
    assert (shown["data"], shown["rows"]) == ({}, {"training": 20})
    assert ("val_loss" in shown["final"]) == ("metrics" in kept)
    assert f"held-out rows ({rows})" in shown["warnings"][0]


@pytest.mark.parametrize(
    ("data", "final", "named"),
    [
        ("{class: fcorun.Table, path: rows.csv}", {"val_loss": 62.8}, "all clients"),
        ("{class: fcorun.Table, path: rows.csv}", {"val_loss_worst_tenth": 62.8}, "all clients, a"),
        ("{class: fcorun.Lasso}", {"val_loss": 62.8}, ""),
    ],
)
def test_a_page_of_several_runs_names_few_rows_in_all(data, final, named, tmp_path):
    """A table of runs has their totals, and numbers of clients in metrics over clients alone."""
    (tmp_path / "config.yaml").write_text(f"data: {data}\n")
    outcome = [{"set": rows, "client": client, "rows": FEW} for rows, client in (("validation", ""), ("train", "a"))]
    few_groups = {"few_rows": {"validation": [""], "train": ["a"]}}
    for counts in ({"outcome": outcome}, few_groups):
        (tmp_path / "summary.json").write_text(json.dumps({"final": final, "data": counts}))
        assert name_few([], in_table=[tmp_path]) == named
    (tmp_path / "predictions.csv").write_text("damaged, but not read")
    assert name_few([], in_table=[tmp_path]) == named


def test_a_table_over_clients_takes_its_picture_along(tmp_path):
    write_tables(tmp_path, FEW)
    for name in ("lasso_metrics", "table"):
        lines = [
            {"val_loss": 1, "val_loss_best_tenth": 7.5, "tail_val_loss_spread_low": 7.5, "personal_val_loss_q10": 7.5}
        ]
        (tmp_path / f"{name}.csv").write_text(csv_text(lines))
    few = FewRows.find([tmp_path])
    assert few.read_rest(tmp_path / "lasso_metrics.csv") == few.read_rest(tmp_path / "table.csv") == "val_loss\n1\n"
    (tmp_path / "curves.png").touch()
    assert "curves.png" in few.list_files(tmp_path)


@pytest.mark.parametrize(
    ("n_of_small", "data"), [(LEAST_ROWS, "{class: fcorun.Table, path: rows.csv}"), (1, "{class: fcorun.Lasso}")]
)
def test_everything_is_sent_of_larger_clients_and_of_simulated_data(tmp_path, n_of_small, data):
    write_tables(tmp_path, n_of_small, data)
    few = FewRows.find([tmp_path])
    assert few.small == ()
    assert few.list_files(tmp_path) == {*PATIENT_FILES}
    assert {few.read_rest(path) for path in tmp_path.glob("*.csv")} == {None}
    assert few.hide_numbers(summarize(), tmp_path / "summary.json")["final"] == summarize()["final"]


@pytest.mark.parametrize(
    "data", ["{class: mine.Rows}", "{class: fcorun.Sites, target: y}", "{class: fcorun.Femnist, root: data}"]
)
def test_data_that_are_read_may_be_of_patients(tmp_path, data):
    write_tables(tmp_path, 1, data)
    assert FewRows.find([tmp_path]).small


def test_a_client_in_one_folder_of_a_result_holds_the_others_back(tmp_path):
    write_tables(tmp_path / "selection", 20)
    write_tables(tmp_path / "refit", FEW)
    few = FewRows.find([tmp_path / "selection", tmp_path / "refit"])
    assert "nested.csv" in few.list_files(tmp_path / "selection")


def test_rows_of_few_groups_are_few(tmp_path):
    lines = [{"set": "test", "client": client, "row": i, "group": i % n, "model": "shared"}
             for client, n in (("a", FEW), ("b", LEAST_ROWS)) for i in range(30)]  # fmt: skip
    (tmp_path / "predictions.csv").write_text(csv_text(lines))
    assert FewRows.find([tmp_path]).small == ("a",)
    (tmp_path / "predictions.csv").write_text("set,client\ntest,a\n")
    with pytest.raises(UserError, match=r"predictions\.csv is damaged"):
        FewRows.find([tmp_path])


def test_gaps_of_few_groups_are_few(tmp_path):
    gaps = {"column": "x", "client": "", "outcome": "yes", "rows": 30, "missing": 12, "groups": FEW}
    (tmp_path / "missing.csv").write_text(csv_text([gaps]))
    assert "missing.csv" in FewRows.find([tmp_path]).list_files(tmp_path)


def test_levels_with_few_rows_keep_their_numbers(tmp_path):
    names = ("estimate", "low", "high", "p_value", "p_holm")
    empty = {f"{name}{kind}": "" for name in names for kind in ("", "_standardized")}
    methods = {"w=a": "1 event in 30 rows", "w=b": "Wald", "w=c": "reference"}
    lines = [{"feature": name, "n": 30, "events": 9, "method": method} | empty for name, method in methods.items()]
    (tmp_path / "inference.csv").write_text(csv_text(lines))
    text = (
        "reference: w=c (92 rows)\nwarning: no interval of w=a (1 event in 30 rows), w=d (rows of 3 groups): below 5\n"
    )
    (tmp_path / "inference.txt").write_text(text)
    few = FewRows.find([tmp_path])
    sent = [*csv.DictReader(io.StringIO(few.read_rest(tmp_path / "inference.csv")))]
    assert [(line["n"], line["events"], line["method"]) for line in sent] == [
        ("", "", "few rows"),
        ("", "", "Wald"),
        ("", "", "reference"),
    ]
    told = "reference: w=c\nwarning: no interval of w=a (few rows), w=d (few rows): below 5\n"
    assert few.read_rest(tmp_path / "inference.txt") == told
    assert name_few([tmp_path]) == "w=a"


@pytest.mark.parametrize(
    ("sentence", "is_sent"),
    [
        ("separation: feature 'unit=eye' alone separates two classes, except for 90 of 93 rows at one value", False),
        ("too small to rely on a verdict: Dorf (4 rows, 40 events)", False),
        ("gaps are filled: 'crp' by 9.86587 in 1 row", False),
        ("no events in 30 rows of w=a", False),
        ("one held-out row is far away", False),
        ("'crp' is 9.8 in 1 observation", False),
        ("scores from fewer than 5 events say little: Bern (3), Oslo (12)", False),
        ("2 positive validation rows are of one class", False),
        ("val_loss_worst_tenth 0.93 was still falling", False),
        ("0.93 is its val_loss_worst_tenth.", False),
        ("val_loss 0.93 was still falling after one client of 30 rows was absent", True),
        ("left out: outer fold 3 holds out 'yes' only", False),
        ("left out: client 'Dorf' has rows of 'yes' only", False),
        ("1 of 60 validation rows has a new level", False),
        ("no training row of clients Bern, Dorf has an event", False),
        ("no finite intercept for clients 'Bern' and 'Dorf', with rows of one class alone", False),
        ("3 scores have no interval, because they are the same in all samples, for clients: Bern, Dorf", False),
        ("2 of 60 rows are of clients that training did not have ('Dorf'): means take their place", False),
        ("fold 1, fold 3: the rows held out are of one class only", False),
        ("of the classes 'A' and 'B', coefficients above 0 and probabilities speak for 'B'", True),
        ("no observed risk for 2 of 10 groups; fold 30 of all clients", True),
        ("gaps are filled: 'crp' by 9.86587 in 1,003 rows", True),
        ("3 clients have rows of one class alone", True),
        ("except for 60 of 93 rows; Dorf has no training rows, algo=newton tolerance=1.3", True),
    ],
)
def test_a_sentence_on_few_rows_is_left_out(sentence, is_sent, tmp_path):
    """The rule is on counts and names, whatever else is said, and holds in JSON, tables and texts."""
    (tmp_path / "results.csv").write_text(csv_text([{"algo": "newton", "reason": sentence}]))
    (tmp_path / "run.log").write_text(f"first\n{sentence}\n")
    few = FewRows(False, ("Dorf", "fold 3", "B", "all clients"))
    shown = few.hide_numbers(
        {"verdict": sentence, "nested": {"warnings": [sentence]}, "name": "2 rows"}, tmp_path / "summary.json"
    )
    table = few.read_rest(tmp_path / "results.csv") or (tmp_path / "results.csv").read_text()
    text = few.read_rest(tmp_path / "run.log") or ""
    for sent in (json.dumps(shown), table, text):
        assert (sentence in sent, "left out of what was sent: a sentence" in sent) == (is_sent, not is_sent)
    assert shown["name"] == "2 rows"
    assert text.startswith("first\n")


def test_numbers_of_folds_leave_the_json_of_a_selection(tmp_path):
    nested = {"mean": 1.0, "scores": [1.0, 2.0], "weight_of_fold": [4, 30]}
    content = {"weight_of_fold": {"fold1": 4}, "nested": nested, "warnings": []}
    shown = FewRows(False, ("fold 1",)).hide_numbers(content, tmp_path / "summary.json")
    assert "weight_of_fold" not in json.dumps(shown)
    assert shown["nested"] == {"mean": 1.0}


@pytest.mark.parametrize("counts", [{"events": 2}, {"events": 0}, {"events": 27}, {"censored": 1}, {"at_risk": 3}])
def test_few_events_are_as_few_rows(counts, tmp_path):
    many = {"set": "test", "model": "shared", "client": "a", "n": 30, "events": 9, "censored": 10, "at_risk": 11}
    for table in ("scores.csv", "calibration.csv"):
        (tmp_path / table).write_text(csv_text([many, many | {"client": "b"} | counts]))
        few = FewRows.find([tmp_path])
        assert few.small == (("b",) if table == "scores.csv" else ())
        assert "calibration.csv" in few.list_files(tmp_path)
        (tmp_path / table).write_text(csv_text([many]))
        assert "calibration.csv" not in FewRows.find([tmp_path]).list_files(tmp_path)


@pytest.mark.parametrize(("n", "sent"), [(30, 0.0753), (FEW, 0.5)])
def test_a_chosen_threshold_is_that_of_no_patient(n, sent, tmp_path):
    """Neither in the selection that chose it, nor in the settings and the summary of its refit."""
    chosen = 0.07528969979186858
    refit = tmp_path / "refit"
    write_tables(refit, 20)
    (refit / "config.yaml").write_text(f"data: {{path: rows.csv}}\nthreshold: {chosen}\n")
    section = {"rule": chosen, "chosen_on": "", "shared": chosen, "warnings": []}
    (refit / "summary.json").write_text(json.dumps({"threshold": section, "data": {}}))
    section = {"rule": "youden", "chosen_on": "out_of_fold", "shared": chosen, "warnings": []}
    (tmp_path / "selection.json").write_text(json.dumps({"threshold": section}))
    (tmp_path / "scores.csv").write_text(f"set,model,client,n\nout_of_fold,shared,,{n}\n")
    few = FewRows.find([tmp_path, refit])
    texts = [few.read_rest(path) for path in (tmp_path / "selection.json", refit / "summary.json")]
    sections = [json.loads(text or "")["threshold"] for text in texts]
    assert [(section["rule"], section["chosen_on"], section["shared"]) for section in sections] == [
        ("youden", "out_of_fold", sent),
        (sent, "", sent),
    ]
    assert few.read_rest(refit / "config.yaml") == f"data:\n  path: rows.csv\nthreshold: {sent}\n"
    assert all(("in its place is 0.5" in (text or "")) == (n == FEW) for text in texts)


def test_gaps_and_supports_of_few_rows_stay_and_a_summary_without_warnings_says_so(tmp_path):
    data = {"few_rows": {"train": ["a"]}, "gaps": {"x": 40}}
    (tmp_path / "stability.json").write_text(json.dumps({"data": data}))
    (tmp_path / "clients.csv").write_text("client,a,b\na,1,0\nb,0,1\n")
    (tmp_path / "stability.png").touch()
    few = FewRows.find([tmp_path])
    assert {"clients.csv", "stability.png"} <= few.list_files(tmp_path)
    shown = json.loads(few.read_rest(tmp_path / "stability.json") or "")
    assert shown["data"] == {}
    assert "numbers by client and by fold" in shown["warnings"][0]
    shown = FewRows(False, ()).hide_numbers({"data": {"gaps": {"x": 40, "z": 2}}}, tmp_path / "summary.json")
    assert shown["data"] == {}
    assert few.hide_numbers({}, tmp_path / "status.json") == {}
