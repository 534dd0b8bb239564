"""The log of a site: lines that follow each other, also after a line that a kill has torn; no line, no answer."""

import hashlib
import json

import numpy as np

from fcorun.sites.audit import AuditLog
from fcorun.sites.delivery import answer_bytes
from fcorun.sites.messages import Envelope, Message


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


def test_an_answer_that_cannot_be_logged_does_not_leave(tmp_path):
    class Site:
        def answer(self, request):
            return Message("end", {}, {"sum": np.ones(3)})

    request = Message("end", envelope=Envelope("a", 0, ("north",)))
    (tmp_path / "sent.jsonl").mkdir()  # as good as a full disk
    sent = answer_bytes(Site(), "north", request.to_bytes(), AuditLog(tmp_path / "sent.jsonl"))
    refusal = Message.from_bytes(sent, "north")
    assert refusal.name == "refusal"
    assert "the site cannot write its log (Is a directory)" in refusal.about["sentence"]
    assert not refusal.arrays
    assert refusal.envelope == request.envelope
