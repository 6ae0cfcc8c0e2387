"""Who a user is and what the user may do, as the API server answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from trialpod_operator.api.api_errors import api_error
from trialpod_operator.cluster_ui.reviews import (
    ACCESS_REVIEWS,
    BELIEVED_S,
    TOKEN_REVIEWS,
    UNKNOWN_TOKENS,
    Reviews,
    ReviewUnavailableError,
)
from trialpod_operator.kube_client.api import ClusterUnreachableError
from trialpod_operator.ui.access import User

Json = dict[str, Any]
JANE = {"username": "jane", "uid": "u1", "groups": ["team"], "extra": {"scopes": ["a"]}}


class Api:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Json]] = []
        self.now = 0.0
        self.answer: Mapping[str, Any] | Exception = {"authenticated": True, "user": JANE}

    def __call__(self, path: str, body: Json) -> Mapping[str, Any]:
        self.asked.append((path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"status": self.answer}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def reviews(api: Api) -> Reviews:
    return Reviews(api, lambda: api.now)


class TestUsers:
    def test_are_whom_the_api_server_names(self, api: Api, reviews: Reviews) -> None:
        user = reviews.user("secret-token")
        assert user == User("jane", "u1", ("team",), {"scopes": ["a"]}, token="secret-token")
        ((path, body),) = api.asked
        assert path == TOKEN_REVIEWS
        # Without audiences: a token for the operator, as pods of trials have, is not accepted.
        assert body["spec"] == {"token": "secret-token"}
        assert "secret" not in repr(user)

    def test_are_believed_for_seconds(self, api: Api, reviews: Reviews) -> None:
        assert reviews.user("t") is not None
        api.answer = {"authenticated": False}
        api.now += BELIEVED_S - 0.1
        assert reviews.user("t") is not None
        api.now += 0.2
        assert reviews.user("t") is None
        assert len(api.asked) == 2

    @pytest.mark.parametrize("token", ["", "a\nb", "é", "x" * 20_000])
    def test_what_is_no_token_is_not_asked_about(self, api: Api, reviews: Reviews, token: str) -> None:
        assert reviews.user(token) is None
        assert api.asked == []

    @pytest.mark.parametrize("answer", [{}, {"authenticated": "true", "user": JANE}, {"authenticated": True}])
    def test_only_a_clear_yes_counts(self, api: Api, reviews: Reviews, answer: Json) -> None:
        api.answer = answer
        assert reviews.user("t") is None

    def test_an_error_is_no_answer_and_hides_the_token(self, api: Api, reviews: Reviews) -> None:
        for failure in (
            ClusterUnreachableError("secret-token"),
            api_error("POST", TOKEN_REVIEWS, 403, {"reason": "Forbidden", "message": "secret-token"}),
        ):
            api.answer = failure
            with pytest.raises(ReviewUnavailableError) as caught:
                reviews.user("secret-token")
            assert "secret-token" not in str(caught.value)
        api.answer = {"authenticated": True, "user": JANE}
        assert reviews.user("secret-token") is not None

    def test_a_flood_of_tokens_does_not_reach_the_api_server(self, api: Api, reviews: Reviews) -> None:
        api.answer = {"authenticated": False}
        for number in range(int(UNKNOWN_TOKENS.burst)):
            assert reviews.user(f"t{number}") is None
        with pytest.raises(ReviewUnavailableError, match="too many tokens"):
            reviews.user("one more")
        assert len(api.asked) == UNKNOWN_TOKENS.burst

    def test_a_flood_of_tokens_locks_no_user_out(self, api: Api, reviews: Reviews) -> None:
        def flood() -> None:
            with contextlib.suppress(ReviewUnavailableError):
                for number in range(1000):
                    reviews.user(f"{api.now}-{number}")

        yes = api.answer
        assert reviews.user("t") is not None
        api.now += BELIEVED_S + 1.0
        api.answer = {"authenticated": False}
        flood()
        api.answer = yes
        assert reviews.user("t") is not None
        api.now += BELIEVED_S + 1.0
        api.answer = {"authenticated": False}
        assert reviews.user("t") is None
        flood()
        api.now += BELIEVED_S + 0.001
        flood()
        with pytest.raises(ReviewUnavailableError):  # it is a token like any other now
            reviews.user("t")


class TestRights:
    def test_are_asked_of_the_whole_user(self, api: Api, reviews: Reviews) -> None:
        user = reviews.user("t")
        assert user is not None
        api.answer = {"allowed": True}
        assert reviews.may(user, "get", "tuneexperiments", "team", "climb")
        assert reviews.may(user, "get", "tuneexperiments", "team", "climb")
        (_, asked) = api.asked
        assert asked[0] == ACCESS_REVIEWS
        spec = asked[1]["spec"]
        assert {key: spec[key] for key in ("user", "uid", "groups", "extra")} == {
            "user": "jane",
            "uid": "u1",
            "groups": ["team"],
            "extra": {"scopes": ["a"]},
        }
        assert spec["resourceAttributes"] == {
            "verb": "get",
            "group": "trialpod.dev",
            "resource": "tuneexperiments",
            "namespace": "team",
            "name": "climb",
        }

    def test_one_answer_is_for_one_question(self, api: Api, reviews: Reviews) -> None:
        jane, joe = User("jane"), User("joe")
        api.answer = {"allowed": True}
        assert reviews.may(jane, "list", "tuneexperiments", "team")
        api.answer = {"allowed": False}
        assert not reviews.may(jane, "list", "tuneexperiments", "other")
        assert not reviews.may(jane, "patch", "tuneexperiments", "team")
        assert not reviews.may(joe, "list", "tuneexperiments", "team")
        assert not reviews.may(User("jane", groups=("x",)), "list", "tuneexperiments", "team")
        api.now += BELIEVED_S
        assert not reviews.may(jane, "list", "tuneexperiments", "team")

    def test_a_denial_goes_before_a_permission(self, api: Api, reviews: Reviews) -> None:
        api.answer = {"allowed": True, "denied": True}
        assert not reviews.may(User("jane"), "list", "tuneexperiments", "team")

    def test_logs_are_of_the_core_group(self, api: Api, reviews: Reviews) -> None:
        api.answer = {"allowed": True}
        assert reviews.may(User("jane"), "get", "pods/log", "team")
        attributes = api.asked[0][1]["spec"]["resourceAttributes"]
        assert (attributes["group"], attributes["resource"], attributes["subresource"]) == ("", "pods", "log")
