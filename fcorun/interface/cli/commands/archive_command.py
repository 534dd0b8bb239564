"""fcorun archive: results in one file, for others."""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records import contents
from fcorun.base.records.archive_sums import SUMS_FILE, format_sums
from fcorun.base.records.few_rows import LEAST_ROWS, FewRows
from fcorun.base.records.formats import json_text, parse_yaml, read_json, read_text, read_yaml, yaml_text
from fcorun.base.records.record import (
    PAGE_FILES,
    PLUGIN_FOLDER,
    PLUGIN_INDEX,
    RECORD_FILES,
    STUDY_FILES,
    load_records,
)
from fcorun.base.records.single_patients import PATIENT_FILES, hide_row_numbers
from fcorun.base.records.sweep_settings import SETTINGS_FILE, read_own_settings
from fcorun.base.system.files import choose_temporary, read_regular_file, replace_file
from fcorun.interface.cli.commands.common_command import CommandParser, check_new
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page.studies import check_study, find_studies
from fcorun.reports.results_to_share import COMPARISON_FILE, PathCutter, find_results

# code, pages that are made again, and what names places of this machine
_LEFT_OUT = (PLUGIN_FOLDER, *PAGE_FILES, "run.log")
_FILES = {  # which are archived from the folder of a file; no other file is, as of a user's table in the same folder
    contents.STATUS.name: (*(name for name in RECORD_FILES if name not in _LEFT_OUT), PLUGIN_INDEX),
    SETTINGS_FILE: (SETTINGS_FILE, "results.csv"),
    **{name: (name, *files) for name, files in STUDY_FILES.items()},
    COMPARISON_FILE: (COMPARISON_FILE, "comparison.csv", *name_picture_files("comparison")),
    contents.FIGURE.name: (contents.FIGURE.name, "table.csv", "claims.csv", *name_picture_files("figure")),
}
_TABLES_OF_RUNS = ("results.csv", "table.csv", "claims.csv")  # which may name files; others have measurements and names
_OF_THIS_MACHINE = ("tracker", "hosts", "pid", "host")  # keys of config.yaml and status.json
_MAX_BYTES = 2**34  # of a file
_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same results are the same archive


def run(argv: Sequence[str]) -> int:
    """Write the results in and under DIR to OUT.zip, for others to read: tables, models, settings, pictures and their
    checksums. Absolute paths, names of machines, logs and the code of your own plug-ins are left out, and so are
    predictions and other files that tell of single patients. After `python -m zipfile -e OUT.zip OUT`, fcorun results
    OUT and fcorun report OUT read them, and tell a file that has changed."""
    parser = CommandParser("archive", run.__doc__, folders=False)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder with results, also in its subfolders")
    parser.add_argument("out", type=Path, metavar="OUT.zip", help="the archive, which must not exist")
    help_text = (
        f"also what tells of single patients: {', '.join(PATIENT_FILES)}, the least and largest value of each column "
        f"in summary.json, and numbers by client and fold where one has fewer than {LEAST_ROWS} rows, groups or events"
    )
    parser.add_argument("--predictions", action="store_true", help=help_text)
    arguments = parser.parse_args(argv)
    out = arguments.out
    if out.suffix != ".zip":
        raise UserError(f"{out} must end in .zip: give {out}.zip")
    check_new(out)
    results = find_results(arguments.folder)
    for record in load_records(arguments.folder):
        record.check()
    for folder in find_studies([arguments.folder]):
        check_study(folder)
    digests = {}
    temporary = choose_temporary(out)
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            for folder in results:
                for path, content in _read_files(folder, arguments.predictions):
                    name = path.relative_to(arguments.folder).as_posix()
                    digests[name] = hashlib.sha256(content).hexdigest()
                    archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(SUMS_FILE, _DATE), format_sums(digests))
        replace_file(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    kind = "with predictions"
    if not arguments.predictions:
        kind = (
            "without predictions, ranges, and numbers by client and fold where one has fewer "
            f"than {LEAST_ROWS} rows, groups or events; models stay; read the warnings in JSON files, which may name "
            "values and groups"
        )
    size = out.stat().st_size / 1e6
    Terminal().print(f"{out}: results: {len(results)}, files: {len(digests)}, {size:.1f} MB, {kind}")
    return 0


def _read_files(result: Path, predictions: bool) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a result that others get, and their contents."""
    cutter = PathCutter(result)
    folders = [result, *sorted(path for path in result.rglob("*") if path.is_dir())]
    few = None if predictions else FewRows.find(folders)
    for folder in folders:
        pictures = read_own_settings(folder).pictures
        names = {name for name in pictures if Path(name).name == name and name.endswith(tuple(name_picture_files("")))}
        for marker, files in _FILES.items():
            if (folder / marker).is_file():
                names.update(files)
        if few is not None:
            names -= few.list_files(folder)
        for name in sorted(names):
            if (folder / name).is_file():
                yield folder / name, _read_to_share(folder / name, cutter, few)


def _read_to_share(path: Path, cutter: PathCutter, few: FewRows | None) -> bytes:
    """Return the content of a file without what names a place of this machine, or tells of single patients.

    Without ``few`` predictions are sent, too, and the numbers of few rows.
    """
    rest = few.read_rest(path) if few else None
    if path.suffix == ".json" and path.name != contents.ENCODING.name:
        content = read_json(path) if rest is None else json.loads(rest)
        return json_text(cutter.cut_content(_drop_keys(content))).encode()
    if path.name in (contents.CONFIG.name, SETTINGS_FILE):
        content = read_yaml(path) if rest is None else parse_yaml(rest, str(path))
        return yaml_text(cutter.cut_content(_drop_keys(content))).encode()
    if path.name in _TABLES_OF_RUNS:
        return cutter.cut_table(read_text(path) if rest is None else rest).encode()
    if path.suffix == ".txt":
        return hide_row_numbers(cutter.cut_sentence(read_text(path) if rest is None else rest)).encode()
    if rest is not None:
        return rest.encode()
    return read_regular_file(path, _MAX_BYTES)


def _drop_keys(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in _OF_THIS_MACHINE}
