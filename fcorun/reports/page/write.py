"""The report page that commands write: the comments on its keys, and the page of a sweep or figure."""

from collections.abc import Iterable
from pathlib import Path

from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError
from fcorun.base.records.record import PAGE_FILES, Record, load_records
from fcorun.base.system.files import write_atomically
from fcorun.experiment.configuration.key_docs import read_choice, read_root_keys
from fcorun.experiment.configuration.search_path import find_choices

REPORT_FILE, SHORT_FILE = PAGE_FILES


def key_comments(records: Iterable[Record]) -> dict[str, str]:
    """Return the comments of configuration files on the keys of some records, joined over their choices."""
    comments = {key: {doc.comment} for key, doc in read_root_keys().items()}
    configs = [record.flat_config for record in records]
    for group in SECTIONS:
        names = {str(config.get(f"{group}.name")) for config in configs}
        for name in sorted(names & {*find_choices(group)}):
            for key, doc in read_choice(group, name).keys.items():
                comments.setdefault(key, set()).add(doc.comment)
    return {key: "; or: ".join(sorted(filter(None, texts))) for key, texts in comments.items()}


def write_report(folder: Path, records: Iterable[Record] = ()) -> list[str]:
    """Write the report page of a folder into it; return the sentences to print about it.

    The page shows the records in and under the folder, and ``records``. What these have read is not read again.
    """
    from fcorun.reports.page.build_page import build_page

    given = {record.folder.resolve(): record for record in records}
    try:
        shown = [given.pop(record.folder.resolve(), record) for record in load_records(folder)]
        shown += [record for record in given.values() if record.status]
        write_atomically(folder / REPORT_FILE, build_page([folder], shown, comments=key_comments(shown)))
    except (UserError, OSError) as error:
        return [f"{REPORT_FILE} was not written: {error}"]
    return [f"{REPORT_FILE} in {folder}/"]


def update_report(folder: Path, records: Iterable[Record] = (), *, is_wanted: bool) -> list[str]:
    """Write the report page of new results if it is wanted, else remove that of earlier ones, which would stay beside
    them; return the sentences to print about it.
    """
    if is_wanted:
        return write_report(folder, records)
    page = folder / REPORT_FILE
    if not page.is_file():
        return []
    page.unlink()
    return [f"{REPORT_FILE} of earlier results is removed: fcorun report {folder} makes it anew"]
