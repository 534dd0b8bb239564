"""Haxby's scans: made-up ones, a slice of the real ones, and what users get wrong."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import SHARED, fails, not_none

from fcorun import compose
from fcorun.data.datasets.haxby import Haxby
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.studies.figures.reproduce import reproduce
from fcorun.studies.selection.folds import assign_folds, list_marked_folds, marks_whole_clients

pytestmark = pytest.mark.usefixtures("own_cache")

REAL = SHARED / "data" / "nilearn_data"

SHOWN = ["rest", "face", "house", "cat", "face", "house", "rest", "cat"]


@pytest.fixture
def offline(monkeypatch):
    """No test reaches the network: nilearn's downloads fail at once, as they do without one."""
    import requests

    def send(*args, **kwargs):
        raise requests.ConnectionError("no network in tests")

    monkeypatch.setattr(requests.Session, "send", send)


def scanned(root: Path, runs: dict[int, int]) -> Path:
    """A tree in nilearn's layout: tiny scans of subjects with so many runs each."""
    import nibabel

    rng, folder = np.random.default_rng(0), root / "haxby2001"
    folder.mkdir(parents=True)
    mask = np.zeros((4, 3, 2), dtype=np.uint8)
    mask[1:3] = 1
    nibabel.save(nibabel.Nifti1Image(mask, np.eye(4)), folder / "mask.nii.gz")
    for subject, count in runs.items():
        (folder / f"subj{subject}").mkdir()
        scan = rng.integers(0, 2000, (4, 3, 2, len(SHOWN) * count)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(scan, np.eye(4)), folder / f"subj{subject}" / "bold.nii.gz")
        lines = [f"{what} {run}" for run in range(count) for what in SHOWN]
        (folder / f"subj{subject}" / "labels.txt").write_text("labels chunks\n" + "\n".join(lines) + "\n")
    return root


@pytest.fixture
def brains(tmp_path, offline):
    """Two subjects, the second with one run fewer."""
    return scanned(tmp_path / "nilearn", {1: 3, 5: 2})


@pytest.mark.slow
def test_haxby_as_in_the_paper(tmp_path, offline):
    """All six subjects as conf/data/haxby.yaml has them: 59 training clients, the 12 runs of the last one held out."""
    root = scanned(tmp_path / "nilearn", {1: 12, 2: 12, 3: 12, 4: 12, 5: 11, 6: 12})
    data = load_data(prepare(compose(["data=haxby", f"data.root={root}"])))
    assert len(data.train.sizes) == 59
    assert len(not_none(data.validation).y) == 12 * 4
    assert not any(name.startswith("subject6") for name in data.clients)


@pytest.mark.slow
def test_the_figure_of_six_subjects(tmp_path, offline):
    """The layout of the paper's data, with random scans, about which the claims say nothing."""
    root = scanned(tmp_path / "nilearn", {1: 12, 2: 12, 3: 12, 4: 12, 5: 11, 6: 12})
    small = [f"data.root={root}", "rounds=2", "tail_rounds=1", "algo.client_lr=0.01", "algo.server_lr=1"]
    result = reproduce("fco_fig5", tmp_path / "figures", run_sweep_command, fast=True, overrides=small)
    assert len(result.rows) == 6
    assert (result.folder / "figure.png").exists()


def test_without_scans_an_error_says_which_to_get(tmp_path, offline):
    with fails("subj1-2010.01.14.tar.gz", "whose checksums are in http://data.pymvpa.org/datasets/haxby2001/MD5SUMS"):
        haxby(tmp_path).load()


def haxby(root, **options) -> Haxby:
    return Haxby(str(root), **{"subjects": [1, 5], **options})


@pytest.mark.slow
def test_haxby_clients_are_runs(brains):
    import nibabel

    data = haxby(brains).load()
    assert data.clients == ("subject1_run0", "subject1_run1", "subject1_run2")
    assert data.train.sizes.tolist() == [4, 4, 4]
    assert data.train.x.dtype == np.float32
    assert data.train.x.shape == (12, 12)
    assert not_none(data.validation).x.shape == (8, 12)
    assert data.train.y.dtype == np.int32
    assert data.train.y.tolist() == [0, 1, 0, 1] * 3
    assert data.classes == ("face", "house")
    assert data.task == "binary"
    # standardized over all volumes of the run, then the two categories are picked
    folder = brains / "haxby2001"
    inside = nibabel.Nifti1Image.from_filename(folder / "mask.nii.gz").get_fdata() > 0
    raw = nibabel.Nifti1Image.from_filename(folder / "subj1" / "bold.nii.gz").get_fdata()[inside].T[8:16]
    expected = ((raw - raw.mean(axis=0)) / raw.std(axis=0, ddof=1))[[1, 2, 4, 5]]
    np.testing.assert_allclose(data.train.x[4:8], expected, atol=1e-5)


@pytest.mark.slow
def test_haxby_runs_in_any_order(brains):
    """Runs whose volumes alternate give the same clients as runs one after the other."""
    import nibabel

    whole = haxby(brains, subjects=[1]).load()
    folder = brains / "haxby2001" / "subj1"
    image = nibabel.Nifti1Image.from_filename(folder / "bold.nii.gz")
    scan = np.asarray(image.dataobj)
    order = np.arange(24).reshape(3, 8).T.ravel()
    nibabel.save(nibabel.Nifti1Image(scan[..., order], np.eye(4)), folder / "bold.nii.gz")
    header, *lines = (folder / "labels.txt").read_text().splitlines()
    (folder / "labels.txt").write_text("\n".join([header, *(lines[k] for k in order)]) + "\n")
    mixed = haxby(brains, subjects=[1]).load()
    np.testing.assert_allclose(mixed.train.x, whole.train.x, atol=1e-6)
    np.testing.assert_array_equal(mixed.train.y, whole.train.y)


def test_haxby_validation(brains):
    assert haxby(brains, subjects=[1]).load().validation is None
    runs = haxby(brains, subjects=[1], validation_runs=[2, 0]).load()
    assert runs.clients == ("subject1_run1",)
    assert len(not_none(runs.validation).y) == 8
    both = haxby(brains, validation_runs=[2]).load()  # only subject 1 has a run 2
    assert len(both.clients) == 4
    assert len(not_none(both.validation).y) == 4
    first = haxby(brains, validation_subjects=[1]).load()
    assert first.clients == ("subject5_run0", "subject5_run1")
    assert len(not_none(first.validation).y) == 12
    assert haxby(brains, validation_subjects=[]).load().validation is None
    assert haxby(brains, validation_subjects=[5], validation_runs=[0]).load().clients == (
        "subject1_run1",
        "subject1_run2",
    )


def test_haxby_test_rows(brains):
    data = haxby(brains, test_subjects=[5], validation_runs=[0]).load()
    assert data.clients == ("subject1_run1", "subject1_run2")
    assert not_none(data.client_of_row("validation")).tolist() == ["subject1_run0"] * 4
    assert (
        not_none(data.client_of_row("test")).tolist() == ["subject5_run0"] * 4 + ["subject5_run1"] * 4
    )  # its run 0, too
    whole = haxby(brains, validation_subjects=[]).load()
    np.testing.assert_array_equal(not_none(data.test).x, whole.train.x[12:])
    np.testing.assert_array_equal(not_none(data.test).y, whole.train.y[12:])
    runs = haxby(brains, subjects=[1], test_runs=[2]).load()
    assert not_none(runs.client_of_row("test")).tolist() == ["subject1_run2"] * 4
    assert runs.validation is None
    last = haxby(brains, test_subjects=[5]).load()  # of the one that is left nothing is held out unasked
    assert (last.validation, len(last.train.sizes)) == (None, 3)
    assert haxby(brains).fingerprint() != haxby(brains, test_runs=[0]).fingerprint()
    with fails("data.test_subjects: subject 6 is not one of data.subjects=[1]; add it"):
        Haxby(subjects=[1], test_subjects=[6])
    with fails("data.validation_runs and data.test_runs both name 2: name it in one of them"):
        Haxby(subjects=[1], test_runs=[2], validation_runs=[2])
    with fails("data.test_runs: there is no run 3; the runs are [0, 1, 2]"):
        haxby(brains, test_runs=[3]).load()
    with fails("and the keys of the test hold out every run"):
        haxby(brains, test_subjects=[1], validation_subjects=[5]).load()


def test_haxby_other_categories(brains):
    data = haxby(brains, categories=["house", "cat"]).load()
    assert data.classes == ("cat", "house")
    assert data.train.y[:4].tolist() == [1, 0, 1, 0]


def test_haxby_cache(brains, monkeypatch):
    first = haxby(brains).load()

    def masked(*args):
        raise AssertionError("masked again")

    with monkeypatch.context() as patch:
        patch.setattr("fcorun.data.datasets.haxby.extract_voxels", masked)
        np.testing.assert_array_equal(haxby(brains).load().train.x, first.train.x)
        os.utime(brains / "haxby2001" / "subj5" / "bold.nii.gz", ns=(1, 1))
        with pytest.raises(AssertionError, match="masked again"):
            haxby(brains).load()
    for kept in Path(os.environ["FCORUN_CACHE"], "haxby").iterdir():
        kept.write_bytes(kept.read_bytes()[:50])
    np.testing.assert_array_equal(haxby(brains).load().train.x, first.train.x)  # a damaged cache is made anew


def test_haxby_fingerprint_is_of_the_content(brains, tmp_path):
    before = haxby(brains).fingerprint()
    brains.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert haxby(moved).fingerprint() == before != haxby(moved, categories=["cat", "face"]).fingerprint()
    labels = moved / "haxby2001" / "subj1" / "labels.txt"
    labels.write_text(labels.read_text().replace("cat", "dog"))
    assert haxby(moved).fingerprint() != before


@pytest.mark.parametrize("name", ["subj5/bold.nii.gz", "mask.nii.gz"])
def test_haxby_damaged_scan(brains, name):
    file = brains / "haxby2001" / name
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        file.write_bytes(content)
        with fails("data.root", name, "download it anew"):
            haxby(brains).load()


def test_haxby_labels_that_do_not_fit(brains):
    file = brains / "haxby2001" / "subj5" / "labels.txt"
    text = file.read_text()
    file.write_text(text + "face 1\n")
    with fails("data.root", "subj5", "17", "16"):
        haxby(brains).load()
    for bad in ("", "labels\nface\n", text.replace("chunks", "run"), text + "face\n", text + "face one\n"):
        file.write_text(bad)
        with fails("data.root", "labels.txt"):
            haxby(brains).load()


def test_haxby_labels_that_cannot_be_read(brains):
    file = brains / "haxby2001" / "subj5" / "labels.txt"
    file.unlink()
    file.mkdir()
    with fails("data.root", "labels.txt cannot be read", "delete it and download it anew"):
        haxby(brains).load()


def test_haxby_not_there(tmp_path, offline):
    with fails(
        "data.root=",
        "subjects 1, 6 of the Haxby data are not in",
        "subj1-2010.01.14.tar.gz",
        "mask.nii.gz",
        "haxby2001",
        "ConnectionError",
    ):
        Haxby(str(tmp_path / "new"), subjects=[6, 1]).load()


def test_haxby_half_there(brains):
    (brains / "haxby2001" / "subj5" / "bold.nii.gz").unlink()
    with fails("data.root=", "subject 5", "subj5-2010.01.14.tar.gz"):
        haxby(brains).fetch()
    with fails("data.root=", "subject 5", "not dry"):
        haxby(brains).fingerprint()  # which downloads nothing


def test_haxby_downloads_through_nilearn(brains, monkeypatch):
    import nilearn.datasets

    asked, aside = [], brains / "aside"
    (brains / "haxby2001" / "subj5").rename(aside)

    def fetch_haxby(data_dir, subjects, **options):
        asked.append(subjects)
        aside.rename(Path(data_dir) / "haxby2001" / "subj5")

    monkeypatch.setattr(nilearn.datasets, "fetch_haxby", fetch_haxby)
    assert len(not_none(haxby(brains).load().validation)) == 8
    assert asked == [[5]]


def test_haxby_mistakes(brains):
    with fails("data.subjects", "subject 7", "valid: 1, 2"):
        Haxby(subjects=[1, 7])
    with fails("data.subjects", "empty"):
        Haxby(subjects=[])
    with fails("data.validation_subjects", "subject 6", "data.subjects="):
        Haxby(subjects=[1], validation_subjects=[6])
    for wrong in (["face"], ["face", "face"], ["face", "house", "cat"]):
        with fails("data.categories=", "two different"):
            Haxby(categories=wrong)
    with fails("data.categories", "'hous'", "did you mean 'house'"):
        haxby(brains, categories=["face", "hous"]).load()
    with fails("data.validation_runs", "run 3", "0, 1, 2"):
        haxby(brains, validation_runs=[3]).load()
    with fails("data.validation_subjects", "every run"):
        haxby(brains, validation_subjects=[1, 5]).load()


def test_haxby_real_slice(offline):
    if not REAL.is_dir():
        pytest.skip(f"NOT TESTED on real scans, {REAL} is missing: only on synthetic ones")
    data = Haxby(str(REAL), subjects=[1], validation_runs=[10, 11]).load()
    assert data.train.x.shape == (180, 530)
    assert not_none(data.validation).x.shape == (36, 530)
    assert data.train.sizes.tolist() == [18] * 10
    assert data.clients[-1] == "subject1_run9"
    assert np.bincount(data.train.y).tolist() == [90, 90]
    # a linear rule learnt on ten runs tells faces from houses in the other two
    direction = data.train.x[data.train.y == 1].mean(axis=0) - data.train.x[data.train.y == 0].mean(axis=0)
    assert np.mean((not_none(data.validation).x @ direction > 0) == (not_none(data.validation).y == 1)) > 0.75
    with fails("data.root=", "subject 2", "cannot be downloaded"):
        Haxby(str(REAL), subjects=[1, 2]).load()


def test_folds_of_subjects(brains):
    """The clients of a subject, its runs, are in one fold: fcorun select holds out whole subjects."""
    data = haxby(brains, fold="subject", validation_runs=[0]).load()
    fold = assign_folds(data, 2, "rows", seed=0)
    subject = [name.partition("_")[0] for name in np.repeat(data.client_names, data.train.sizes)]
    assert [f"subject{(1, 5)[k]}" for k in fold] == subject
    assert list_marked_folds(data) == ["subject1", "subject5"]
    assert haxby(brains).fingerprint() == haxby(brains, fold=None).fingerprint()
    assert haxby(brains).load().train.fold is None
    assert marks_whole_clients(data)
    split_runs = replace(data.train, fold=np.resize(["a", "b"], len(data.train)))
    assert not marks_whole_clients(replace(data, train=split_runs))
    data = haxby(brains, group="subject", validation_runs=[0]).load()
    assert not_none(data.train.group).tolist() == subject
    assert haxby(brains).dependence_warning
    assert not haxby(brains, group="subject").dependence_warning
