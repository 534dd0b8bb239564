"""The study of a plan as a job of NVFLARE: its server, its sites, and the submission with a kit."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.record import RECORD_FILES
from fcorun.base.system.files import remove_path, write_atomically
from fcorun.base.system.machine import set_up_jax
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.sites.plan.plan import Plan, digest_of_text
from fcorun.sites.server.site_study import END_MARK, record_folder_of, run_plan
from fcorun.sites.site.acceptance import Acceptance, open_durable_site, open_log, site_folder
from fcorun.sites.transport.connections import AnsweringSite, JournaledConnections
from fcorun.sites.transport.delivery import AuditLog, check_site_names
from fcorun.sites.transport.nvflare import CollabServer, CollabSite, export_job, submit_job

_RECORD = "record"
_PLAN_SOURCE = "the plan of the job"


class StudySite(CollabSite):
    """The site of a plan in the process of a job. The kit's folder has what the owner accepted.

    Attributes:
        plan: the text of the plan.
    """

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.plan = plan

    def open_site(self, name: str, root: Path) -> AnsweringSite:
        """Return the site. Raises UserError if its owner has not accepted the plan."""
        folder = site_folder(root)
        Acceptance.read(folder, digest_of_text(self.plan, _PLAN_SOURCE))  # before the plan's classes are imported
        set_up_jax()
        return open_durable_site(folder, Plan.from_text(self.plan, _PLAN_SOURCE), lock_seconds=60, name=name)

    def open_log(self, name: str, root: Path) -> AuditLog:
        """Return the log of the site, which also has the refusal of a text that is no plan."""
        try:
            digest = digest_of_text(self.plan, _PLAN_SOURCE)
        except UserError:
            digest = ""
        return open_log(site_folder(root), digest)


class StudyServer(CollabServer):
    """The server of a plan in the process of a job.

    Attributes:
        plan: the text of the plan.
    """

    def __init__(self, plan: str, run: str, wait_seconds: float = 3600.0) -> None:
        super().__init__(run, wait_seconds)
        self.plan = plan

    def compute(self, connections: JournaledConnections, folder: Path) -> None:
        """Compute the plan, and write its record."""
        set_up_jax()
        run_plan(Plan.from_text(self.plan, _PLAN_SOURCE), connections, folder / _RECORD)


def submit_plan(
    plan: Plan, kit: Path, sites: list[str], folder: Path, wait_seconds: float, on_status: Callable[[str], None]
) -> FittedRecord:
    """Have the server and the sites of a kit compute a plan, and return the record, fetched to ``folder``.

    A record of the same plan in the folder is replaced. Raises UserError for a folder that holds anything else, and for
    a failure of the study, and SiteLost as ``submit_job``.
    """
    if folder.is_file():
        raise UserError(f"out={folder} is a file; choose another folder")
    mark = folder / END_MARK
    is_replaced = mark.exists() and mark.read_text(encoding="utf-8") == plan.digest
    if folder.exists() and any(folder.iterdir()) and not is_replaced:
        raise UserError(f"out={folder} holds files, and no record of this plan that came from its sites; choose "
                        "another folder")  # fmt: skip
    run = plan.digest[:16]
    text = plan.to_text()
    with tempfile.TemporaryDirectory() as scratch:
        server = StudyServer(text, run, wait_seconds)
        job = export_job(Path(scratch), server, StudySite(text), check_site_names(sites))
        result = submit_job(job, kit, Path(scratch) / "results", wait_seconds, on_status)
        record = record_folder_of(plan, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(mark, plan.digest)  # first, so that a torn copy is replaced
        for name in RECORD_FILES:
            remove_path(record / name)
        shutil.copytree(result / _RECORD, folder, dirs_exist_ok=True)
    return FittedRecord(record)
