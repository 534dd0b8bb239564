"""Overrides before Hydra composes them."""

import shlex
from pathlib import Path

import pytest
from helpers import fails
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fcorun import compose
from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.base.override_text import format_override_value, quote_text, split_overrides
from fcorun.data.tables.parsed_table import FileOptions
from fcorun.experiment.configuration.compose import (
    compose_config,
    is_user_error,
    make_sweep_name,
    normalize_overrides,
    register_resolvers,
    remember_last,
    translate_folder,
)
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands.common_command import READING_OPTIONS, read_data_keys


def test_out_is_the_folder_of_a_run_or_of_a_sweep():
    assert translate_folder(["seed=1"]) == ["seed=1"]
    assert translate_folder(["out=lr=0.1,(a)"]) == ["hydra.run.dir='lr=0.1,(a)'"]
    assert translate_folder(["out=my runs", "seed=1"]) == ["seed=1", "hydra.run.dir=my runs"]
    assert translate_folder(["out=2026_05"]) == ["hydra.run.dir='2026_05'"]  # which Hydra would read as 202605
    assert translate_folder(["-m", "out=s"]) == ["-m", "hydra.sweep.dir=s"]


@pytest.mark.parametrize("arguments", [["out=a", "out=b"], ["hydra.run.dir=a", "out=b"], ["out="]])
def test_two_folders_and_none_are_refused(arguments):
    with fails("give one out=DIR" if len(arguments) > 1 else "out= names no folder"):
        translate_folder(arguments)


@pytest.mark.parametrize("group", ["experiment", "algo"])
def test_a_file_in_another_encoding_is_named(tmp_path, group):
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_bytes("# Zürich\nrounds: 3\n".encode("latin-1"))
    with use_config_dir(tmp_path), fails("mine.yaml is no text that YAML can read", "save it as UTF-8"):
        normalize_overrides([f"+{group}=mine"])


def test_two_files_of_a_table_are_refused():
    with fails("data.path=[a.csv,b.csv]: data.path is one file"):
        normalize_overrides(["data.path=[a.csv,b.csv]"])


def test_a_file_whose_defaults_are_no_list_is_named(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("defaults: newton\n")
    with use_config_dir(tmp_path), fails("mine.yaml: defaults must be a list"):
        normalize_overrides(["experiment=mine"])


def test_a_list_in_place_of_a_mapping_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("algo: [newton]\n")
    with fails("config.yaml has a list where fcorun has a mapping of keys"):
        compose(["data=lasso"], tmp_path)


def test_a_number_that_python_does_not_read_is_refused():
    with fails("seed=9999", "a number of 5005 letters is too long"):
        normalize_overrides([f"seed={'9' * 5000}"])


def test_overrides_may_stand_on_both_sides_of_an_option():
    arguments = ["data=lasso", "--cfg", "job", "reg=l2", "-m", "~clock"]
    assert normalize_overrides(arguments) == ["-m", "data=lasso", "reg=l2", "~clock", "--cfg", "job"]


def test_an_error_of_a_program_is_no_error_of_a_user_that_was_handled_before_it():
    def fail():
        try:
            raise UserError("give another value")
        except UserError:
            raise KeyError("a defect")  # noqa: B904

    with pytest.raises(KeyError) as failure:
        fail()
    assert not is_user_error(failure.value)
    failure.value.__cause__ = UserError("give another value")
    assert is_user_error(failure.value)


def test_a_sweep_is_named_after_the_data_that_it_runs_on():
    """Also where an experiment, or the user's own root file, chooses the data."""
    assert make_sweep_name("lasso_8", ["data=lasso_8", "seed=1,2"]).startswith("lasso_8-")
    assert make_sweep_name("lasso", ["data=lasso_8,lasso_16"]).startswith("several-")
    experiments = Path("mine/experiment")
    experiments.mkdir(parents=True)
    head = "# @package _global_\n"
    (experiments / "one.yaml").write_text(head + "defaults: [override /data: lasso_16]\n")
    (experiments / "two.yaml").write_text(head + "hydra: {sweeper: {params: {data: 'lasso_8,lasso_16'}}}\n")
    register_resolvers(remember_last(lambda values: pytest.fail("no run is prepared")))
    with use_config_dir("mine"):
        for overrides, data in (("one", "lasso_16"), ("two", "several"), ("two data=lasso_8", "lasso_8")):
            folder = compose_config(f"experiment={overrides}".split()).hydra.sweep.dir
            assert folder.startswith(f"outputs/sweeps/{data}-")


def test_a_mapping_with_names_of_any_letters_is_part_of_the_name_of_a_sweep():
    register_resolvers(remember_last(lambda values: pytest.fail("no run is prepared")))
    folders = set()
    for codes in ("[-9]", "[-1]"):
        overrides = ["data=table", "data.path=t.csv", f"data.na={{größe: {codes}}}"]
        folders.add(compose_config(overrides).hydra.sweep.dir)
    assert len(folders) == 2


@pytest.mark.parametrize("name", ["Zürich", "age>50", "a#b", "it's", "true", "1e5", "007", ""])
def test_a_name_of_a_mapping_that_hydra_does_not_read_is_in_quotes(name):
    mapping = {name: [1.5, "it's"], "age": None}
    override = f"data.na={format_override_value(mapping)}"
    assert split_overrides(f"seed=1 {override}") == ["seed=1", override]
    (translated,) = normalize_overrides([override])
    value = OverridesParser.create().parse_override(translated).value()
    assert OmegaConf.to_container(OmegaConf.create({"na": value}), resolve=True) == {"na": mapping}


@pytest.mark.parametrize("typed", ["{größe: [-9,0]}", "{größe:[-9,0]}", "{'größe' : [-9, 0]}", '{"größe":[-9,0]}'])
def test_names_of_columns_are_typed_with_any_letters(typed):
    assert compose(["data=table", "data.path=t.csv", f"data.na={typed}"])["data"]["na"] == {"größe": [-9, 0]}
    with fails('letters such as these need quotes within quotes: \'data.rename={"größe":"höhe"}\''):
        read_data_keys(["data.rename={größe: höhe}"], ["rename"], "help")
    typed = f"data.rename={typed.replace('[-9,0]', 'age').replace('[-9, 0]', 'age')}"
    assert read_data_keys([typed, 'data.na={"größe":[-9]}'], ["rename", "na"], "help") == {
        "rename": {"größe": "age"},
        "na": {"größe": [-9]},
    }


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("data.na={wgt: -9}", {"wgt": ["-9"]}),
        ("data.na={größe: -9, ward: unknown, age: [0]}", {"größe": ["-9"], "ward": ["unknown"], "age": ["0"]}),
        ("data.na=-9", ["-9"]),
        ("data.na=-9,-1", ["-9", "-1"]),
        ("data.na=choice(-9,unknown)", ["-9", "unknown"]),
        ("data.encoding=latin-1,utf-8", "latin-1"),
        ("data.sheet=sort(2024,2023)", "2023"),
    ],
)
def test_the_cure_of_a_key_of_a_file_works_when_it_is_typed(typed, value):
    with pytest.raises(UserError) as refused:
        build(FileOptions, read_data_keys([typed], READING_OPTIONS, "help"), "data")
    (cure,) = shlex.split(str(refused.value).rpartition(": give ")[2])
    (name,) = read_data_keys([cure], READING_OPTIONS, "help")
    assert getattr(build(FileOptions, read_data_keys([cure], READING_OPTIONS, "help"), "data"), name) == value


@pytest.mark.parametrize("value", ["range(1,3)", "glob(*)", "{u: choice(1,2)}", "{größe: [choice(1,2)]}"])
def test_a_file_is_not_read_by_sweeps(value):
    with fails(f"data.na={value} is a sweep", "give one value, without choice(), range() or glob()"):
        read_data_keys([f"data.na={value}"], READING_OPTIONS, "help")


@pytest.mark.parametrize(
    "value",
    [
        *("auto", "null", "a b", "it's", 'a "b"', "C:\\x\\", "\\'", "a\\\nb", "Zürich", 0.5, True, [], {}),
        *([["a", "b c"], ["it's"]], {"ward=surgery": 0, "blood pressure": [1.5, "a,b"], "x(y)": None}),
        {"a.b/c-d%e+f@g?h|i*j": 0},
    ],
    ids=repr,
)
def test_a_formatted_value_is_read_back_from_a_list_of_jobs(value):
    overrides = ["seed=1", f"++reg.key={format_override_value(value)}", "rounds=2"]
    listed = quote_text(" ".join(overrides), "'")
    parser = OverridesParser.create()
    (job,) = parser.parse_override(f"hydra.sweeper.also=[{listed}]").value()  # type: ignore[misc]
    assert split_overrides(job) == overrides
    assert parser.parse_override(overrides[1]).value() == value


def test_a_variable_of_the_environment_gives_a_number(monkeypatch):
    monkeypatch.delenv("LR", raising=False)
    with pytest.raises(UserError, match=r"algo.client_lr: the environment has no variable LR: export LR=VALUE"):
        compose(["data=lasso_16", "algo.client_lr=${oc.env:LR}"])
    monkeypatch.setenv("LR", "1e-3")
    config = compose(["data=lasso_16", "algo.client_lr=${oc.env:LR}", "title=rate ${oc.env:LR}"])
    assert config["algo"]["client_lr"] == 1e-3
    assert config["title"] == "rate 1e-3"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("hydra/launcher=joblib", "give hydra.launcher.executor=dask"),
        ("+note=first try", "title=TEXT is a text of yours"),
        ("tracker.uri=./mlruns", "give a database file, `?tracker.uri=sqlite:///mlruns.db"),
    ],
)
def test_what_others_expect_gets_the_key_to_give(override, sentence):
    with pytest.raises(UserError, match=sentence):
        prepare(compose(["data=lasso_16", "tracker=mlflow", override]))


def test_the_label_of_a_run_shows_the_options_of_its_topology():
    words = ["data=lasso_16", "algo=nids", "clients_per_round=null", "topology=graph", "topology.graph=torus"]
    assert "topology=graph graph=torus" in prepare(compose(words)).label
