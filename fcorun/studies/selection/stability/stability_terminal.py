"""Lines that ``fcorun stability`` prints."""

from collections.abc import Iterator

import numpy as np

from fcorun.results.inference.methods import AFTER_SELECTION
from fcorun.studies.selection.stability.bound_statement import list_unpenalized, state_bound, state_judged_part
from fcorun.studies.selection.stability.stability_files import average_similarity
from fcorun.studies.selection.stability.stability_options import StabilityResult
from fcorun.studies.selection.stability.voxel_maps import VOXEL_FILES
from fcorun.studies.selection.study_result import format_cost

_MAX_NAMED_FEATURES = 20  # in a line


def describe_stability(result: StabilityResult) -> Iterator[str]:
    """Yield the stable features, the bound and its assumptions, clients, warnings, the cost, and the files."""
    scores, names, path = result.scores, result.units.names, result.path
    order = np.argsort(-scores.max_frequency, kind="stable")
    stable = [f"{names[j]} ({scores.max_frequency[j]:.2f})" for j in order if scores.stable[j]]
    listing = ", ".join(stable[:_MAX_NAMED_FEATURES]) or "none"
    if len(stable) > _MAX_NAMED_FEATURES:
        listing += f", and {len(stable) - _MAX_NAMED_FEATURES} more"
    unpenalized = list_unpenalized(result)
    yield (
        f"{len(stable)} of {len(names) - len(unpenalized)} {result.units.noun} are stable, chosen on at least "
        f"{result.options.threshold:g} of the halves{state_judged_part(result)}: {listing}"
    )
    if result.units.are_groups:
        yield "a group, such as a column with its levels, is chosen if any of its features is, and counts once"
    if unpenalized:
        yield f"not penalized (reg.factors), so neither chosen nor counted: {', '.join(unpenalized)}"
    yield from state_bound(result)
    mean = average_similarity(result.client_similarity)
    if mean is not None:
        yield (
            f"clients by themselves, {path.param_name}={path.values[scores.region_length - 1]:.4g}: two of "
            f"them share {mean:.2f} of what either chooses (Jaccard index, mean over pairs)"
        )
    yield from result.warnings
    yield f"this cost {format_cost(result.cost)}"
    if result.record is not None and result.refit_columns is not None:
        status = result.record.status
        end = ", ".join(filter(None, (status.get("status"), status.get("reason"))))
        yield (
            f"{result.record.folder}: all training rows, without a penalty, columns "
            f"{', '.join(result.refit_columns)}: {end}"
        )
        yield f"{result.record.folder}: {AFTER_SELECTION}"
    files = ["stability.csv", "stability.png and .pdf"]
    if result.client_similarity is not None:
        files.insert(1, "clients.csv")
    if result.data.features.voxel_grid is not None:
        files += VOXEL_FILES
    yield f"{result.folder}/ holds {', '.join(files)}"
