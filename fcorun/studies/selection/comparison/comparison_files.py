"""Files of a comparison: comparison.csv, comparison.json, comparison.png and .pdf."""

from fcorun.base.records.formats import csv_text, json_text
from fcorun.base.system.files import write_atomically
from fcorun.studies.selection.comparison.comparison_picture import draw_comparison
from fcorun.studies.selection.comparison.comparison_result import ModelComparison


def write(comparison: ModelComparison) -> None:
    """Write the files. comparison.csv has a row for each candidate, client and score.

    comparison.json has the verdict, the options, and the numbers that each candidate chose without each outer fold.
    """
    rows = [row.to_dict() for row in comparison.rows if row.score in comparison.scores]
    order = {name: i for i, name in enumerate(comparison.scores)}
    rows.sort(key=lambda row: order[row["score"]])
    folder = comparison.folder
    write_atomically(folder / "comparison.csv", csv_text(rows))
    for ending, picture in draw_comparison(comparison).items():
        write_atomically(folder / f"comparison.{ending}", picture)
    content = {
        "score": comparison.score,
        "verdict": comparison.describe_verdict(),
        "candidates": comparison.candidates,
        "chosen": comparison.chosen,
        "options": vars(comparison.options),
        "warnings": comparison.warnings,
        "seconds": comparison.seconds,
    }
    write_atomically(folder / "comparison.json", json_text(content))
