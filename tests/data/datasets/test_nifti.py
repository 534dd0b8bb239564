"""Images of one's own: what the rows are, by a plain loop and by nilearn, and what users get wrong."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brain_images import AFFINE, SHAPE, head_mask, save, write_maps, write_series
from helpers import fails, not_none

from fcorun.data.datasets.haxby import Haxby
from fcorun.data.datasets.images import VoxelGrid, standardize_within_runs
from fcorun.data.datasets.nifti import Nifti

pytestmark = pytest.mark.usefixtures("own_cache")


def values(path: Path) -> np.ndarray:
    import nibabel

    return nibabel.Nifti1Image.from_filename(path).get_fdata()


def test_maps_are_rows(tmp_path):
    table = write_maps(tmp_path)
    data = Nifti(str(table), mask=str(tmp_path / "mask.nii.gz"), validation=0).load()
    assert data.clients == ("site0", "site1", "site2")
    assert data.train.sizes.tolist() == [8, 8, 8]
    assert data.classes == ("a", "b")
    assert data.train.y.tolist() == [0, 1] * 12
    grid = not_none(data.features.voxel_grid)
    np.testing.assert_array_equal(grid.mask, head_mask())
    np.testing.assert_array_equal(grid.affine, AFFINE)
    expected = [values(tmp_path / f"site{m}/map{n}.nii.gz")[head_mask()] for m in range(3) for n in range(8)]
    np.testing.assert_allclose(data.train.x, expected, rtol=1e-6)
    assert data.train.x.dtype == np.float32
    np.testing.assert_allclose(grid.to_image(data.train.x[3])[head_mask()], data.train.x[3])


def test_equal_names_sizes_and_times_are_other_images(tmp_path):
    """As of two studies that one archive brought: none is taken for the other from the cache."""
    found = []
    for study in (1.0, 2.0):
        folder = tmp_path / f"study{study:g}"
        folder.mkdir()
        for name in ("a", "b"):
            save(folder / f"{name}.nii", np.full(SHAPE, study))
            os.utime(folder / f"{name}.nii", (1e9, 1e9))
        save(folder / "mask.nii", np.ones(SHAPE))
        os.utime(folder / "mask.nii", (1e9, 1e9))
        (folder / "t.csv").write_text("image,label,client\na.nii,1,x\nb.nii,2,x\n")
        options = {"mask": str(folder / "mask.nii"), "task": "regression", "validation": 0}
        found.append(Nifti(str(folder / "t.csv"), **options).load().train.x.mean())
    assert found == [1.0, 2.0]


@pytest.mark.slow
def test_the_options_of_tables_hold(tmp_path):
    table, mask = write_maps(tmp_path), str(tmp_path / "mask.nii.gz")
    held = Nifti(str(table), mask=mask, validation=["site1"]).load()
    assert held.clients == ("site0", "site2")
    assert len(not_none(held.validation).y) == 8
    ages = Nifti(str(table), mask=mask, target="age", task="regression", validation=0).load()
    assert ages.train.y[:3].tolist() == [20, 21, 22]
    labels = [Nifti(str(table), mask=mask, validation=0, positive=each).load() for each in held.classes]
    assert [each.classes[1] for each in labels] == [*held.classes]
    np.testing.assert_array_equal(labels[0].train.y, 1 - labels[1].train.y)
    pooled = Nifti(str(table), mask=mask, standardize="pooled", validation=0).load()
    assert not_none(pooled.features.standardized)["by"] == "pooled"
    np.testing.assert_allclose(pooled.train.x.mean(axis=0), 0, atol=1e-5)


def test_runs_are_standardized_as_nilearn_does(tmp_path):
    from nilearn.maskers import NiftiMasker

    table, mask = write_series(tmp_path), str(tmp_path / "mask.nii.gz")
    data = Nifti(str(table), mask=mask, run="run", categories=["a", "b"], validation=0).load()
    assert data.train.sizes.tolist() == [8, 8]
    assert not_none(data.train.row).tolist() == np.flatnonzero(np.arange(24) % 3 < 2).tolist()  # rows of the table
    assert data.features.standardized == {"by": "per_run"}
    runs = np.repeat([0, 1], 6)
    masker = NiftiMasker(mask_img=mask, runs=runs, standardize="zscore_sample", reports=False)
    expected = masker.fit_transform(str(tmp_path / "sub1.nii"))[np.arange(12) % 3 < 2]
    np.testing.assert_allclose(data.train.x[8:], expected, atol=1e-5)
    # runs whose rows alternate are the same runs, and so are 0 and 0.0
    head_, *lines = table.read_text().splitlines()
    lines = [line + f",{n % 12}" for n, line in enumerate(lines)]
    mixed = tmp_path / "mixed.csv"
    first = [line.replace(",0,", ",0.0,", 1) for line in lines[::2]]
    mixed.write_text("\n".join([head_ + ",volume", *first, *lines[1::2]]) + "\n")
    again = Nifti(str(mixed), mask=mask, run="run", volume="volume", categories=["a", "b"], validation=0).load()
    np.testing.assert_allclose(np.sort(again.train.x, axis=0), np.sort(data.train.x, axis=0), atol=1e-4)


def test_runs_of_different_clients_are_apart():
    """Client 1 with run 12, and client 11 with run 2."""
    x = np.array([[1.0], [3.0], [10.0], [30.0]], np.float32)
    scaled = standardize_within_runs(x, np.array(["1", "1", "11", "11"]), np.array(["12", "12", "2", "2"]), "data.run=")
    np.testing.assert_allclose(scaled[:, 0], np.array([-1, 1, -1, 1]) / np.sqrt(2), rtol=1e-5)


def test_haxby_by_its_table(tmp_path):
    """The scans of Haxby as images of one's own: the same numbers."""
    root = scanned_of_test_haxby(tmp_path)
    own = Haxby(str(root), subjects=[1]).load()
    rows = (root / "haxby2001/subj1/labels.txt").read_text().split("\n")[1:-1]
    table = tmp_path / "own.csv"
    lines = [f"nilearn/haxby2001/subj1/bold.nii.gz,{row.split()[0]},run{row.split()[1]}" for row in rows]
    table.write_text("\n".join(["image,label,client", *lines]))
    data = Nifti(str(table), run="client", categories=["face", "house"], validation=0,
                 mask=str(root / "haxby2001/mask.nii.gz")).load()  # fmt: skip
    np.testing.assert_array_equal(data.train.x, own.train.x)
    np.testing.assert_array_equal(data.train.y, own.train.y)
    np.testing.assert_array_equal(not_none(data.features.voxel_grid).mask, not_none(own.features.voxel_grid).mask)


def scanned_of_test_haxby(folder):
    rng, root = np.random.default_rng(0), folder / "nilearn"
    mask = np.zeros((4, 3, 2))
    mask[1:3] = 1
    save(root / "haxby2001/mask.nii.gz", mask, np.eye(4))
    save(root / "haxby2001/subj1/bold.nii.gz", rng.integers(0, 2000, (4, 3, 2, 16)), np.eye(4))
    lines = [f"{what} {run}" for run in range(2) for what in ["rest", "face", "house", "cat"] * 2]
    (root / "haxby2001/subj1/labels.txt").write_text("labels chunks\n" + "\n".join(lines) + "\n")
    return root


def test_a_mask_is_made_by_nilearn(tmp_path):
    from nilearn.masking import compute_multi_background_mask

    shape = (24, 22, 20)
    rng, lines = np.random.default_rng(2), ["image,label,client"]
    inside = np.linalg.norm(np.moveaxis(np.indices(shape), 0, -1) - [12, 11, 10], axis=-1) < 8
    for n in range(4):
        save(tmp_path / f"{n}.nii", inside * (100 + rng.standard_normal(shape)))
        lines.append(f"{n}.nii,{n % 2},c{n // 2}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    grid = not_none(Nifti(str(tmp_path / "t.csv"), validation=0).load().features.voxel_grid)
    made = compute_multi_background_mask([str(tmp_path / f"{n}.nii") for n in range(4)])
    np.testing.assert_array_equal(grid.mask, made.get_fdata() > 0)
    assert 0.7 * inside.sum() < grid.n_voxels < 1.3 * inside.sum()


def test_the_cache_tells_a_mask_from_a_last_image(tmp_path):
    inside = np.zeros((24, 22, 20))
    inside[6:18, 6:16, 6:14] = 100
    for name in ("a", "b", "m"):
        save(tmp_path / f"{name}.nii", inside)
    lines = ["image,label,client", "a.nii,1,x", "b.nii,2,x", "m.nii,3,x"]
    n_rows = []
    for rows, mask in ((lines[:3], str(tmp_path / "m.nii")), (lines, None)):
        (tmp_path / "t.csv").write_text("\n".join(rows))
        data = Nifti(str(tmp_path / "t.csv"), mask=mask, task="regression", validation=0).load()
        n_rows.append(len(data.train.y))
    assert n_rows == [2, 3]


def test_neighbours_share_a_face():
    mask = np.random.default_rng(0).random((4, 3, 5)) < 0.6
    grid = VoxelGrid(mask, np.eye(4))
    places = np.argwhere(mask)
    near = np.abs(places[:, None] - places[None]).sum(-1) == 1
    found = grid.neighbours()
    for i, row in enumerate(found):
        assert sorted(row[row < grid.n_voxels]) == np.flatnonzero(near[i]).tolist()
    assert grid.names[5] == "voxel " + " ".join(map(str, places[5]))


def test_the_fingerprint_is_of_the_content(tmp_path, monkeypatch):
    table = write_maps(tmp_path / "one", clients=2, each=4)

    def of(folder, **more):
        return Nifti(str(folder / "maps.csv"), mask=str(folder / "mask.nii.gz"), **more).fingerprint()

    def unread(*args, **more):
        raise AssertionError("an image was read")

    monkeypatch.setattr("nibabel.load", unread)
    before = of(table.parent)
    (tmp_path / "one").rename(tmp_path / "two")
    assert of(tmp_path / "two") == before
    assert of(tmp_path / "two", seed=1) != before
    save(tmp_path / "two/site1/map3.nii.gz", np.ones(SHAPE))
    assert of(tmp_path / "two") != before
    assert not list((tmp_path / "cache").glob("nifti/*"))


@pytest.mark.slow
def test_another_grid_is_refused(tmp_path):
    table, mask = write_maps(tmp_path), str(tmp_path / "mask.nii.gz")
    file = tmp_path / "site1/map2.nii.gz"
    save(file, np.random.default_rng(0).random((8, 6, 5)))
    with fails("map2.nii.gz", "8 x 6 x 5", "the mask 7 x 6 x 5", "resample it to that grid"):
        Nifti(str(table), mask=mask).load()
    save(file, np.random.default_rng(0).random(SHAPE), AFFINE + np.eye(4)[:, [3, 0, 1, 2]])
    with fails("map2.nii.gz", "another affine than the mask"):
        Nifti(str(table), mask=mask).load()
    with fails("map2.nii.gz", "another affine than 'map0.nii.gz'"):
        Nifti(str(table)).load()


def test_missing_images_are_named_together(tmp_path):
    table = write_maps(tmp_path)
    for n in (1, 4):
        (tmp_path / f"site2/map{n}.nii.gz").unlink()
    for way in (Nifti(str(table)).load, Nifti(str(table)).fingerprint):
        with fails("2 images are not there: site2/map1.nii.gz, site2/map4.nii.gz", "whole paths"):
            way()


def test_what_is_not_finite_is_said(tmp_path):
    table = write_maps(tmp_path)
    image = values(tmp_path / "site0/map0.nii.gz")
    image[3, 2, 2] = np.nan
    save(tmp_path / "site0/map0.nii.gz", image)
    mask = str(tmp_path / "mask.nii.gz")
    data = Nifti(str(table), mask=mask).load()
    expected = "voxels of images are not finite: 'site0/map0.nii.gz' (1): taken as 0"
    assert any(expected in remark for remark in data.warnings)
    assert np.isfinite(data.train.x).all()
    image[3, 2, 2] = 1e30
    save(tmp_path / "site0/map0.nii.gz", image)
    remarks = Nifti(str(table), mask=mask).load().warnings
    assert any("'voxel (3, 2, 2)' has 1e+30 in row 1: no training copes" in remark for remark in remarks)


def test_a_mask_with_voxels_that_are_not_finite_is_refused(tmp_path):
    table = write_maps(tmp_path)
    mask = head_mask().astype(np.float32)
    mask[0, 0, 0] = np.nan
    save(tmp_path / "mask.nii.gz", mask)
    with fails(f"data.mask={tmp_path / 'mask.nii.gz'} has 1 voxels that are not finite: make them 0"):
        Nifti(str(table), mask=str(tmp_path / "mask.nii.gz")).load()


def test_warnings_are_about_rows_and_not_about_voxels(tmp_path):
    """Voxels of 25 rows that count the rows would be identifiers in a table, and constant voxels would be noted."""
    lines = ["image,label,client"]
    values = np.ones((*SHAPE, 25)) * np.arange(25)
    values[3, 2, 2] = 1
    save(tmp_path / "all.nii", values)
    save(tmp_path / "mask.nii", head_mask())
    lines += [f"all.nii,{'ab'[n % 2]},{'xyz'[n // 5 % 3]}" for n in range(25)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    options: dict[str, Any] = {"mask": str(tmp_path / "mask.nii"), "standardize": "per_client", "validation": ["z"]}
    data = Nifti(str(tmp_path / "t.csv"), **options).load()
    (warning,) = data.warnings
    assert "speak for 'b'" in warning


def test_no_category_is_refused():
    with fails("data.categories=[] keeps no image", "leave data.categories out"):
        Nifti("t.csv", categories=[])


@pytest.mark.slow
def test_mistakes(tmp_path):
    table, mask = write_maps(tmp_path), str(tmp_path / "mask.nii.gz")

    def bad(text, *words, **options):
        (tmp_path / "bad.csv").write_text(text)
        with fails(*words):
            Nifti(str(tmp_path / "bad.csv"), **{"mask": mask, **options}).load()

    first = "image,label,client\nsite0/map0.nii.gz,a,s\n"
    bad("image,label,client\n", "lists no image")
    bad(first + "site0/map1.nii.gz,,s\n", "data.target=label", "row 2", "no value")
    bad(first + "site0/map0.nii.gz,b,s\n", "'map0.nii.gz' has 1 volumes and 2 rows", "data.volume")
    bad(first, "data.mask=no.nii", "no such file", mask="no.nii")
    bad(first, "data.volume=v", "no such column", volume="v")
    bad("image,label,client,v\nsite0/map0.nii.gz,a,s,1\n", "row 1", "has 1", "volumes 0 to 0", volume="v")
    bad(first + "site0/map1.nii.gz,b,s\n", "'c'", "data.categories", categories=["a", "c"])
    bad(first + "site0/map1.nii.gz,b,t\n", "run s of client s has one image only", run="client")
    (tmp_path / "text.nii").write_text("no image")
    bad(first + "text.nii,b,s\n", "text.nii", "cannot be read as an image")
    save(tmp_path / "empty.nii", np.zeros(SHAPE))
    bad(first, "data.mask=", "0 everywhere", mask=str(tmp_path / "empty.nii"))
    with fails("ends in .csv or .tsv"):
        Nifti(str(tmp_path / "mask.nii.gz")).load()
    whole = (tmp_path / "site0/map1.nii.gz").read_bytes()
    (tmp_path / "site0/map1.nii.gz").write_bytes(whole[: len(whole) // 2])
    with fails("map1.nii.gz", "cannot be read as an image"):
        Nifti(str(table), mask=mask).load()
