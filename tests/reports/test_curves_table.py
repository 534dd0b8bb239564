"""The table of all evaluations of many runs."""

import dataclasses

import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun.base.config import SECTIONS, Settings
from fcorun.base.metrics import CATALOGUE, COUNTERS
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.reports.curves_table import join_curves

KEYS = {*(field.name for field in dataclasses.fields(Settings)), *SECTIONS}
SHARED_NAMES = sorted(KEYS & {*CATALOGUE, *COUNTERS})


def test_names_are_shared():
    assert SHARED_NAMES == ["gap", "objective"]


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_a_key_with_the_name_of_a_metric_has_a_column_of_its_own(name, capsys):
    """The metric is measured by one of the runs alone, as gap is."""
    records = []
    for value, metrics in (("on", {name: 0.5}), ("off", {})):
        given = {"name": value, "class": f"fcorun.{value}"} if name in SECTIONS else value
        rows = [{key: cell for key, cell in row.items() if key != name} | metrics for row in fake_rows()]
        records.append(fake_record(f"s/{value}", fake_config(**{name: given}), rows))
    curves = join_curves(build_table(records), records)
    assert curves[f"{name}="].tolist() == ["on"] * 5 + ["off"] * 5
    assert curves[name].tolist()[:5] == [0.5] * 5
    assert curves[name][5:].isna().all()
    assert main(["results", "s", "--errors", "--metric", "train_loss"]) == 0
    assert f"{name}=" in capsys.readouterr().out
