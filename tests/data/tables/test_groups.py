"""Groups, whose rows stay together in splits, folds and halves, in every format of table."""

from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from brain_images import write_maps
from helpers import fails, not_none

from fcorun.base.config import build, identity_fields
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.nifti import Nifti
from fcorun.data.datasets.table import Table
from fcorun.data.rows.rows import Rows
from fcorun.studies.selection.folds import assign_folds, draw_halves

pytestmark = pytest.mark.usefixtures("own_cache")
PATIENTS, VISITS = 60, 3


def visits(patients=PATIENTS) -> pd.DataFrame:
    """Return three visits of each patient, in mixed order, at one of three sites; x is the number of the patient."""
    number = np.tile(np.arange(patients), VISITS)
    return pd.DataFrame(
        {
            "x": number.astype(float),
            "age": 20.0 + number % 50,
            "patient": [f"P{n}" for n in number],
            "site": np.array(["a", "b", "c"])[number % 3],
            "wave": 2020 + number % 4,
            "part": np.array(["train", "train", "validation", "test"])[number % 4],
            "y": np.arange(len(number), dtype=float),
        }
    )


def table(frame: pd.DataFrame | None = None, **options) -> Table:
    (visits() if frame is None else frame).to_csv("visits.csv", index=False)
    columns: dict[str, Any] = {"target": "y", "client": "site", "only": ["x", "age"]}
    return build(Table, {"path": "visits.csv", **columns, "group": "patient", **options}, "data")


def patients_by_split(data) -> dict[str, set[float]]:
    """Return the patients of each split, and check that no patient is in two splits."""
    patients = {name: set(np.asarray(rows.local.x[:, 0], float).tolist()) for name, rows in data.splits.items()}
    for name, rows in data.splits.items():
        assert len(rows) == VISITS * len(patients[name])
    assert sum(map(len, patients.values())) == len(set().union(*patients.values()))
    return patients


def test_rows_of_a_patient_are_of_one_split():
    data = table(test=0.3, standardize="none").load()
    by_split = patients_by_split(data)
    assert {name: len(rows) > 4 for name, rows in by_split.items()} == dict.fromkeys(
        ("train", "validation", "test"), True
    )
    assert data.features.names == ("x", "age")
    assert not_none(data.train.group).tolist() == [f"P{n:g}" for n in data.train.x[:, 0]]
    assert patients_by_split(table(test=0.3, validation=0.4).load())["test"] == by_split["test"]
    assert patients_by_split(table(test=0.1).load())["validation"] == by_split["validation"]
    assert patients_by_split(table(test=0.3, seed=1).load()) != by_split
    warnings = "\n".join(data.warnings)
    assert f"the rows of each of 60 groups stay together; held out are {len(by_split['validation'])} with" in warnings
    pooled = table(standardize="pooled").load()
    np.testing.assert_allclose(pooled.train.x.mean(axis=0), 0, atol=1e-12)  # of the training rows
    held_out = patients_by_split(table(validation=["b"]).load())["validation"]
    assert held_out == {n for n in range(PATIENTS) if n % 3 == 1}


def test_more_patients_do_not_change_the_splits_of_others():
    small, large = (table(visits(count), test=0.3).load() for count in (40, 90))
    in_small, in_large = patients_by_split(small), patients_by_split(large)
    for split in in_small:
        assert in_small[split] == {patient for patient in in_large[split] if patient < 40}
    folds, halves = [], []
    for data in (small, large):
        fold = assign_folds(data, 3, "rows", 0)
        half = next(draw_halves(data, 1, "rows", random_stream(0, "halves")))
        folds.append(dict(zip(not_none(data.train.group), fold, strict=True)))
        halves.append(dict(zip(not_none(data.train.group), half, strict=True)))
        assert all(len(set(fold[not_none(data.train.group) == name])) == 1 for name in folds[-1])
    for assigned_small, assigned_large in (folds, halves):
        assert assigned_small.items() <= assigned_large.items()
        assert len(set(assigned_small.values())) > 1


def test_draws_per_group_are_uniform():
    uniforms = draw_uniform_per_group(np.arange(5000).astype(str), np.random.default_rng(0))
    assert np.histogram(uniforms, bins=10, range=(0, 1))[0] == pytest.approx(np.full(10, 500), abs=80)


def test_groups_are_assigned_to_clients():
    data = table(client=None, clients=4).load()
    assert len(data.train.sizes) == 4
    clients_of_groups = zip(not_none(data.train.group), np.repeat(np.arange(4), data.train.sizes), strict=True)
    assert len(set(clients_of_groups)) == len(set(not_none(data.train.group)))
    with fails("data.partition=sorted assigns single rows", "data.client"):
        table(client=None, partition="sorted").load()
    with fails("data.clients=50: client", "none of the 60 groups", "fewer clients"):
        table(client=None, clients=50).load()


def test_a_group_of_two_clients_is_refused_unless_kept():
    frame = visits()
    frame.loc[0, "site"] = "b"  # P0 has other rows at a
    with fails("group 'P0' has rows of client a and of client b", "data.group_across=keep"):
        table(frame).load()
    data = table(frame, group_across="keep", validation=["b"]).load()
    assert 0.0 in patients_by_split(data)["validation"]
    assert "1 groups have rows of several clients: " in "\n".join(data.warnings)
    assert "P0" not in "\n".join(data.warnings)  # which records, pages and archives have
    patients_by_split(table(frame, group_across="keep").load())
    with fails("of group 'P0', is held out for validation and for the test"):
        table(frame, group_across="keep", validation=["a"], test=["b"]).load()


def test_a_column_of_splits_needs_no_column_of_clients():
    data = table(group=None, client=None, clients=2, split="part").load()
    assert data.train.sizes.tolist() == [45, 45]
    assert set(not_none(data.client_of_row("test"))) == {""}


def test_columns_mark_splits_and_folds():
    data = table(split="part", fold="wave").load()
    assert patients_by_split(data)["test"] == {n for n in range(PATIENTS) if n % 4 == 3}
    assert not_none(data.train.fold).tolist() == [f"{2020 + n % 4:g}" for n in data.train.x[:, 0]]
    assert assign_folds(data, 2, "rows", 0).tolist() == [n % 4 for n in data.train.x[:, 0]]
    frame = visits()
    frame["part"] = np.where(frame.index == 4, "Train", frame["part"])
    with fails("data.split=part: row 5", "'Train'", "train, validation or test"):
        table(frame, split="part").load()
    with fails("data.split=part", "leave data.test out"):
        table(split="part", test=0.1)
    frame["part"] = np.where(frame.index == 4, "test", visits()["part"])
    with fails("data.split=part: group 'P4'", "of 'test' and of 'train'"):
        table(frame, split="part").load()
    frame["wave"] = np.where(frame.index == 4, 2023, frame["wave"])
    with fails("data.fold=wave: group 'P4'", "'2020' and of '2023'"):
        table(frame, fold="wave", validation=0.0).load()
    with fails("data.fold=wave: row 5", "no fold"):
        table(frame.assign(wave=frame["wave"].where(frame.index != 4)), fold="wave", validation=0.0).load()


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ({"group": "patent"}, ["data.group=patent", "did you mean 'patient'"]),
        ({"group": "site"}, ["data.client and data.group both name 'site'"]),
        ({"only": None, "ignore": ["patient", "part"]}, ["data.group and data.ignore both name 'patient'"]),
        ({"group": None, "group_across": "keep"}, ["data.group_across=keep needs data.group"]),
    ],
)
def test_unknown_columns_and_columns_of_two_roles_are_refused(options, phrases):
    with fails(*phrases):
        table(**options).load()


def test_clients_of_few_groups_are_named():
    """However many rows they have; rows count where there are no groups, and held-out clients have names, too."""
    rng = np.random.default_rng(7)
    client, group = np.sort(rng.integers(12, size=120)), rng.integers(7, size=120).astype(str)
    for has_groups in (True, False):
        n = {m: len(set(group[client == m])) if has_groups else int((client == m).sum()) for m in range(12)}
        rows = Rows(np.zeros((120, 1)), np.zeros(120), client, group=group if has_groups else None)
        held_out = rows.take(client == 11)
        data = FederatedData(rows.take(client < 11), held_out, clients=tuple("abcdefghijk"), held_out_clients=("l",))
        few = {"train": ["abcdefghijk"[m] for m in range(11) if n[m] < 5], "validation": ["", "l"] if n[11] < 5 else []}
        assert data.few_rows == {name: clients for name, clients in few.items() if clients}
        assert has_groups == bool(few["train"]) == bool(few["validation"])


def test_a_row_without_a_group_is_refused():
    with fails("data.group=patient: row 3", "no value"):
        table(visits().assign(patient=lambda t: t["patient"].where(t.index != 2))).load()


@pytest.mark.parametrize("name", ["visits.tsv", "visits.parquet", "on disk", "visits.npz", "visits.h5", "folder"])
def test_every_format_holds_out_the_same_patients(name, tmp_path):
    expected = patients_by_split(table(test=0.2, fold="wave").load())
    frame = visits()
    options: dict[str, Any] = {"group": "patient", "fold": "wave", "test": 0.2}
    arrays = {"X": frame[["x", "age"]].to_numpy(), "y": frame["y"].to_numpy(), "client": frame["site"].to_numpy(str)}
    arrays |= {"patient": frame["patient"].to_numpy(str), "wave": frame["wave"].to_numpy()}
    named: dict[str, Any] = {"target": "y", "client": "site", "only": ["x", "age"]}
    if name == "visits.tsv":
        frame.to_csv(name, index=False, sep="\t")
    elif name.endswith(("parquet", "disk")):
        frame.to_parquet("visits.parquet")
        named |= {"path": "visits.parquet", "resident": "parquet" in name}
    elif name == "visits.npz":
        np.savez(name, **arrays)  # type: ignore[arg-type]
        named = {}
    elif name == "visits.h5":
        with h5py.File(name, "w") as file:
            for array, values in arrays.items():
                file.create_dataset(array, data=values.astype("S") if values.dtype.kind == "U" else values)
        named = {"resident": False}
    else:
        (tmp_path / "folder").mkdir()
        for array, values in arrays.items():
            np.save(tmp_path / "folder" / f"{array}.npy", values)
        named, name = {"resident": False}, str(tmp_path / "folder")
    loaded_table = build(Table, {"path": name, **named, **options}, "data")
    data = loaded_table.load()
    assert patients_by_split(data) == expected
    assert set(not_none(data.train.fold)) == {"2020", "2021", "2022", "2023"}
    if data.train.streamed:
        shards = [loaded_table.load_shard(host, 2) for host in range(2)]
        local = [shard.train.x[shard.train.x.row_range] for shard in shards]
        assert sorted(np.concatenate(local)[:, 0]) == sorted(np.asarray(data.train.x)[:, 0])
        assert not_none(shards[1].train.group).tolist() == not_none(data.train.group).tolist()


def test_unknown_arrays_are_refused(tmp_path):
    np.savez("rows.npz", X=np.ones((4, 1)), y=np.arange(4.0), client=np.arange(4))
    with fails("no array 'patient'"):
        Table("rows.npz", group="patient").load()
    with fails("data.fold=client: that array is the rows' client"):
        Table("rows.npz", fold="client").load()
    (tmp_path / "rows.svm").write_text("1 1:2\n2 1:3\n")
    with fails("data.group=patient: a .svm file has features and targets only"):
        Table(str(tmp_path / "rows.svm"), group="patient").load()


def test_groups_change_the_fingerprint_of_a_folder_only_where_they_are_named(tmp_path):
    for name, values in {"X": np.ones((4, 1)), "y": np.arange(4.0), "patient": np.arange(4)}.items():
        np.save(tmp_path / f"{name}.npy", values)
    grouped, plain = Table(str(tmp_path), group="patient"), Table(str(tmp_path))
    before = grouped.fingerprint(), plain.fingerprint()
    np.save(tmp_path / "patient.npy", np.zeros(4, int))
    assert grouped.fingerprint() != before[0]
    assert plain.fingerprint() == before[1]
    assert identity_fields(plain).keys() == identity_fields(Table("x.csv")).keys()
    assert not {"group", "group_across", "split", "fold"} & identity_fields(plain).keys()


@pytest.mark.slow
def test_images_of_one_patient_stay_together(tmp_path):
    listed = write_maps(tmp_path)
    frame = pd.read_csv(listed)
    frame["patient"] = [f"{site}-{k // 2}" for k, site in enumerate(frame["client"])]
    frame.to_csv(listed, index=False)
    data = Nifti(str(listed), mask=str(tmp_path / "mask.nii.gz"), validation=0.4, group="patient").load()
    assert len(not_none(data.train.group)) == 2 * len(set(not_none(data.train.group)))
    assert "12 groups stay together" in "\n".join(data.warnings)


@pytest.mark.parametrize(
    ("ignore", "suggested"),
    [(["patient", "wave", "part"], True), (["wave", "part"], False)],
)
def test_repeated_names_suggest_a_column_of_groups(ignore, suggested):
    frame = visits()
    frame["patient"] = frame["patient"] if suggested else frame["x"] % 7
    data = table(frame, group=None, only=None, ignore=ignore).load()
    suggestions = [line for line in data.warnings if "'patient' has 60 values in 180 rows" in line]
    assert any("data.group=patient" in line for line in suggestions) == suggested


def test_a_feature_that_names_patients_suggests_groups():
    frame = visits()
    frame["patient"] = 1000 + 17 * frame["x"].astype(int) % 1009
    data = table(frame, group=None, only=["age", "patient"]).load()
    assert any("'patient' has 60 values in 180 rows" in line for line in data.warnings)
    assert not any("'age' has" in line for line in data.warnings)
    frame["site"] = "a"  # whose values of age belong to no other client
    assert not any(
        "'patient' has" in line for line in table(frame, group=None, only=["age", "patient"]).load().warnings
    )


def visits_numbered_by_each_site() -> pd.DataFrame:
    """Return four visits of the patients 1 to 40 of each of four sites."""
    rng = np.random.default_rng(0)
    number = np.repeat(np.tile(np.arange(1, 41), 4), 4)
    site = np.repeat([*"ABCD"], 160)
    age = rng.integers(20, 90, 640)
    return pd.DataFrame(
        {"x": rng.normal(size=640), "age": age, "patient": number, "site": site, "y": rng.normal(size=640)}
    )


def suggestions_for(frame, **options) -> list[str]:
    warnings = table(frame, group=None, only=None, **options).load().warnings
    return [line.partition(": ")[2] for line in warnings if "data.group=" in line]


@pytest.mark.parametrize("order", ["patients", "visits", "mixed"])
def test_numbers_that_each_client_gives_by_itself_suggest_groups(order):
    frame = visits_numbered_by_each_site()
    if order == "visits":
        frame = frame.iloc[np.arange(640).reshape(-1, 4).T.ravel()]
    elif order == "mixed":
        frame = frame.sample(frac=1, random_state=0)
    expected = (
        "values of 'patient' repeat within each client, and at several clients: if rows of a client with one value "
        "belong together, as the visits of a patient do, make the names unique, such as A-17, and "
        "data.group=patient keeps the rows together where rows are held out"
    )
    assert suggestions_for(frame, ignore=["patient"]) == [expected]
    assert suggestions_for(frame, ignore=["patient", "age"]) == [expected]
    if order == "patients":
        assert suggestions_for(frame) == [expected]  # also where the number is a feature
        names = frame.assign(patient="P" + frame["patient"].astype(str))
        assert len(suggestions_for(names, ignore=["patient"])) == 1
    unique = frame.assign(patient=frame["site"] + "-" + frame["patient"].astype(str))
    assert suggestions_for(unique, ignore=["patient"]) == [
        "'patient' has 160 values in 640 rows: if rows with one value belong together, as the visits of a patient do, "
        "data.group=patient keeps them together where rows are held out"
    ]


def test_ages_and_stages_that_clients_share_suggest_no_groups():
    frame = visits_numbered_by_each_site()
    rng = np.random.default_rng(1)
    frame["patient"] = rng.integers(30, 90, 640)
    assert suggestions_for(frame, ignore=["patient"]) == []
    frame["patient"] = rng.integers(0, 9, 640)
    assert suggestions_for(frame.iloc[::8], ignore=["patient"]) == []
    frame["patient"] = np.arange(640) % 160  # a visit at each client
    assert suggestions_for(frame, ignore=["patient"]) == []


def test_numbers_of_a_table_without_clients_suggest_groups():
    frame = visits_numbered_by_each_site().query("site == 'A'")
    (suggestion,) = suggestions_for(frame, client=None, clients=1, ignore=["patient", "site"])
    assert "'patient' has 40 values in 160 rows" in suggestion


def test_text_of_many_levels_suggests_a_column_of_groups():
    frame = visits(150)
    with fails("column 'patient' has 150 levels", "data.group=patient"):
        table(frame, group=None, only=None, validation=0.0).load()
