"""The log of a site: lines that follow each other, also after a line that a kill has torn."""

import hashlib
import json

from fcorun.sites.audit import AuditLog
from fcorun.sites.messages import Message


def test_a_torn_last_line_is_not_continued(tmp_path):
    log, answer = AuditLog(tmp_path / "sent.jsonl"), Message("end")
    log.write(answer)
    torn = b'{"time": "20'
    with log.path.open("ab") as file:
        file.write(torn)
    log.write(answer)
    lines = log.path.read_bytes().splitlines()
    assert lines[1] == torn
    assert json.loads(lines[2])["line_before"] == hashlib.sha256(torn).hexdigest()
    log.write(answer)
    assert len(log.path.read_bytes().splitlines()) == 4
