"""What ``fcorun report`` makes for the commands: comments on keys, and the page that sweeps and figures leave."""

from collections.abc import Iterable
from pathlib import Path

from fcorun.cli.key_docs import read_choice, read_root_keys
from fcorun.configuration.search_path import find_choices
from fcorun.errors import UserError
from fcorun.records.record import Record, load_records
from fcorun.sections import SECTIONS
from fcorun.system.files import write_atomically

REPORT_FILE = "report.html"


def key_comments(records: Iterable[Record]) -> dict[str, str]:
    """What the configuration files say of the keys of these records, those of several choices together."""
    found = {key: {about.comment} for key, about in read_root_keys().items()}
    configs = [record.flat_config for record in records]
    for group in SECTIONS:
        names = {str(config.get(f"{group}.name")) for config in configs}
        for name in sorted(names & {*find_choices(group)}):
            for key, about in read_choice(group, name).keys.items():
                found.setdefault(key, set()).add(about.comment)
    return {key: "; or: ".join(sorted(filter(None, told))) for key, told in found.items()}


def write_report(folder: Path, places: Iterable[Path] = ()) -> list[str]:
    """Write the page of a folder into it, with the records at ``places`` that lie elsewhere; return the sentences to
    print about it."""
    from fcorun.reports.page.build import build_page

    try:
        found = {record.folder.resolve(): record for record in load_records(folder)}
        more = [Record(place) for place in places if place.resolve() not in found]
        records = [*found.values(), *(record for record in more if record.status)]
        write_atomically(folder / REPORT_FILE, build_page([folder], records, comments=key_comments(records)))
    except (UserError, OSError) as error:
        return [f"{REPORT_FILE} was not made: {error}"]
    return [f"{REPORT_FILE} in {folder}/"]
