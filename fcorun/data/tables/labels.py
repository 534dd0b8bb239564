"""Names as people say them for the columns of a table and their features, "heart failure: yes" for ``hf=yes``."""

from collections.abc import Mapping

from fcorun.data.tables.encoding import Encoding

Labels = Mapping[str, Mapping[str, str]]  # "label" and "unit" by the name of a column


def label_column(name: str, labels: Labels, with_unit: bool = True) -> str:
    """Return the label of a column with its unit, "age (years)"; its name where there is no label."""
    words = labels.get(name, {})
    label = words.get("label") or name
    unit = words.get("unit") if with_unit else ""
    return f"{label} ({unit})" if unit else label


def label_features(encoding: Encoding, labels: Labels) -> dict[str, str]:
    """Return the label of each feature by its name: of a column of numbers its label, of a level "label: level"."""
    texts = {}
    for column in encoding.columns:
        plain = label_column(column.name, labels, with_unit=False)
        values = column.label_values(plain, label_column(column.name, labels))
        texts |= dict(zip(column.value_features, values, strict=True))
        if column.indicator:
            texts[f"{column.name}=missing"] = f"{plain}: not recorded"
    return texts
