"""The studies of the page: figures with their claims, selections of a strength, stability selections, permutations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.records.archive_sums import check_sums
from fcorun.base.records.contents import FIGURE, PERMUTATION, SELECTION, STABILITY
from fcorun.base.records.record import PERMUTATION_FILE, SELECTION_FILE, STABILITY_FILE
from fcorun.base.records.tables import CLAIMS, FIGURE_TABLE, NESTED, SELECTION_CURVE, STABILITY_FEATURES
from fcorun.base.system.files import find_paths
from fcorun.reports.page import elements
from fcorun.reports.page.elements import csv_table, parse_float, read_table
from fcorun.reports.page.models import curve_pictures

CLAIMS_CSV = "claims.csv"  # in the folder of a figure
STUDY_FILES = (CLAIMS_CSV, SELECTION_FILE, STABILITY_FILE, PERMUTATION_FILE)
_MAX_LINES = 40  # coefficients or features in a chart
_CLAIM_COLUMNS = ("holds", "algo", "says", "measured", "wanted", "test", "note")
_THRESHOLDS = "The thresholds of claims are fcorun's own choice, unless the text above says that the paper prints them."


def find_studies(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of studies in and under ``folders``, without a folder that only collects figures."""
    studies = {path.parent for folder in folders for name in STUDY_FILES for path in find_paths(folder, name)}
    return sorted(folder for folder in studies if is_figure(folder) or not (folder / CLAIMS_CSV).exists())


def is_figure(folder: Path) -> bool:
    """Return True if a folder holds a figure."""
    return (folder / CLAIMS_CSV).exists() and (folder / FIGURE.name).exists()


def check_study(folder: Path) -> None:
    """Raise UserError, which names the file, for a damaged file of a study."""
    for file in (FIGURE, SELECTION, STABILITY, PERMUTATION):
        file.check_file(folder)
    check_sums(folder)


def page_heading(folders: Sequence[Path]) -> tuple[str, str]:
    """Return the line above the title of a page of these folders, and the title of a single figure, else ""."""
    name = ", ".join(folder.resolve().name for folder in folders)
    title = ""
    if len(folders) == 1 and is_figure(folders[0]):
        title = str(FIGURE.read(folders[0]).get("title") or "")
    return (f"Figure {name}" if title else name), title


def add_study_sections(page: elements.Page, folder: Path, *, single_figure: bool) -> list[str]:
    """Add the sections of the studies in a folder, and return sentences about them.

    With ``single_figure`` the page is about one figure, whose title is the title of the page.
    """
    name = folder.resolve().name
    return [
        *_add_figure(page, folder, name, single_figure),
        *_add_selection(page, folder, name),
        *_add_stability(page, folder, name),
        *_add_permutations(page, folder, name),
    ]


def count_claims(folder: Path) -> str:
    """Return how many claims of a figure hold."""
    holds = [row.get("holds", "") for row in read_table(CLAIMS, folder)]
    return f"{holds.count('yes')} of {len(holds)} claims hold" if holds else "Nothing is claimed"


def _add_figure(page: elements.Page, folder: Path, name: str, single_figure: bool) -> list[str]:
    """Add the section of a figure with its claims, if the folder has one, and return sentences about it."""
    if not (folder / CLAIMS_CSV).exists():
        return []
    claims = read_table(CLAIMS, folder)
    about = FIGURE.read(folder)
    count = count_claims(folder)
    if claims and about.get("edges"):
        count += f"; best at an edge of the grid: {', '.join(map(str, about['edges']))}"
    title = f"{name}: {about['title']}" if about.get("title") else name
    caption = str(about.get("caption") or f"The figure {title}.")
    blocks = [] if single_figure else [elements.paragraph(f"{count}.")]
    blocks += [elements.claims_list(claims), elements.embed_picture(folder / "figure.png", caption)]
    columns = [key for key in _CLAIM_COLUMNS if any(row.get(key) for row in claims)]
    caption = "How each claim was measured. " + (_THRESHOLDS if about.get("ours") else "")
    blocks.append(
        elements.html_table(columns, [[row.get(key, "") for key in columns] for row in claims], caption=caption)
    )
    summary = "All averages of the best points, with their bands (table.csv)"
    blocks.append(elements.collapsible(summary, csv_table(read_table(FIGURE_TABLE, folder))))
    page.add_section(f"figure-{len(page.sections)}", count if single_figure else f"Figure {title}", *blocks)
    changed = about.get("changed")
    return [
        str(about.get("about") or ""),
        f"The figure differs from its file: {changed}." if changed else "",
    ]


def _add_selection(page: elements.Page, folder: Path, name: str) -> list[str]:
    """Add the section of a selection of a strength, if the folder has one, and return sentences about it."""
    about = SELECTION.read(folder)
    if "metric" not in about:
        return _describe_unfinished(about)
    page.add_section(
        f"selection-{len(page.sections)}",
        f"Selection {name}",
        *selection_blocks(folder),
        *curve_pictures(folder, "Out of fold. "),
    )
    return [describe_selection(about, name)]


def describe_selection(about: dict[str, Any], name: str) -> str:
    """Return a sentence on the folds of a selection, the chosen number and the rule, given its selection.json."""
    param_name, metric = str(about.get("param_name")), str(about.get("metric"))
    text = f"{about.get('label', name)}: {param_name} by {metric} over {describe_folds(about)}"
    chosen = f"chosen {parse_float(about.get('chosen')):.4g}{describe_second(about)} by the rule {about.get('rule')}"
    return f"{text}, {chosen}{_describe_status(str(about.get('status')))}"


def describe_folds(about: Mapping[str, Any]) -> str:
    """Return "5 folds of rows", or of whole groups, or of clients, given a selection.json."""
    by = str(about.get("by"))
    return f"{about.get('folds')} folds of {'whole groups' if by == 'rows' and about.get('group') else by}"


def describe_second(about: dict[str, Any]) -> str:
    """Return the second number that a selection chose, " with reg.l1_ratio=0.5", given its selection.json; or ""."""
    second = about.get("second")
    if not isinstance(second, dict):
        return ""
    return f" with {second.get('key')}={parse_float(second.get('chosen')):.4g}"


def selection_blocks(folder: Path) -> list[str]:
    """Return the picture of a selection, the score of its nested folds, its warnings, and its scores as a table."""
    about = SELECTION.read(folder)
    weighed = ""
    if about.get("fold_weights") == "rows":
        weighed = f" weighed by their {about.get('fold_measure', 'size')}"
    spread = "its standard error"
    if about.get("one_standard_error_of") == "the paired differences":
        spread = "the standard error of the paired differences to the best"
    caption = (
        f"The mean of {about.get('metric')} over {about.get('folds')} folds{weighed}, with {spread}. Folds share "
        "training rows, so the error is a rule of thumb. Beside it the coefficients, of all training rows, against the "
        f"{about.get('param_name')}. Lines mark what the rules choose, the bold one what was chosen."
    )
    nested_blocks = []
    nested = about.get("nested")
    if isinstance(nested, dict):
        mean, error = parse_float(nested.get("mean")), parse_float(nested.get("standard_error"))
        sentence = (
            f"Nested cross-validation: {about.get('metric')} {mean:.4g} ± {error:.2g} over {nested.get('folds')} outer "
            "folds. Each outer fold is judged by the value that inner folds of the other rows chose, so that the score "
            "is that of the whole procedure."
        )
        summary = "Outer folds: the value chosen without each, and the scores on its rows (nested.csv)"
        table = elements.collapsible(summary, csv_table(read_table(NESTED, folder)))
        nested_blocks = [elements.paragraph(sentence), table]
    return [
        elements.embed_picture(folder / "selection.png", caption),
        *nested_blocks,
        elements.bullet_list([str(line) for line in about.get("warnings", ())]),
        elements.collapsible(
            "The held-out scores as a table (curve.csv)", csv_table(read_table(SELECTION_CURVE, folder))
        ),
    ]


def _add_stability(page: elements.Page, folder: Path, name: str) -> list[str]:
    """Add the section of a stability selection, if the folder has one, and return sentences about it."""
    about = STABILITY.read(folder)
    if "threshold" not in about:
        return _describe_unfinished(about)
    param_name = str(about.get("param_name"))
    features = read_table(STABILITY_FEATURES, folder)
    threshold = parse_float(about.get("threshold"))
    caption = (
        f"The share of the halves that choose each feature, against the {param_name}, with the threshold {threshold:g}."
    )
    pictures = [
        elements.embed_picture(folder / "stability.png", caption),
        elements.embed_picture(folder / "brain.png", f"{name}: how often each voxel is chosen, and the stable voxels."),
    ]
    shown = []
    for row in features[: 5 * _MAX_LINES]:
        shown.append({key: value for key, value in row.items() if not key.startswith(f"{param_name}=")})
    caption = ""
    if len(shown) < len(features):
        caption = f"The first {len(shown)} of {len(features)} features; stability.csv has all."
    page.add_section(
        f"stability-{len(page.sections)}",
        f"Stability {name}",
        elements.bullet_list([*map(str, about.get("bound_statement", ())), *map(str, about.get("warnings", ()))]),
        *pictures,
        csv_table(shown, f"features{len(page.sections)}", caption),
    )
    n_stable = len(about.get("stable", ()))
    text = (
        f"{about.get('label', name)}: {n_stable} of {about.get('features')} {about.get('units', 'features')} are stable"
    )
    text += f", chosen on at least {threshold:g} of the halves{about.get('judged', '')}"
    return [text + _describe_status(str(about.get("status")))]


def _add_permutations(page: elements.Page, folder: Path, name: str) -> list[str]:
    """Add the section of a permutation test, if the folder has one, and return sentences about it."""
    about = PERMUTATION.read(folder)
    if "statement" not in about:
        return _describe_unfinished(about)
    statement = list(map(str, about["statement"]))
    warnings = list(map(str, about.get("warnings", ())))
    caption = f"Each score of {about.get('n')} permutations of the targets, and of the targets as they are (the line)."
    page.add_section(
        f"permutation-{len(page.sections)}",
        f"Permutation test {name}",
        elements.bullet_list([*statement, *warnings]),
        elements.embed_picture(folder / "permutation.png", caption),
    )
    return [f"{about.get('label', name)}: {'; '.join([statement[0], *warnings])}"]


def _describe_unfinished(about: dict[str, Any]) -> list[str]:
    """Return the sentence about a study whose runs have not ended: other files in its folder are of an earlier one."""
    return [f"{about.get('label')}: {about.get('status')}, and has no results yet."] if about else []


def _describe_status(status: str) -> str:
    return "." if status == "done" else f"; it has not ended ({status}), and this page shows its results so far."
