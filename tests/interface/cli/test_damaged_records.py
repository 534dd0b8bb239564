"""Damaged files of records, plans, policies and options: each command tells of them in a sentence, by their names."""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from fake_records import fake_config, fake_record

from fcorun import Record, load_records
from fcorun.base.errors import UserError
from fcorun.interface.cli.commands import main
from fcorun.reports.page.build_page import build_page

# What takes the place of a value: other types, huge and negative numbers, empty texts and lists.
WRONG_VALUES: list[Any] = [None, [], {}, "", "x", -1, 1.5, 1e308, 10**400, True, [1], {"a": 1}, [["b"]], float("nan")]
LEFT_OUT = object()  # in place of a value, with its key
FIRST_ALONE = object()  # in place of a list, its first item; of another value, a list of it
COLUMNS = ["age", "dose"]


def write_table() -> None:
    """Write t.csv: numbers, levels and a gap, and targets of three kinds."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)).round(2), columns=COLUMNS)
    frame["sex"] = rng.choice(["f", "m"], 60)
    frame["hospital"] = rng.choice([*"ABC"], 60)
    frame["ill"] = np.where(frame["age"] + rng.normal(size=60) > 0, "yes", "no")
    frame["time"] = rng.exponential(3, 60).round(2) + 0.1
    frame["event"] = rng.integers(0, 2, 60)
    frame.loc[3, "dose"] = np.nan
    frame.to_csv("t.csv", index=False)


OPTIONS = ["data=table", "data.path=t.csv", "data.client=hospital", "data.validation=0.3", "data.missing=mean"]
OPTIONS += ["report=false"]
ILL = ["data.task=binary", "data.target=ill", "data.positive=yes", "data.ignore=[time,event]"]
TIME = ["objective=cox", "data.target=time", "data.event=event", "data.ignore=[ill]", "reg=none", "algo=newton"]
PERSONAL = ["data.target=time", "data.ignore=[ill,event]", "algo=ditto", "data.standardize=per_client", "rounds=2"]


META = ["algo=meta_analysis", "data.target=time", "data.ignore=[ill,event]", "reg=none"]


def list_keys(values: Any, keys: tuple = ()) -> Iterator[tuple]:
    """Yield the way to each value; of a list to its first and last items."""
    if keys:
        yield keys
    if isinstance(values, dict):
        for name in values:
            yield from list_keys(values[name], (*keys, name))
    if isinstance(values, list):
        for i in sorted({0, len(values) - 1} & {*range(len(values))}):
            yield from list_keys(values[i], (*keys, i))


def replace_value(values: Any, keys: tuple, new: Any) -> Any:
    """Return a copy of the values in which ``new`` is at the end of ``keys``."""
    copy = json.loads(json.dumps(values))
    holder = copy
    for key in keys[:-1]:
        holder = holder[key]
    if new is LEFT_OUT:
        del holder[keys[-1]]
    elif new is FIRST_ALONE:
        old = holder[keys[-1]]
        holder[keys[-1]] = old[:1] if isinstance(old, list) else [old]
    else:
        holder[keys[-1]] = new
    return copy


def check_sentences(file: Path, commands: list[list[str]], capsys) -> None:
    """Run commands while each value of a file is another one, and check that they end well or with a sentence."""
    content = file.read_text()
    is_json = file.suffix == ".json"
    values = json.loads(content) if is_json else yaml.safe_load(content)
    wrong_values = [*WRONG_VALUES, LEFT_OUT, FIRST_ALONE]
    for number, keys in enumerate(list_keys(values)):
        new = wrong_values[(7 * number) % len(wrong_values)]  # each in its turn: 7 and 16 have no common divisor
        damaged = replace_value(values, keys, new)
        file.write_text(json.dumps(damaged) if is_json else yaml.safe_dump(damaged))
        for command in commands:
            require_sentence(command, f"{keys} of {file} as {new!r}", capsys)
    file.write_text(content)


def require_sentence(command: list[str], changed: str, capsys) -> None:
    """Run a command, and require that it ends well or with a sentence."""
    code = main(command)
    err = capsys.readouterr().err
    words = f"{' '.join(command)} with {changed}: {err}"
    assert code in (0, 2), words  # 1 is a failure that nobody foresaw
    assert "Error" not in err.replace("UserError", ""), words
    assert "Traceback" not in err, words


@pytest.mark.slow
@pytest.mark.undrawn
@pytest.mark.parametrize("words", [ILL, TIME, PERSONAL], ids=["ill", "time", "personal"])
def test_no_value_of_a_record_is_an_error_without_a_sentence(words, fcorun, capsys):
    write_table()
    assert fcorun(*OPTIONS, *words, "rounds=3", "out=made")[0] == 0
    commands = [["results", "made"], ["predict", "made", "t.csv"], ["scores", "made", "--samples", "200"]]
    for name in ("status.json", "summary.json", "encoding.json", "config.yaml"):
        check_sentences(Path("made", name), commands, capsys)


@pytest.mark.parametrize("name", ["mean_", "var_", "scale_", "all"])
def test_a_standardization_of_other_features_is_told(name, capsys):
    scaling = {"by": "pooled", "mean_": [0.0, 1.0], "var_": [1.0, 4.0], "scale_": [1.0, 2.0]}
    names = ["mean_", "var_", "scale_"] if name == "all" else [name]
    file = fake_record("run").folder / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps(summary | {"data": {"features": 2, "standardized": scaling}}))
    Record(Path("run")).check()
    file.write_text(
        json.dumps(summary | {"data": {"features": 2, "standardized": scaling | {k: [1.0] for k in names}}})
    )
    assert main(["results", "run"]) == 2
    sentence = f"run/summary.json is damaged (data.standardized.{names[0]} has 1 items for 2 features)"
    assert sentence in capsys.readouterr().err


WRONG_CELLS = [
    "",
    "x",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "9" * 400,
    "1e308",
    "0",
    "True",
    "\N{ARABIC-INDIC DIGIT THREE}",
]


def damage_table(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and the text of a table with that: a damage of each column in turn, and those of rows."""
    header, *rows = list(csv.reader(io.StringIO(text)))
    for column, name in enumerate(header):
        if column % 3 == 2:
            yield f"no {name}", write_csv([row[:column] + row[column + 1 :] for row in (header, *rows)])
            continue
        new = WRONG_CELLS[(5 * column) % len(WRONG_CELLS)]
        damaged = [list(row) for row in rows]
        for row in damaged[: 1 if column % 3 else None]:
            row[column] = new
        yield f"{name} as {new[:20]}", write_csv([header, *damaged])
    yield "no rows", write_csv([header])
    yield "a row less", write_csv([header, *rows[:-1]])
    yield "a row twice", write_csv([header, *rows, rows[-1]])
    yield "a long row", write_csv([header, [*rows[0], "7"], *rows[1:]])
    yield "a short row", write_csv([header, rows[0][:-1], *rows[1:]])
    yield "a column twice", write_csv([[*row, row[0]] for row in (header, *rows)])
    yield "nothing", ""
    yield "no text", "\x00\udcff{]\n"


def write_csv(rows: list[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def check_table(path: str, commands: list[list[str]], capsys, step: int = 1) -> None:
    """Run commands, and read the tables of a record from Python, while a table is damaged in each ``step``-th way."""
    content = Path(path).read_text()
    for what, damaged in islice(damage_table(content), 0, None, step):
        Path(path).write_text(damaged, errors="surrogateescape")
        for command in commands:
            require_sentence(command, f"{what} in {path}", capsys)
        for table in ("metrics", "scores", "predictions", "coefficients"):
            with suppress(UserError):
                getattr(load_records(Path(path).parent)[0], table)
    Path(path).write_text(content)


SCORES = ["scores", "made", "--samples", "100"]


@pytest.mark.slow
@pytest.mark.undrawn
def test_no_cell_of_a_table_is_an_error_without_a_sentence(fcorun, capsys):
    write_record(fcorun)
    check_table("made/metrics.csv", [["results", "made"]], capsys)
    for name in ("scores.csv", "predictions.csv"):
        check_table(f"made/{name}", [SCORES], capsys)
    check_table("made/coefficients.csv", [["predict", "made", "t.csv"]], capsys)


@pytest.mark.slow
@pytest.mark.undrawn
def test_no_cell_of_hazards_or_estimates_of_clients_is_an_error_without_a_sentence(fcorun, capsys):
    write_table()
    assert fcorun(*OPTIONS, *TIME, "rounds=3", "out=made")[0] == 0
    check_table("made/baseline_hazard.csv", [["predict", "made", "t.csv", "--at", "2"]], capsys)
    check_table("made/predictions.csv", [SCORES, [*SCORES, "--at", "2"]], capsys)
    assert fcorun(*OPTIONS, *META, "out=meta")[0] == 0
    check_table("meta/client_estimates.csv", [["infer", "meta"]], capsys)
    check_table("meta/predictions.csv", [["scores", "meta", "--samples", "100"]], capsys)


@pytest.mark.slow
@pytest.mark.undrawn
def test_no_cell_of_a_table_on_a_page_is_an_error_without_a_sentence(fcorun, capsys):
    write_record(fcorun)
    assert main(["infer", "made", "data.path=t.csv"]) == 0
    for name in ("scores.csv", "coefficients.csv", "inference.csv", "missing.csv"):
        check_table(f"made/{name}", [["report", "made", "--force"]], capsys, step=5)
    check_table("made/inference.csv", [["cite", "made"]], capsys)


@pytest.mark.slow
def test_no_cell_of_a_table_of_a_selection_is_an_error_without_a_sentence(fcorun, capsys):
    write_table()
    study = [*OPTIONS, *ILL, "algo=centralized", "points=2", "folds=2", "out=chosen"]
    assert main(["select", *study, "outer_folds=2"]) == 0
    check_table("chosen/predictions.csv", [["scores", "chosen", "--samples", "100"]], capsys)
    for name in ("curve.csv", "nested.csv"):
        check_table(f"chosen/{name}", [["report", "chosen", "--force"]], capsys, step=5)


@pytest.mark.slow
@pytest.mark.undrawn
def test_no_value_of_a_page_or_an_interval_is_an_error_without_a_sentence(fcorun, capsys):
    write_table()
    assert fcorun(*OPTIONS, *ILL, "reg=none", "algo=newton", "rounds=9", "out=made")[0] == 0
    for name in ("status.json", "summary.json", "encoding.json"):
        check_sentences(Path("made", name), [["report", "made"]], capsys)
    check_sentences(Path("made", "config.yaml"), [["infer", "made", "data.path=t.csv", "out=intervals"]], capsys)


@pytest.mark.slow
def test_no_value_of_a_selection_is_an_error_without_a_sentence(fcorun, capsys):
    write_table()
    assert main(["select", *OPTIONS, *ILL, "algo=centralized", "points=2", "folds=2", "out=chosen"]) == 0
    commands = [["predict", "chosen", "t.csv"], ["scores", "chosen", "--samples", "200"], ["report", "chosen"]]
    check_sentences(Path("chosen/selection.json"), commands, capsys)
    assert main(["permute", *OPTIONS, *ILL, "algo=centralized", "points=2", "folds=2", "n=2", "out=tested"]) == 0
    check_sentences(Path("tested/permutation.json"), [["report", "tested"]], capsys)


@pytest.mark.slow
def test_no_value_of_a_plan_or_policy_is_an_error_without_a_sentence(fcorun, capsys):
    write_table()
    words = ["data=sites", *ILL, "data.missing=mean", "algo=newton", "reg=none", "rounds=2"]
    assert main(["plan", *words, "--out", "plan.yaml"]) == 0
    rules = {"min_rows": 5, "min_cell": 2, "alone": "allow", "columns": [*COLUMNS, "sex"], "max_rounds": 9}
    rules |= {"keys": "any", "log_contents": False, "ledger": "ledger", "row_id": None}
    Path("policy.yaml").write_text(yaml.safe_dump(rules))
    command = ["site", "check", "plan.yaml", "data.path=t.csv", "data.client=hospital", "policy=policy.yaml"]
    for name in ("plan.yaml", "policy.yaml"):
        check_sentences(Path(name), [command], capsys)
    for value in ("null", "[]", "{}", "''", "-1", "1e308", "[[b]]", "{a: {b: 1}}", "true"):
        for key in ("path", "client", "rename", "keep"):
            assert main([*command[:3], "data.path=t.csv", f"data.{key}={value}"]) in (0, 2)
            assert "Error" not in capsys.readouterr().err


def write_record(fcorun) -> None:
    """Write t.csv, and the record "made" of a run on it."""
    write_table()
    assert fcorun(*OPTIONS, *ILL, "reg=none", "algo=newton", "rounds=2", "out=made")[0] == 0


def test_parameters_of_another_shape_are_no_model(fcorun, capsys):
    write_record(fcorun)
    weights = np.zeros(4)  # age, dose and two levels of sex
    solutions: list[dict[str, np.ndarray]] = [
        {},
        {"weights": np.zeros((60, 4))},
        {"weights": np.zeros((0, 3))},
        {"weights": np.zeros(5)},
        {"weights": weights, "bias": np.zeros(0)},
        {"weights": weights, "bias": np.zeros((60, 3))},
    ]
    for solution in solutions:
        np.savez("made/solution.npz", **solution)
        assert main(["predict", "made", "t.csv"]) == 2
        assert "made cannot predict: its summary.json, config.yaml, solution.npz" in capsys.readouterr().err
        for command in (["plot", "made"], ["report", "made", "--force"]):
            assert main(command) in (0, 2)
            assert "Error" not in capsys.readouterr().err


def test_tables_of_a_page_without_their_columns_are_left_out(fcorun, capsys):
    write_record(fcorun)
    for name, cut in (("coefficients.csv", "value_original"), ("scores.csv", ",n,"), ("scores.csv", "client")):
        path = Path("made", name)
        content = path.read_text()
        assert cut in content
        for damaged in (content.replace(cut, ",x,"), "\N{LATIN SMALL LETTER U WITH DIAERESIS}" + content):
            path.write_text(damaged, encoding="latin-1")
            for options in ([], ["--short"]):
                assert main(["report", "made", "--force", "--out", "page.html", *options]) == 0
                assert f"not on the page: made/{name} is damaged (" in capsys.readouterr().err
        assert f"Left out: made/{name} is damaged (" in build_page([Path("made")], [Record("made")])
        path.write_text(content)
    Path("made/scores.csv").write_bytes(b"\xff")
    assert main(["scores", "made"]) == 2
    assert "made/scores.csv is damaged" in capsys.readouterr().err


def test_a_configuration_that_is_damaged_is_named_by_commands_for_one_record(fcorun, capsys):
    write_record(fcorun)
    content = Path("made/config.yaml").read_text()
    damages = {
        "x: [": "has a damaged configuration",
        "seed: 0": "made/config.yaml is damaged (data is missing)",
        content.replace("file_encoding: null", "file_encoding: [x]"): "(data.file_encoding must be text or null)",
    }
    for damaged, sentence in damages.items():
        Path("made/config.yaml").write_text(damaged)
        for command in (["infer", "made", "data.path=t.csv"], ["predict", "made", "t.csv"]):
            assert main(command) == 2
            assert sentence in capsys.readouterr().err
    Path("made/config.yaml").unlink()
    assert main(["predict", "made", "t.csv"]) == 2
    assert "made/config.yaml is not there: give a folder that has it" in capsys.readouterr().err


def test_one_damaged_record_is_named_and_the_others_are_shown(capsys):
    fake_record("runs/first")
    fake_record("runs/second", fake_config(seed=1))
    damages = {"status.json": '{"status": [1]}', "summary.json": "{", "metrics.csv": "round,a\n1\n"}
    damages |= {"config.yaml": "algo: 3\n", "encoding.json": '{"columns": null}'}
    for name, content in damages.items():
        (fake_record(f"runs/bad {name}").folder / name).write_text(content)
    assert main(["results", "runs"]) == 0
    out, err = capsys.readouterr()
    assert "first" in out
    assert "second" in out
    assert err.startswith("fcorun: left out: runs/bad config.yaml/config.yaml is damaged (algo must be a mapping)")
    assert err.endswith("and 2 more like these\n")


def test_other_options_of_a_data_set_of_a_user_are_no_damage(capsys):
    record = fake_record(
        "run", fake_config(data__class="mine.Mine", data__keep=3)
    )  # a number, in a class of the user's
    record.check()
    assert record.config["data"]["keep"] == 3
    for command in ("results", "report"):
        assert main([command, "run"]) == 0
        assert capsys.readouterr().err == ""
    fake_record("bad", fake_config(data__class="mine.Mine", data__name=3))
    assert main(["results", "bad"]) == 2
    assert "bad/config.yaml is damaged (data.name must be text)" in capsys.readouterr().err


@pytest.mark.slow
def test_no_value_of_a_plan_with_its_own_digest_is_an_error_without_a_sentence(fcorun, capsys, monkeypatch):
    """A plan that was changed is refused by its digest; one that somebody made so, by its values."""
    write_table()
    plan = ("algo=newton", "data=sites", "data.target=time", "data.ignore=[ill,event]", "data.missing=mean", "rounds=2")
    assert fcorun("plan", *plan, "--out", "study.yaml")[0] == 0
    monkeypatch.setattr("fcorun.sites.plan.plan._check_digest", lambda content, digest, where: None)
    check_sentences(Path("study.yaml"), [["site", "check", "study.yaml", "data.path=t.csv"]], capsys)


@pytest.mark.slow
def test_one_damaged_record_or_study_is_named_on_the_page_of_the_others(capsys):
    fake_record("runs/first")
    summary = fake_record("runs/second").folder / "summary.json"
    summary.write_text(summary.read_text().replace('"cutoff": ', '"cutoff": "x", "was": '))
    Path("runs/chosen").mkdir()
    Path("runs/chosen/selection.json").write_text('{"metric": 3}')
    assert main(["report", "runs"]) == 0
    assert "runs/second/summary.json is damaged (cutoff must be a number)" in capsys.readouterr().err
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "runs/second/summary.json is damaged (cutoff must be a number)" in page
    assert "runs/chosen/selection.json is damaged (metric must be text)" in page
    assert "feddualavg" in page


def test_a_folder_whose_records_are_all_damaged_is_refused(capsys):
    (fake_record("run").folder / "summary.json").write_text("[" * 10**6)
    for command in ("results", "report"):
        assert main([command, "run"]) == 2
        assert "run/summary.json is damaged (it cannot be read)" in capsys.readouterr().err


def test_very_many_keys_of_a_configuration_are_refused_at_once(capsys):
    keys = "".join(f"  k{i}: 0\n" for i in range(300_000))
    (fake_record("run").folder / "config.yaml").write_text(f"algo:\n{keys}")
    assert main(["results", "run"]) == 2
    assert "there are more than 10,000 keys" in capsys.readouterr().err


@pytest.mark.slow
def test_names_that_a_spreadsheet_reads_as_formulas_are_told_of_and_stay(fcorun, capsys):
    write_table()
    frame = pd.read_csv("t.csv").rename(columns={"age": "=age"}).replace({"hospital": {"A": "@A"}})
    frame.to_csv("t.csv", index=False)
    code, _, _ = fcorun(*OPTIONS, *ILL, "reg=none", "algo=newton", "rounds=2", "out=made")
    assert code == 0
    record = Record("made")
    assert "reads cells of" in record.status["reason"]
    assert "'=age'" in record.status["reason"]
    assert "@A" in set(record.predictions["client"])
    assert main(["predict", "made", "t.csv", "--out", "new.csv"]) == 0
    assert "a spreadsheet reads cells of new.csv as formulas ('@A')" in capsys.readouterr().err
    sentence = "warning: a spreadsheet reads cells of"
    study = [*OPTIONS, *ILL, "algo=centralized", "points=2"]
    for command in (
        ["infer", "made", "data.path=t.csv"],
        ["weights", "made"],
        ["weights", "made", "--out", "all.csv"],
        ["select", *study, "folds=2", "out=chosen"],
        ["stability", *study, "subsamples=10", "out=stable"],
    ):
        assert main(command) == 0
        assert sentence in capsys.readouterr().out, command
    assert main(["scores", "made", "--samples", "200", "--out", "scored.csv"]) == 0
    assert f"{sentence} scored.csv as formulas ('@A'" in capsys.readouterr().out
