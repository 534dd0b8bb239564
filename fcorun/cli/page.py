"""What ``fcorun report`` makes for the commands: comments on keys, and the page that sweeps and figures leave."""

from collections.abc import Iterable
from pathlib import Path

from fcorun.cli.keys import choice, root_keys
from fcorun.composing.folders import choices
from fcorun.errors import UserError
from fcorun.records.record import Record, load_records
from fcorun.sections import SECTIONS
from fcorun.system.files import write_whole

NAME = "report.html"


def comments(records: Iterable[Record]) -> dict[str, str]:
    """What the configuration files say of the keys of these records, those of several choices together."""
    found = {key: {about.comment} for key, about in root_keys().items()}
    configs = [record.flat_config for record in records]
    for group in SECTIONS:
        names = {str(config.get(f"{group}.name")) for config in configs}
        for name in sorted(names & {*choices(group)}):
            for key, about in choice(group, name).keys.items():
                found.setdefault(key, set()).add(about.comment)
    return {key: "; or: ".join(sorted(filter(None, told))) for key, told in found.items()}


def leave(folder: Path, places: Iterable[Path] = ()) -> list[str]:
    """Write the page of a folder into it, with the records at ``places`` that lie elsewhere; return the sentences to
    print about it."""
    from fcorun.reports.page.build import page

    try:
        found = {record.folder.resolve(): record for record in load_records(folder)}
        more = [Record(place) for place in places if place.resolve() not in found]
        records = [*found.values(), *(record for record in more if record.status)]
        write_whole(folder / NAME, page([folder], records, comments=comments(records)))
    except (UserError, OSError) as error:
        return [f"{NAME} was not made: {error}"]
    return [f"{NAME} in {folder}/"]
