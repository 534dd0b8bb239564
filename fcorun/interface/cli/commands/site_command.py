"""fcorun site: what the owner of a site does with a plan, and the run of a plan."""

import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.config import build
from fcorun.base.errors import UserError, suggest_name
from fcorun.interface.cli.commands.common_command import READING_OPTIONS, CommandParser, read_data_keys, read_folder
from fcorun.interface.cli.terminal import Terminal

_NOTICE_SECONDS = 10.0
_WAIT_SECONDS = 600.0
_FINGERPRINTS = "fingerprints="
_OUT = "out="
_OVERLAP = "overlap="
_POLICY = "policy="
_SERVER_CLASS = "fcorun.sites.server.kit_study.StudyServer"  # of jobs
_SITE_CLASS = "fcorun.sites.server.kit_study.StudySite"
_OPTIONS_HELP = (
    "the site's own keys: data.path=FILE data.client=COLUMN data.rename={THEIRS: SHARED} data.keep=[ID] "
    "data.na=[-9] data.encoding=latin-1 data.sheet=NAME policy=FILE"
)


def run(argv: Sequence[str]) -> int:
    """Check, accept, try or run the plan of a study whose rows stay at several sites. ``check`` compares a site's file
    with the plan and the policy, and sends nothing; ``accept`` notes the owner's yes to the digest of the plan;
    ``serve`` answers the server from a shared folder; ``try`` computes the plan with all files on this machine;
    ``run`` computes it with the sites; ``ledger`` lists all plans that the sites of an owner have answered."""
    parser = CommandParser("site", run.__doc__, folders=False)
    parser.add_argument("step", metavar="STEP", help=", ".join(_OPTIONS_OF_STEP))
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="the plan that fcorun plan has written")
    parser.add_argument(
        "rest",
        nargs="*",
        metavar="KEY=VALUE|FILE",
        help=f"{_OPTIONS_HELP}; with try: the sites' files; with try and run: out=DIR, the folder of the record; with "
        "accept: overlap=allow, which gives away the few rows that earlier plans and this one tell apart",
    )
    parser.add_argument("--at", type=Path, metavar="DIR", help="the folder of the site: what was accepted, log, states")
    parser.add_argument(
        "--kit", type=Path, metavar="KIT", help="the kit of NVFLARE of the site, or with run: of a user"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="a shared folder through which messages go")
    parser.add_argument("--sites", metavar="A,B,C", help="with run: the names of the sites")
    parser.add_argument("--name", metavar="SITE", help="with serve: the name of this site")
    parser.add_argument(
        "--wait", type=float, metavar="SECONDS", help=f"how long to wait for the others: {_WAIT_SECONDS:g}"
    )
    arguments = parser.parse_intermixed_args(argv)
    if arguments.step not in _OPTIONS_OF_STEP:
        steps = suggest_name(arguments.step, list(_OPTIONS_OF_STEP))
        raise UserError(f"fcorun site {arguments.step}: there is no such step; {steps}")
    for option in ("at", "kit", "folder", "sites", "name", "wait"):
        if getattr(arguments, option) is not None and option not in _OPTIONS_OF_STEP[arguments.step]:
            raise UserError(f"fcorun site {arguments.step} takes no --{option}: leave it out")
    if arguments.wait is not None and not 0 <= arguments.wait < math.inf:
        raise UserError(f"--wait {arguments.wait:g}: give a number of seconds, 0 or more")
    if arguments.step == "ledger":
        return _show_ledger(arguments, Terminal())
    if arguments.plan is None:
        raise UserError(f"fcorun site {arguments.step} needs a plan: fcorun site {arguments.step} PLAN ...")
    from fcorun.base.system.machine import set_up_jax
    from fcorun.sites.plan.plan import Plan

    set_up_jax()
    arguments.plan = Path(arguments.plan)
    return _STEPS[arguments.step](Plan.read(arguments.plan), arguments, Terminal())


def _check(plan: Any, arguments: Any, console: Terminal) -> int:
    """Compare a site's file with the plan and its policy, and print what the site would say; send nothing."""
    from fcorun.sites.site.acceptance import describe_site, find_differences
    from fcorun.sites.tables.ledger import check_differences

    site = _open_sites(plan, {"": _read_site_keys(arguments.rest)}, console)[""]
    console.print_lines([*plan.describe(), "", *describe_site(site)])
    check_differences(find_differences(site))
    console.print("\nnothing was sent. To accept this plan, with a folder of the site or its kit (--kit KIT):")
    path = shlex.quote(str(arguments.plan))
    keys = shlex.join(arguments.rest)
    console.print(f"  fcorun site accept {path} --at DIR {keys}")
    return 0


def _accept(plan: Any, arguments: Any, console: Terminal) -> int:
    """Note at a site that its owner accepts the digest of the plan, for these rows and this policy.

    A kit then takes the jobs that run plans, and no others that bring code. The kit of a server has no rows: nothing is
    noted there.
    """
    from fcorun.sites.site.acceptance import (
        accept,
        describe_site,
        digest_of_rows,
        find_differences,
        site_fingerprint,
        site_folder,
    )
    from fcorun.sites.tables.ledger import check_differences
    from fcorun.sites.transport.kits import restrict_kit

    if arguments.kit is not None and arguments.at is not None:
        raise UserError("a kit has the folder of its site: give --kit alone, or --at alone for a shared folder")
    if arguments.kit is not None and (arguments.kit / "startup" / "fed_server.json").exists():
        if arguments.rest:
            raise UserError(f"{arguments.kit} is the kit of a server, which has no rows: leave "
                            f"{' '.join(arguments.rest)} out")  # fmt: skip
        restrict_kit(arguments.kit, [_SERVER_CLASS])
        console.print(f"{arguments.kit} takes jobs that run plans, and no code: start the server anew")
        return 0
    fingerprints = [text for text in arguments.rest if text.startswith(_FINGERPRINTS)]
    overlaps = [text for text in arguments.rest if text.startswith(_OVERLAP)]
    if set(overlaps) - {f"{_OVERLAP}allow"}:
        raise UserError(f"{' '.join(overlaps)}: give overlap=allow, or leave it out")
    options, policy = _read_site_keys([text for text in arguments.rest if text not in (*fingerprints, *overlaps)])
    others = _read_fingerprints(fingerprints)
    if others and plan.secure is None:
        raise UserError("fingerprints are for secure sums, and the plan has none: leave them out")
    data = digest_of_rows(options)  # before the rows are read
    site = _open_sites(plan, {"": (options, policy)}, console)[""]
    console.print_lines([*plan.describe(), "", *describe_site(site)])
    folder = _required(arguments, "at") if arguments.kit is None else site_folder(arguments.kit)
    differences = find_differences(site, folder)
    if not overlaps:
        check_differences(differences)
    if arguments.kit is not None:
        restrict_kit(arguments.kit, [_SITE_CLASS])
    path = accept(folder, plan, options, policy, others, shown_data=data, overlap=bool(overlaps))
    for sentence in differences:
        console.print(f"given away by overlap=allow: {sentence}; sums of both plans differ by these rows")
    console.print(f"\naccepted: {plan.digest}, noted in {path}")
    if arguments.kit is not None:
        console.print(f"{arguments.kit} takes jobs that run plans, and no code: start the site anew")
    if plan.secure is not None:
        console.print(f"fingerprint of this site's key: {site_fingerprint(folder)}")
        if not others:
            console.print("tell it to the owners of the other sites, and enter theirs: the same command with "
                          "'fingerprints={SITE: FINGERPRINT, ...}'")  # fmt: skip
    return 0


def _try(plan: Any, arguments: Any, console: Terminal) -> int:
    """Compute the plan with all sites in this process, and compare the result with that of the pooled rows."""
    from fcorun.sites.server.trial import try_plan
    from fcorun.sites.site.acceptance import compare_target_units, list_warnings

    files = [text for text in arguments.rest if "=" not in text]
    keys = [text for text in arguments.rest if "=" in text and not text.startswith(_OUT)]
    if not files:
        raise UserError("fcorun site try needs the files of the sites: fcorun site try PLAN a.csv b.csv c.csv")
    names = [Path(file).name.partition(".")[0] for file in files]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two files are called '{name}': a site is named after its file; rename one")
    keys_of = {name: _read_site_keys([*keys, f"data.path={file}"]) for name, file in zip(names, files, strict=True)}
    sites = _open_sites(plan, keys_of, console)
    folder = _output_folder(plan, arguments)

    for name, site in sites.items():
        for warning in list_warnings(site.table):
            console.print(f"site '{name}': {warning}")
    console.print_lines(compare_target_units({name: site.table for name, site in sites.items()}))
    _, comparison = try_plan(plan, sites, folder, log=console.print)
    console.print_lines([*comparison.describe(), str(folder)])
    return 0


def _serve(plan: Any, arguments: Any, console: Terminal) -> int:
    """Answer the server's requests from a shared folder until the run ends."""
    from fcorun.sites.site.acceptance import open_durable_site, open_log, state_folder
    from fcorun.sites.transport.folder import FolderSite, read_stop, refuse_all

    if arguments.rest:
        raise UserError(f"fcorun site serve takes no {' '.join(arguments.rest)}: give the keys of the site to fcorun "
                        "site accept, and then start this site again")  # fmt: skip
    folder = _required(arguments, "folder")
    at = _required(arguments, "at")
    if not folder.is_dir():
        raise UserError(f"--folder {folder} is no folder: see that the shared drive is there, or make the folder")
    name = arguments.name or at.resolve().name
    log = open_log(at, plan.digest)
    stop = read_stop(folder)
    try:
        site = open_durable_site(at, plan, name=name)
    except UserError as error:
        refuse_all(folder, name, error, state_folder(at, plan), log)
        raise
    console.print(f"site '{name}' answers the requests in {folder}")

    served = FolderSite(folder, name, site, lambda line: console.print(f"  {line}"), log=log, run=plan.digest[:16])
    served.serve(_wait_seconds(arguments), earlier_stop=stop)
    console.print("the run has ended")
    return 0


def _run(plan: Any, arguments: Any, console: Terminal) -> int:
    """Compute the plan with the sites of a kit, or with those that answer from a shared folder."""
    names = [name for name in (arguments.sites or "").split(",") if name]
    if (arguments.kit is None) == (arguments.folder is None) or not names:
        raise UserError("fcorun site run needs the names of the sites, --sites A,B,C, and the way to them: --kit KIT "
                        "or --folder DIR")  # fmt: skip
    if unknown := [text for text in arguments.rest if not text.startswith(_OUT)]:
        raise UserError(f"fcorun site run takes no {' '.join(unknown)}: it has one key, out=DIR, the folder of the "
                        "record; all others are in the plan")  # fmt: skip
    folder = _output_folder(plan, arguments)
    wait_seconds = _wait_seconds(arguments)
    if arguments.kit is not None:
        from fcorun.sites.server.kit_study import submit_plan

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Potential secret")  # the digest of the plan
            submit_plan(plan, arguments.kit, names, folder, wait_seconds, on_status=console.print)
    else:
        from fcorun.sites.server.site_study import check_messages_of_record, run_plan
        from fcorun.sites.transport.folder import FolderConnections

        show_missing = _WaitingNotice(console)
        connections = FolderConnections(arguments.folder, names, plan.digest[:16], wait_seconds, show_missing)
        check_messages_of_record(plan, folder, connections)
        with connections.telling_sites():
            run_plan(plan, connections, folder, log=console.print)
    console.print(str(folder))
    return 0


def _show_ledger(arguments: Any, console: Terminal) -> int:
    """Print all plans that the sites of an owner have answered; ``policy=FILE`` may name another ledger."""
    from fcorun.sites.plan.policy import Policy
    from fcorun.sites.tables.ledger import Ledger

    texts = [text for text in (arguments.plan, *arguments.rest) if text is not None]
    if len(texts) > 1 or not all(text.startswith(_POLICY) for text in texts):
        raise UserError(f"fcorun site ledger takes no {' '.join(texts)}: it has one key, policy=FILE")
    policy = Policy.read(texts[0].removeprefix(_POLICY) if texts else None)
    console.print_lines(Ledger(policy.ledger_folder).describe())
    return 0


class _WaitingNotice:
    """Says which sites are waited for, at most every few seconds."""

    def __init__(self, console: Terminal):
        self.console = console
        self.due = time.monotonic() + _NOTICE_SECONDS

    def __call__(self, sites: Sequence[str]) -> None:
        if time.monotonic() > self.due:
            self.console.print(f"waiting for {', '.join(sites)}")
            self.due = time.monotonic() + _NOTICE_SECONDS


def _output_folder(plan: Any, arguments: Any) -> Path:
    """Return the folder of the record: ``out=DIR``, or outputs/sites/PLAN-DIGEST, and for a trial PLAN-DIGEST-trial."""
    outs = [text for text in arguments.rest if text.startswith(_OUT)]
    trial = "-trial" if arguments.step == "try" else ""
    return Path(read_folder(outs[-1]) if outs else f"outputs/sites/{arguments.plan.stem}-{plan.digest[:8]}{trial}")


def _wait_seconds(arguments: Any) -> float:
    return _WAIT_SECONDS if arguments.wait is None else arguments.wait


_STEPS: dict[str, Callable[[Any, Any, Terminal], int]] = {
    "check": _check,
    "accept": _accept,
    "try": _try,
    "serve": _serve,
    "run": _run,
}
_OPTIONS_OF_STEP = {
    "check": (),
    "accept": ("at", "kit"),
    "try": (),
    "serve": ("at", "folder", "name", "wait"),
    "run": ("kit", "folder", "sites", "wait"),
    "ledger": (),
}


def _required(arguments: Any, option: str) -> Path:
    value = getattr(arguments, option)
    if value is None:
        kit = " or --kit" if arguments.step == "accept" else ""
        raise UserError(f"fcorun site {arguments.step} needs --{option}{kit}: fcorun site --help explains it")
    return value


def _open_sites(plan: Any, keys: Mapping[str, tuple[Any, Any]], console: Terminal) -> dict[str, Any]:
    """Return the sites with their tables read, from the options and the policy of each site by name.

    Several obstacles are printed, a line each. Raises UserError for any.
    """
    from fcorun.sites.plan.site_options import ObstaclesError
    from fcorun.sites.site.acceptance import open_checked_site

    sites = {}
    sentences = []
    for name, (options, policy) in keys.items():
        where = f"site '{name}': " if name else ""
        try:
            sites[name] = open_checked_site(plan, options, policy)
        except ObstaclesError as error:
            sentences += [f"{where}{obstacle}" for obstacle in error.errors]
        except UserError as error:
            sentences.append(f"{where}{error}")
    if len(sentences) == 1:
        raise UserError(sentences[0])
    if sentences:
        for sentence in sentences:
            console.print(f"obstacle: {sentence}")
        raise UserError(f"{len(sentences)} obstacles, listed above: mend the files, the policies (policy=FILE) or "
                        "the plan")  # fmt: skip
    return sites


def _read_fingerprints(texts: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of a text fingerprints={SITE: FINGERPRINT, ...}, if any.

    Raises UserError for several texts, several fingerprints of a site, and anything else.
    """
    if not texts:
        return {}
    if len(texts) > 1:
        raise UserError(f"{' '.join(texts)}: give the fingerprints of all other sites in one list, "
                        "'fingerprints={SITE: FINGERPRINT, ...}'")  # fmt: skip
    (text,) = texts
    fingerprints: dict[str, str] = {}
    for entry in text.removeprefix(_FINGERPRINTS).strip("{} ").split(","):
        name, _, fingerprint = (part.strip() for part in entry.partition(":"))
        if not name or not re.fullmatch("[0-9a-f]{32}", fingerprint):
            raise UserError(f"{text}: give each other site with its fingerprint of 32 digits, as fcorun site accept "
                            "prints it there, 'fingerprints={SITE: FINGERPRINT, ...}'")  # fmt: skip
        if name in fingerprints:
            raise UserError(f"{text}: site {name} is named twice; give each other site with one fingerprint")
        fingerprints[name] = fingerprint
    return fingerprints


def _read_site_keys(texts: Sequence[str]) -> tuple[Any, Any]:
    """Return the options and the policy of a site from KEY=VALUE texts. Raises UserError for other keys."""
    from fcorun.sites.plan.policy import Policy
    from fcorun.sites.plan.site_options import SiteOptions

    policies = [text for text in texts if text.startswith(_POLICY)]
    keys = [text for text in texts if text not in policies]
    help_text = f"{_OPTIONS_HELP}; all others are in the plan"
    values = read_data_keys(keys, ("path", "client", "rename", "keep", *READING_OPTIONS), help_text)
    if "path" not in values:
        raise UserError("data.path is missing: give the file of the site, data.path=FILE")
    policy = policies[-1].removeprefix(_POLICY) if policies else None
    return build(SiteOptions, values, "data"), Policy.read(policy)
