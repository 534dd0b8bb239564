"""The page of images: the test against chance, the map, then the rest, and a list of places."""

from fake_records import fake_config, fake_record

from fcorun import load_records
from fcorun.reports.page import elements, imaging


def test_the_test_against_chance_and_the_map_come_first():
    page = elements.Page()
    for name in ("selection-0", "permutation-1", "best", "coefficients", "versions"):
        page.add_section(name, name.title(), "<p>x</p>")
    imaging.arrange_sections(page)
    names = [section.name for section in page.sections]
    assert names == ["permutation-1", "coefficients", "selection-0", "best", "versions", "cobidas"]
    items = page.sections[-1].content
    assert 'href="#permutation-1"' in items
    assert 'href="#selection-0"' in items
    assert items.count("not on this page") == 11  # without stability, scores and configuration


def test_only_records_with_voxels_are_of_images():
    fake_record("s/a", fake_config())
    assert not imaging.are_of_images(load_records("s"))
    (load_records("s")[0].folder / "mask.nii.gz").write_bytes(b"")
    assert imaging.are_of_images(load_records("s"))
