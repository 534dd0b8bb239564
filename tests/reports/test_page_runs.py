"""The runs of the page: a sentence about them, their tables, and pictures over their points."""

import json
import re
from pathlib import Path

import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun.base.records.tables import NUMBER, TEXT, TableFile
from fcorun.reports.build_table import build_table
from fcorun.reports.page.elements import Cell, csv_table, read_table, table_cell
from fcorun.reports.page.runs import configuration_table, describe_runs, result_table, runs_table
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.rates import PICTURE, collect_numbers


def described(*records):
    return describe_runs(records, build_table(records))


def test_the_size_of_the_data_is_that_of_all_runs():
    one = fake_record("one")
    file = one.folder / "summary.json"
    size = {"data": {"clients": 4, "examples": 20, "features": 3}}
    file.write_text(json.dumps(json.loads(file.read_text()) | size))
    assert "on lasso (4 clients, 20 rows for training, 3 features), " in described(one)
    running = fake_record("two", fake_config(data="other"), status="running")
    assert "on lasso and other, " in described(one, running)


def test_all_clients_are_named_and_baselines_have_no_rounds():
    ten, everyone = (
        fake_record(f"{size}", fake_config(clients_per_round=size), fake_rows(grads=1)) for size in (10, None)
    )
    drawn = fake_record("drawn", fake_config(clients_per_round="poisson:0.3"), fake_rows(grads=1))
    assert described(drawn).endswith("40 rounds, about 30 % of the clients a round.")
    baseline = fake_record("b", fake_config("centralized", clients_per_round=None), fake_rows(silent=True))
    assert "40 rounds, 10 and all clients a round. Varied: clients_per_round (10, all)." in described(ten, everyone)
    assert described(everyone).endswith("40 rounds, all clients in each.")
    assert described(ten, baseline).startswith(
        "2 runs of feddualavg and centralized on lasso, regularizer l1, 40 rounds, 10 clients"
    )
    assert described(baseline) == "One run of centralized on lasso, regularizer l1."


@pytest.mark.parametrize(
    ("rounds", "more", "header"),
    [
        (40, {}, "mean of the last 20 rounds"),
        (10, {}, "mean of the last 10 rounds"),
        (40, {"silent": True}, ""),
        (40, {"stopped": True}, ""),
    ],
    ids=["long", "short", "baseline", "stopped"],
)
def test_the_header_of_the_mean_is_true(rounds, more, header):
    stopped = more.pop("stopped", False)
    record = fake_record("r", table=fake_rows(rounds=rounds, **more))
    if stopped:
        path = record.folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"stopped": True}))
    table = result_table(record, build_table([record]))
    assert ("mean of" in table) == bool(header)
    assert header in table


def test_the_mean_of_a_single_run_is_over_the_asked_rounds():
    record = fake_record("r")
    assert "<td>val_loss</td>" + _cells(1, 1, 40, 1.375) in result_table(record, build_table([record]))
    table = result_table(record, build_table([record], tail_rounds=7))
    assert "mean of the last 7 rounds" in table
    assert "<td>val_loss</td>" + _cells(1, 1, 40, 1) in table


def _cells(*values):
    return "".join(f'<td class="number" data-v>{value}</td>' for value in values)


def test_a_diverged_run_has_no_mean():
    record = fake_record("r", status="diverged")
    assert "mean of" not in result_table(record, build_table([record]))


def test_a_map_says_that_its_best_point_is_not_drawn():
    records = []
    for client, level in ((0.1, 0.4), (0.2, 0.5), ("auto", 0.9)):
        for server in (1.0, 2.0):
            settings = fake_config(algo__client_lr=client, algo__server_lr=server)
            records.append(fake_record(f"s/{len(records)}", settings, fake_rows(support_f1=level / server)))
    runs = build_table(records)
    drawing = PICTURE.render(ProblemView(runs, records, "support_f1", curve_styles_of(runs)), ("svg",))["svg"]
    assert b"feddualavg is best at algo.client_lr=auto, which is not drawn" in drawing


def test_the_configuration_has_all_digits():
    records = [fake_record(f"{i}", fake_config(algo__client_lr=0.123456 + i * 2e-6)) for i in range(2)]
    records.append(fake_record("nan", fake_config(algo__client_lr=float("nan"))))
    assert "<td>0.123456, 0.123458, nan</td>" in configuration_table(records, {})
    assert table_cell(0.12345678901234) == Cell("0.1235", sorts=True)


def test_names_of_features_are_text():
    names = ["250.00", "250.01", "007", "nan"]
    table = csv_table([{"feature": name, "frequency": "0.50"} for name in names])
    assert re.findall("<tr><td>(.*?)</td><td.*?>0.5</td>", table) == names


@pytest.mark.parametrize("text", ["feature,x\nage\n", "feature,x\nage,1,2\n", "name,x\nage,1\n", "feature,x\nage,b\n"])
def test_a_damaged_table_is_empty(text):
    table = TableFile("path.csv", {"feature": TEXT}, others=NUMBER)
    Path("path.csv").write_text("feature,x\nage,1\n")
    assert read_table(table, Path()) == [{"feature": "age", "x": "1"}]
    Path("path.csv").write_text(text)
    assert read_table(table, Path()) == []


def test_the_caption_names_several_problems():
    records = [fake_record(name, fake_config(data=name)) for name in ("lasso", "lowrank")]
    assert "best point of each algorithm on each problem by val_loss" in runs_table(build_table(records), "val_loss")
    assert "best point of each algorithm by val_loss" in runs_table(build_table(records[:1]), "val_loss")


def test_texts_and_truth_values_of_a_key_are_points_of_their_own():
    """The best point, at "auto", has no ring at a number; and keys of truth values have no chart."""
    levels = [(0.1, 0.4), (0.2, 0.5), ("auto", 0.9), ("exact", 0.0), (1, 0.3), (True, 0.2)]
    records = []
    for rate, level in levels:
        settings = fake_config(algo__client_lr=rate, algo__exact=rate == 0.1)
        records.append(fake_record(f"s/{len(records)}", settings, fake_rows(support_f1=level)))
    runs = build_table(records)
    view = ProblemView(runs, records, "support_f1", curve_styles_of(runs))
    assert b"feddualavg is best at algo.client_lr=auto, which is not drawn" in PICTURE.render(view, ("svg",))["svg"]
    numbers = collect_numbers(view)
    (points,) = numbers.panels[0].algorithms
    assert {x: row["metric"] for (x,), row in points.done.items() if x is not None} == {0.1: 0.4, 0.2: 0.5, 1: 0.3}
