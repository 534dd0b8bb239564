"""Options that fcorun no longer has. Records, plans, notes of acceptance and policies of earlier versions have them."""

from collections.abc import Mapping
from typing import Any

_RATES = "run without it, with rates as numbers or `algo=newton`"

# Each option, with its value where it was not used, and what to do where it was.
_GONE = {
    "objective.ceiling": (None, _RATES),
    "topology.compress_edges": (False, "run without it, so that edges send whole messages to the root"),
    "data.mask_strategy": ("background", "run with `data.mask=FILE`, as nilearn.masking.compute_epi_mask makes it"),
    "data.resample": (False, "run without it, on images that nilearn.image.resample_to_img has resampled"),
    "policy.keys": ("pinned", "leave it out, and give fcorun site accept the fingerprints of all other sites, "
                              "'fingerprints={SITE: FINGERPRINT, ...}'"),
}  # fmt: skip


def unused_options(section: str) -> dict[str, Any]:
    """Return the options of a section that are gone, with the values where they were not used."""
    options = {}
    for key, (unused, _) in _GONE.items():
        holder, _, name = key.partition(".")
        if holder == section:
            options[name] = unused
    return options


def drop_unused(section: str, values: Any) -> Any:
    """Return the values of a section, as a file has them, without options that are gone and were not used."""
    if not isinstance(values, Mapping) or not str(values.get("class", "fcorun.")).startswith("fcorun."):
        return values  # a user's own class may have such an option
    unused = unused_options(section).items()
    return {name: value for name, value in values.items() if (name, value) not in unused}


def drop_unused_of_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration, as a file has it, without options that are gone and were not used."""
    return {section: drop_unused(section, values) for section, values in config.items()}


def explain_gone(key: str) -> str:
    """Return words on an option that is gone and was used, and what to do; "" for another key."""
    return f"fcorun no longer has it; {_GONE[key][1]}" if key in _GONE else ""
