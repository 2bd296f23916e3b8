"""The audit log of a scale run is read whole, however it is rotated; and what is counted of it."""

import json
from contextlib import closing
from pathlib import Path

from benchmarks.scale.audit import AuditTail, Request, counted
from benchmarks.scale.services import is_ours

USER = "system:serviceaccount:ns:operator"


def line(name: str, *, user: str = USER, stage: str = "ResponseComplete", namespace: str | None = "scale-0") -> str:
    entry = {
        "user": {"username": user},
        "stage": stage,
        "verb": "patch",
        "objectRef": {"resource": "services", "name": name} | ({"namespace": namespace} if namespace else {}),
        "responseStatus": {"code": 200},
    }
    return json.dumps(entry) + "\n"


def names(requests: list[Request]) -> list[str]:
    return [request.name for request in requests]


def test_what_others_asked_and_what_is_not_answered_yet_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(line("before"))
    with closing(AuditTail(log, USER, is_ours)) as tail:
        with log.open("a") as more:
            more.write(line("mine") + line("theirs", user="somebody") + line("running", stage="RequestReceived"))
            more.write(line("half")[:20])
        assert names(tail.new()) == ["mine"]
        with log.open("a") as more:
            more.write(line("half")[20:])
        assert names(tail.new()) == ["half"]


def test_what_is_asked_of_other_namespaces_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text("")
    with closing(AuditTail(log, USER, is_ours)) as tail:
        log.write_text(line("ours") + line("another's", namespace="team-a") + line("a list", namespace=None))
        assert names(tail.new()) == ["ours", "a list"]


def test_a_log_that_is_rotated_while_it_is_followed_is_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text("")
    with closing(AuditTail(log, USER, is_ours)) as tail:
        for number in range(3):
            with log.open("a") as more:
                more.write(line(f"{number}"))
            log.rename(tmp_path / f"audit-{number}.log")
            log.write_text(line(f"{number} later"))
            tail.take_in()
        assert names(tail.new()) == ["0", "0 later", "1", "1 later", "2", "2 later"]
        assert tail.new() == []


def test_counts_are_by_verb_and_resource_and_a_lease_is_no_write() -> None:
    asked = [Request("patch", "services", 200, "a"), Request("patch", "services", 200, "b")]
    lease = Request("update", "leases", 200, "l")
    assert counted([*asked, lease]) == {"patch services": 2, "update leases": 1}
    assert [request.is_write for request in (*asked, lease)] == [True, True, False]
