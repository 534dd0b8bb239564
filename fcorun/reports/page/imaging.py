"""The page of images of brains: the test against chance, the map, then the choice; and where items of COBIDAS are."""

from collections.abc import Sequence

from fcorun.base.records.record import Record
from fcorun.reports.page import elements

_SOURCE = "COBIDAS: Nichols et al., Nature Neuroscience 2017;20:299-303."
_PERMUTATION, _MAP = "permutation", "coefficients"  # beginnings of the names of sections
# what an item asks for, and the beginning of the names of the sections with it ("" for none)
_ITEMS = (
    ("subjects and scans: numbers, characteristics, exclusions", ""),
    ("design: conditions, blocks or events, runs", ""),
    ("acquisition: scanner, sequence, resolution", ""),
    ("preprocessing before this analysis, and its software", ""),
    ("images: mask, standardization", "configuration"),
    ("target and classes", "configuration"),
    ("training and held-out scans, and what stays together", "configuration"),
    ("model and penalty", "configuration"),
    ("choice of the strength, and its folds", "selection"),
    ("measures of prediction, and on which scans", "scores-section"),
    ("test against chance: permutations, and what was exchanged", _PERMUTATION),
    ("map of the model", _MAP),
    ("stability of the map", "stability"),
    ("versions of the software", "versions"),
    ("sharing of data, code and maps", ""),
)


def are_of_images(records: Sequence[Record]) -> bool:
    """Return whether records have maps of voxels."""
    return any((record.folder / "mask.nii.gz").exists() for record in records)


def arrange_sections(page: elements.Page) -> None:
    """Put the tests against chance first, then the map of a single model, and add the list of items last."""
    page.sections.sort(key=_rank)  # stable
    items = []
    for item, beginning in _ITEMS:
        found = [section for section in page.sections if beginning and section.name.startswith(beginning)]
        links = [elements.link_to_section(section.name, section.heading, "") for section in found]
        items.append(([item], links[0] if links else ""))
    table = elements.items_table(["item"], items, _SOURCE)
    page.add_section("cobidas", "Where the items of COBIDAS are", table, collapsed=True)


def _rank(section: elements.PageSection) -> int:
    """Return the place of a section among the first ones."""
    if section.name.startswith(_PERMUTATION):
        return 0
    is_map = section.name == _MAP and not section.collapsed
    return 1 if is_map else 2
