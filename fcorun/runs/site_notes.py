"""Notes of a run over sites: what stays at them, what their messages have, and who was away."""

from dataclasses import asdict
from typing import Any

from fcorun.base.records.formats import csv_text
from fcorun.base.records.record import AT_SITES, AWAY_FILE
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.methods.communication.contracts import Identity
from fcorun.runs.job import Job


def note_sites(job: Job, data: FederatedData, rows: SiteRows) -> tuple[dict[str, Any], dict[str, str]]:
    """Add notes on the sites to the reason of a run that has ended; ``rows`` are its training rows.

    Returns further sections of summary.json, and the contents of further files by name.
    """
    sections: dict[str, Any] = {}
    files = {}
    if rows.absences.entries:
        sections["away"] = rows.absences.describe()
        files[AWAY_FILE] = csv_text([asdict(absence) for absence in rows.absences.entries])
        for sentence in sections["away"]:
            job.add_reason(sentence)
    experiment = job.experiment
    if not (isinstance(experiment.uplink, Identity) and isinstance(experiment.downlink, Identity)):
        job.add_reason("bytes_up and bytes_down count the encodings of uplink and downlink, and the messages of sites "
                       "are longer, since they have the decoded numbers")  # fmt: skip
    if (data.features.standardized or {}).get("by") == "per_client":
        job.add_reason("coefficients are per standard deviation of each client, whose means and deviations are at its "
                       "site alone")  # fmt: skip
    if experiment.algo.has_personal_models:
        job.add_reason("each client's personal model is at its site alone, in the record that the site keeps")
        sections["personal_models"] = AT_SITES
    return sections, files
