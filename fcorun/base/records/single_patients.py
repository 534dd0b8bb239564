"""Files, numbers and sentences of a record that tell of single patients, and stay where the record is sent."""

import re
from collections.abc import Callable
from typing import Any

# files from which outcomes and predictions of single patients can be read: lines of patients, thresholds at which a
# curve turns or between which one patient lies, times of events; nothing sends them that sends a record
PATIENT_FILES = ("predictions.csv", "roc.csv", "thresholds.csv", "baseline_hazard.csv")
SENTENCES = (  # keys of JSON and configurations, and columns of tables, whose texts no computation reads
    *("reason", "label", "title", "warnings", "threshold", "convergence", "statement", "bound_statement", "judged"),
    *("verdict", "caption", "about", "changed", "folder"),
)


def hide_patients(content: dict[str, Any]) -> dict[str, Any]:
    """Return a summary or a status without the limits of columns and numbers of rows."""
    shown = change_texts(content, lambda text, is_sentence: hide_row_numbers(text) if is_sentence else text)
    if isinstance(shown.get("data"), dict):
        shown["data"].pop("limits", None)
    return shown


def hide_row_numbers(text: str) -> str:
    """Return a sentence without the numbers of single rows.

    >>> hide_row_numbers("'bmi' by 26.6 in 140 rows (941, 942, 943, ...), 'sex' by 'M' in row 7")
    "'bmi' by 26.6 in 140 rows, 'sex' by 'M' in 1 row"
    """
    return re.sub(r"\brow \d+", "1 row", re.sub(r"( rows) \(\d[\d, ]*(\.\.\.)?\)", r"\1", text))


def change_texts(content: Any, change: Callable[[str, bool], str], is_sentence: bool = False) -> Any:
    """Return the content of JSON with each text changed by ``change``, which is told whether it is a sentence."""
    if isinstance(content, str):
        return change(content, is_sentence)
    if isinstance(content, list):
        return [change_texts(item, change, is_sentence) for item in content]
    if isinstance(content, dict):
        return {key: change_texts(value, change, is_sentence or key in SENTENCES) for key, value in content.items()}
    return content
