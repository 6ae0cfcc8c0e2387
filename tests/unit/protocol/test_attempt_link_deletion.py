from __future__ import annotations

import pytest
from test_attempt_link import encoded, info, linked, values

from trialpod.protocol.attempt_link import Superseded
from trialpod.protocol.http import TransportError
from trialpod.protocol.messages import AttemptEnd, ReportAnswer


def test_deletion_is_requested_until_an_answer_permits_it() -> None:
    answer = ReportAnswer(received=1, durable=1, deletable=["a", "other"])
    link, server, _ = linked(TransportError("lost"), answer)
    told: list[tuple[list[str], list[str]]] = []
    link.publish(encoded(1))
    link.ask_to_delete(["a", "b"], lambda asked, may: told.append((asked, may)))
    link.wait_decision()
    assert told == [(["a", "b"], ["a"])]
    assert [request.unneeded_checkpoints for request in server.requests] == [["a", "b"], ["a", "b"]]
    link.publish(encoded(2))
    link.wait_decision()
    assert server.requests[-1].unneeded_checkpoints == []


def test_a_superseded_attempt_is_not_allowed_anything() -> None:
    link, _, _ = linked(ReportAnswer(superseded=True, deletable=["a"]))
    told: list[object] = []
    link.ask_to_delete(["a"], lambda *answer: told.append(answer))
    link.publish(encoded(1))
    with pytest.raises(Superseded):
        link.wait_decision()
    assert told == []


def test_a_held_result_leaves_with_its_checkpoint() -> None:
    link, server, _ = linked()
    link.publish(encoded(1))
    link.publish(encoded(2), wake=False, hold=0)
    link._beat()
    assert [values(request) for request in server.requests] == [[1]]
    link.announce(info(0))
    link._beat()
    assert values(server.requests[-1]) == [2]
    assert [one.name for one in server.requests[-1].checkpoints] == ["checkpoint_000000"]


def test_a_held_result_waits_for_its_own_checkpoint() -> None:
    link, server, _ = linked()
    link.publish(encoded(1))
    link.publish(encoded(2), wake=False, hold=1)
    link.announce(info(0))
    link._beat()
    link.announce(info(1))
    link._beat()
    sent = [(values(each), [one.name for one in each.checkpoints]) for each in server.requests]
    assert sent == [([1], ["checkpoint_000000"]), ([2], ["checkpoint_000001"])]


def test_held_result_with_failed_checkpoint_precedes_the_end() -> None:
    link, server, _ = linked()
    link.publish(encoded(1), wake=False, hold=0)
    link.finish(AttemptEnd(cause="failed", error="disk full"))
    assert [value for request in server.requests for value in values(request)] == [1]
    assert server.requests[-1].end is not None
