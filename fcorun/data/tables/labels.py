"""Names as people say them for the columns of a table and their features, "heart failure: yes" for ``hf=yes``."""

from collections.abc import Mapping

from fcorun.data.tables.encoding import Column, Encoding

Labels = Mapping[str, Mapping[str, str]]  # "label" and "unit" by the name of a column


def label_column(name: str, labels: Labels, with_unit: bool = True) -> str:
    """Return the label of a column with its unit, "age (years)"; its name where there is no label."""
    words = labels.get(name, {})
    label = words.get("label") or name
    unit = words.get("unit") if with_unit else ""
    return f"{label} ({unit})" if unit else label


def label_features(encoding: Encoding, labels: Labels) -> dict[str, str]:
    """Return the label of each feature by its name: of a column of numbers its label, of a level "label: level"."""
    return {feature: text for column in encoding.columns for feature, text in _label_features_of(column, labels)}


def _label_features_of(column: Column, labels: Labels) -> list[tuple[str, str]]:
    """Return the features of a column with their labels."""
    plain = label_column(column.name, labels, with_unit=False)
    pairs = [(f"{column.name}={level}", f"{plain}: {level}") for level in column.encoded_levels]
    if column.kind == "number":
        pairs = [(column.name, label_column(column.name, labels))]
    if column.indicator:
        pairs.append((f"{column.name}=missing", f"{plain}: not recorded"))
    return pairs
