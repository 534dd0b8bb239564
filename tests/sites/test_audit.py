"""The log of a site: lines that follow each other, also after a line that a kill has torn; no line, no answer."""

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fcorun.sites.transport import delivery
from fcorun.sites.transport.delivery import AuditLog, answer_bytes
from fcorun.sites.transport.messages import Envelope, Message


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


def test_lines_of_two_plans_at_once_follow_each_other(tmp_path, monkeypatch):
    read_last_line = delivery._read_last_line

    def read_slowly(file):
        line = read_last_line(file)
        time.sleep(0.001)  # so that the other plan writes, if it may
        return line

    monkeypatch.setattr(delivery, "_read_last_line", read_slowly)

    def serve(plan):
        log = AuditLog(tmp_path / "sent.jsonl", plan)
        for _ in range(30):
            log.write(Message("end"))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(serve, ("a", "b")))
    lines = (tmp_path / "sent.jsonl").read_bytes().splitlines()
    digests = ["", *(hashlib.sha256(line).hexdigest() for line in lines)]
    assert [json.loads(line)["line_before"] for line in lines] == digests[:-1]
    assert len(lines) == 60


def test_an_answer_that_cannot_be_logged_does_not_leave(tmp_path):
    class Site:
        def answer(self, request):
            return Message("end", {}, {"sum": np.ones(3)})

    request = Message("end", envelope=Envelope("a", 0, ("north",)))
    (tmp_path / "sent.jsonl").mkdir()  # as good as a full disk
    sent = answer_bytes(Site().answer, "north", request.to_bytes(), AuditLog(tmp_path / "sent.jsonl"))
    refusal = Message.from_bytes(sent, "north")
    assert refusal.name == "refusal"
    assert "the site cannot write its log (Is a directory)" in refusal.about["sentence"]
    assert not refusal.arrays
    assert refusal.envelope == request.envelope
