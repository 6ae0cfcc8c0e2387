from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer, experiment_object, trial_object

from trialpod.errors import InvalidInputError
from trialpod_operator.api.api_errors import AlreadyExistsError
from trialpod_operator.kube_client.api import MAX_PART_BYTES, ClusterUnreachableError, split_lines
from trialpod_operator.kube_client.client import ExperimentNotFoundError, Experiments


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    yield made
    made.close()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Experiments]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    found = Experiments.connect()
    yield found
    found.client.close()


def test_the_namespace_and_the_token_are_those_of_the_context(server: ApiServer, api: Experiments) -> None:
    server.put("tuneexperiments", experiment_object("digits"))
    assert api.get("digits")["metadata"]["name"] == "digits"
    assert server.requests == [("GET", "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments/digits")]
    assert server.authorizations == ["Bearer secret-token"]


def test_a_name_that_is_missing_comes_with_the_nearest_one(server: ApiServer, api: Experiments) -> None:
    server.put("tuneexperiments", experiment_object("digits"))
    assert api.find("digit") is None
    with pytest.raises(InvalidInputError, match="no TuneExperiment digit in the namespace team; did you mean digits"):
        api.get("digit")


def test_a_missing_name_is_named_without_the_right_to_list(server: ApiServer, api: Experiments) -> None:
    forbidden = {"code": 403, "reason": "Forbidden", "message": 'User "jane" cannot list resource'}
    server.routes["GET", "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments"] = forbidden
    with pytest.raises(ExperimentNotFoundError, match=r"no TuneExperiment digit in the namespace team$"):
        api.get("digit")


def test_missing_trialpod_differs_from_missing_experiment(server: ApiServer, api: Experiments) -> None:
    server.installed = False
    with pytest.raises(InvalidInputError, match=r"trialpod is not installed in the cluster .*: helm install"):
        api.get("digits")


def test_object_that_is_nested_too_deeply_is_named(server: ApiServer, api: Experiments) -> None:
    path = "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments"
    server.routes["GET", path] = b'{"items": [' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_000 + b"]}"
    with pytest.raises(InvalidInputError, match="tuneexperiments: an object is nested too deeply"):
        api.names()


def test_a_missing_right_names_the_verb_and_the_test(server: ApiServer, api: Experiments) -> None:
    server.refuse = {"code": 403, "reason": "Forbidden", "message": 'User "jane" cannot get resource'}
    with pytest.raises(InvalidInputError, match=r"auth can-i get tuneexperiments.trialpod.dev -n team"):
        api.get("digits")
    assert api.events("digits") == []


def test_credentials_that_have_expired_are_reported(server: ApiServer, api: Experiments) -> None:
    server.refuse = {"code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
    with pytest.raises(InvalidInputError, match="log in again"):
        api.get("digits")


def test_a_cluster_that_is_away_says_from_where_its_address_is(server: ApiServer, api: Experiments) -> None:
    server.close()
    with pytest.raises(
        ClusterUnreachableError, match=r"cannot be reached: .*kubectl version.*kubeconfig, context here"
    ):
        api.get("digits")


def test_a_connection_that_the_server_has_closed_is_opened_again(server: ApiServer, api: Experiments) -> None:
    server.put("tuneexperiments", experiment_object("digits"))
    server.closes_connections = True
    api.get("digits")
    assert api.get("digits")["metadata"]["name"] == "digits"


def test_trials_come_page_by_page_and_in_their_order(server: ApiServer, api: Experiments) -> None:
    for index in range(1201):
        server.put("tunetrials", trial_object("digits", index, "RUNNING"))
    server.put("tunetrials", trial_object("other", 0, "RUNNING"))
    trials = api.trials("digits")
    assert [trial["spec"]["index"] for trial in trials] == list(range(1201))
    assert len(server.requests) == 3


def test_a_name_that_is_taken_is_an_error_of_its_own(server: ApiServer, api: Experiments) -> None:
    server.put("tuneexperiments", experiment_object("digits"))
    with pytest.raises(AlreadyExistsError):
        api.create(experiment_object("digits"))


class TestLines:
    def test_are_yielded_whole(self) -> None:
        pieces = [b"on", b"", b"e\n\ntwo\r", b"\n1%\r2%\r", b"3%", b"\nfo", b"ur"]
        assert list(split_lines(pieces, partial=False)) == [b"one\n", b"\n", b"two\r\n", b"1%\r2%\r3%\n", b"four"]

    def test_parts_end_with_a_carriage_return(self) -> None:
        pieces = [b"on", b"", b"e\n\ntwo\r", b"\n1%\r2%\r", b"3%", b"\nfo", b"ur\r"]
        parts = [b"one\n", b"\n", b"two\r\n", b"1%\r", b"2%\r", b"3%\n", b"four\r"]
        assert list(split_lines(pieces, partial=True)) == parts

    def test_parts_are_yielded_as_they_come(self) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"10%\r"
            yield b"20%\r"
            raise AssertionError("the first part is known")

        assert next(split_lines(pieces(), partial=True)) == b"10%\r"

    def test_parts_of_a_line_without_end_are_bounded(self) -> None:
        parts = list(split_lines([b"x" * 1_000] * 1_000, partial=True))
        assert b"".join(parts) == b"x" * 1_000_000
        assert max(map(len, parts)) <= MAX_PART_BYTES + 1_000
