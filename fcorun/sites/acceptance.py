"""The owner's acceptance of a plan: what a site would say, and the note that the owner agrees."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fcorun.config import build
from fcorun.errors import UserError
from fcorun.records.formats import READ_ERRORS, read_json
from fcorun.sites.audit import AuditLog
from fcorun.sites.plan import Plan
from fcorun.sites.policy import Policy
from fcorun.sites.site import Site
from fcorun.sites.table_options import SiteOptions
from fcorun.system.files import write_atomically
from fcorun.tables.splits import SPLITS

if TYPE_CHECKING:
    from fcorun.sites.masking import MaskedSite

_ACCEPTED, _LOG = "accepted", "sent.jsonl"


def site_folder(kit: Path) -> Path:
    """Return the folder of fcorun in a site's kit."""
    return kit / "local" / "fcorun"


def describe_site(site: Site) -> list[str]:
    """Return what the site has for the plan, as lines for its owner: columns, levels, clients with numbers of rows."""
    table = site.table
    lines = ["columns:"]
    for name, kind in table.kinds.items():
        if kind != "levels":
            lines.append(f"  {name:24} {kind}")
            continue
        rare = table.rare_levels(name)
        counts = table.level_counts[name]
        levels = [f"{level} ({count})" for level, count in sorted(counts.items()) if level not in rare]
        if rare:
            levels.append(f"other ({sum(counts[level] for level in rare)} rows of {len(rare)} rare levels)")
        lines.append(f"  {name:24} {', '.join(levels)}")
    lines.append("rows of each client: " + ", ".join(SPLITS))
    for name, counts in zip(table.clients, table.n_rows.tolist(), strict=True):
        lines.append(f"  {name:24} {', '.join(map(str, counts))}")
    return lines + [f"warning: {warning}" for warning in table.rows.warnings]


def accept(
    folder: Path, plan: Plan, options: SiteOptions, policy: Policy, fingerprints: Mapping[str, str] | None = None
) -> Path:
    """Note in the site's folder that its owner accepts a plan for these rows; return the file of the note.

    For secure sums, draws the site's key unless the folder has one, and notes the fingerprints of the keys of others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if plan.secure is not None:
        site_fingerprint(folder)
    note = {
        "digest": plan.digest,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {**asdict(options), "path": str(Path(options.path).resolve())},
        "policy": asdict(policy),
        "fingerprints": dict(fingerprints or {}),
    }
    path = folder / _ACCEPTED / f"{plan.digest[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note, indent=2) + "\n")
    return path


def site_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the key of a site's folder, which is drawn once."""
    from fcorun.sites.masks import fingerprint_of, open_key, public_key_of

    return fingerprint_of(public_key_of(open_key(folder)))


def open_site(folder: Path, plan: Plan) -> "Site | MaskedSite":
    """Return the site of a folder for a plan that its owner has accepted. Raises UserError for any other plan."""
    path = folder / _ACCEPTED / f"{plan.digest[:16]}.json"
    try:
        note = read_json(path)
        if note["digest"] != plan.digest:
            raise ValueError("another digest")
        options = build(SiteOptions, note["options"], "data.")
        policy = build(Policy, note["policy"], "policy.")
        fingerprints = note["fingerprints"]
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"the owner of this site has not accepted the plan {plan.digest[:16]}..: fcorun site accept "
                        "does that") from error  # fmt: skip
    site = Site(plan, options, policy, AuditLog(folder / _LOG, policy.log_contents))
    if plan.secure is None:
        return site
    from fcorun.sites.masking import MaskedSite
    from fcorun.sites.masks import open_key

    return MaskedSite(site, open_key(folder), fingerprints)
