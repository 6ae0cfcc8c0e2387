"""Tokens that the API server's keys and the watch of pods tell without a question, and those that they do not."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.cluster.identity.reviewer import PodIdentity, TokenReviewer
from trialpod_operator.cluster.identity.token_keys import MAX_AGE_S, RETRY_S, TokenKeys, read_keys
from trialpod_operator.cluster.kube import ApiServer

NOW = 1_700_000_000.0
ISSUER = "https://kubernetes.default.svc"
POD = PodIdentity(namespace="team", pod_name="digits-1", pod_uid="uid-1")
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
EC_384_KEY = ec.generate_private_key(ec.SECP384R1())


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def rsa_jwk(key: rsa.RSAPrivateKey, name: str, **more: Any) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "use": "sig", "kid": name, "n": number(numbers.n), "e": number(numbers.e), **more}


def ec_jwk(key: ec.EllipticCurvePrivateKey, name: str, curve: str, **more: Any) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    size = (key.curve.key_size + 7) // 8
    x, y = (encoded(value.to_bytes(size, "big")) for value in (numbers.x, numbers.y))
    return {"kty": "EC", "use": "sig", "kid": name, "crv": curve, "x": x, "y": y, **more}


KEYS = {
    "keys": [
        rsa_jwk(RSA_KEY, "rsa", alg="RS256"),
        ec_jwk(EC_KEY, "ec", "P-256"),
        ec_jwk(EC_384_KEY, "ec-384", "P-384", alg="ES384"),
    ]
}
SIGNERS: dict[str, Any] = {"rsa": ("RS256", RSA_KEY), "ec": ("ES256", EC_KEY), "ec-384": ("ES384", EC_384_KEY)}


def claims(**changes: Any) -> dict[str, Any]:
    found = {
        "iss": ISSUER,
        "aud": ["trialpod.dev"],
        "sub": "system:serviceaccount:team:trainer",
        "exp": NOW + 3600,
        "nbf": NOW - 5,
        "kubernetes.io": {
            "namespace": "team",
            "serviceaccount": {"name": "trainer", "uid": "uid-of-account"},
            "pod": {"name": POD.pod_name, "uid": POD.pod_uid},
        },
    }
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


def token(values: Any = None, *, kid: str = "rsa", header: Any = None, key: Any = None, alg: str = "") -> str:
    algorithm, signer = SIGNERS.get(kid, SIGNERS["rsa"])
    algorithm, signer = alg or algorithm, key or signer
    head = {"alg": algorithm, "kid": kid} if header is None else header
    data = ".".join(encoded(json.dumps(each).encode()) for each in (head, claims() if values is None else values))
    return f"{data}.{encoded(signature(data.encode(), algorithm, signer))}"


def signature(data: bytes, algorithm: str, key: Any) -> bytes:
    method = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}[algorithm[2:]]
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), method)
    r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(method)))
    size = (key.curve.key_size + 7) // 8
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


class World:
    """The API server's keys, and what the watch has shown."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer: tuple[str, Mapping[str, Any]] | Exception = (ISSUER, KEYS)
        self.asked = 0
        self.pods: dict[tuple[str, str, str], dict[str, Any]] = {
            ("team", POD.pod_name, POD.pod_uid): {"metadata": {}, "spec": {"serviceAccountName": "trainer"}}
        }
        self.keys = TokenKeys(
            self.fetch, lambda *which: self.pods.get(which), clock=lambda: self.now, wall_clock=lambda: NOW
        )

    async def fetch(self) -> tuple[str, Mapping[str, Any]]:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def pod_of(self, text: str) -> PodIdentity | None:
        return run(self.keys.pod_of(text))


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


@pytest.fixture
def world() -> World:
    return World()


class TestCertain:
    @pytest.mark.parametrize("kid", SIGNERS)
    def test_pod_of_a_signed_token_is_known(self, world: World, kid: str) -> None:
        assert world.pod_of(token(kid=kid)) == POD

    def test_one_audience_may_stand_without_a_list(self, world: World) -> None:
        assert world.pod_of(token(claims(aud="trialpod.dev"))) == POD


NOT_CERTAIN = {
    "signed by another key": token(key=OTHER_RSA_KEY),
    "another key's name": token(kid="ec", key=RSA_KEY, alg="RS256"),
    "an algorithm that the key is not for": token(alg="RS512"),
    "an unknown key": token(header={"alg": "RS256", "kid": "new"}),
    "no key's name": token(header={"alg": "RS256"}),
    "a key in its header": token(header={"alg": "RS256", "kid": "rsa", "jwk": rsa_jwk(OTHER_RSA_KEY, "rsa")}),
    "something critical": token(header={"alg": "RS256", "kid": "rsa", "crit": ["b64"]}),
    "no algorithm": token(header={"alg": "none", "kid": "rsa"}),
    "an algorithm that is none": token(header={"alg": ["RS256"], "kid": "rsa"}),
    "a symmetric one": token(header={"alg": "HS256", "kid": "rsa"}),
    "a header that is a list": token(header=["alg"]),
    "another issuer": token(claims(iss="https://another")),
    "no issuer": token(claims(iss=None)),
    "another audience": token(claims(aud=["https://kubernetes.default.svc"])),
    "no audience": token(claims(aud=None)),
    "expired": token(claims(exp=NOW)),
    "no expiry": token(claims(exp=None)),
    "an expiry that is no time": token(claims(exp="tomorrow")),
    "not valid yet": token(claims(nbf=NOW + 5)),
    "a user": token(claims(sub="system:admin")),
    "an account of another name": token(claims(sub="system:serviceaccount:team:default")),
    "an account of another namespace": token(claims(sub="system:serviceaccount:other:trainer")),
    "bound to nothing": token(claims(**{"kubernetes.io": None})),
    "bound to a Secret": token(
        claims(**{"kubernetes.io": {**claims()["kubernetes.io"], "pod": None, "secret": {"name": "a", "uid": "b"}}})
    ),
    "bound to a pod without a uid": token(
        claims(**{"kubernetes.io": {**claims()["kubernetes.io"], "pod": {"name": POD.pod_name}}})
    ),
    "bound to a pod that is not there": token(
        claims(**{"kubernetes.io": {**claims()["kubernetes.io"], "pod": {"name": POD.pod_name, "uid": "uid-2"}}})
    ),
    "claims that are a list": token(["claims"]),
    "two parts": ".".join(token().split(".")[1:]),
    "four parts": f"{token()}.{token().split('.')[2]}",
    "no ASCII": "ä.ö.ü",
    "nothing": "",
}


class TestNotCertain:
    @pytest.mark.parametrize("text", NOT_CERTAIN.values(), ids=NOT_CERTAIN.keys())
    def test_token_is_left_to_the_api_server(self, world: World, text: str) -> None:
        assert world.pod_of(text) is None
        assert world.pod_of(token()) == POD

    @given(st.data())
    def test_no_changed_byte_is_believed(self, data: st.DataObject) -> None:
        """Except in the last character of a part, of which base64 ignores some bits."""
        good = token(kid=data.draw(st.sampled_from(sorted(SIGNERS))))
        at = data.draw(st.integers(0, len(good) - 2).filter(lambda at: good[at] != "." and good[at + 1] != "."))
        other = data.draw(st.sampled_from("ABCxyz0189-_.").filter(lambda each: each != good[at]))
        assert World().pod_of(good[:at] + other + good[at + 1 :]) is None

    def test_pod_that_is_being_deleted_is_not_certain(self, world: World) -> None:
        next(iter(world.pods.values()))["metadata"]["deletionTimestamp"] = "2026-11-26T00:00:00Z"
        assert world.pod_of(token()) is None

    def test_pod_of_another_account_is_not_certain(self, world: World) -> None:
        next(iter(world.pods.values()))["spec"]["serviceAccountName"] = "default"
        assert world.pod_of(token()) is None


class TestKeys:
    def test_they_are_asked_for_once_in_five_minutes(self, world: World) -> None:
        for world.now in (0.0, 1.0, MAX_AGE_S - 1.0):
            assert world.pod_of(token()) == POD
        assert world.asked == 1
        world.now = MAX_AGE_S
        world.answer = (ISSUER, {"keys": [rsa_jwk(OTHER_RSA_KEY, "rsa")]})
        assert world.pod_of(token()) is None
        assert world.pod_of(token(key=OTHER_RSA_KEY)) == POD
        assert world.asked == 2

    def test_many_callers_ask_once(self, world: World) -> None:
        async def many() -> list[PodIdentity | None]:
            return await asyncio.gather(*(world.keys.pod_of(token()) for _ in range(50)))

        assert run(many()) == [POD] * 50
        assert world.asked == 1

    @pytest.mark.parametrize(
        "answer", [OSError("away"), ("", KEYS), (ISSUER, {}), (ISSUER, {"keys": ["x"]}), (ISSUER, {"keys": None})]
    )
    def test_without_them_nothing_is_certain(self, world: World, answer: Any) -> None:
        """And they are asked for again after a while."""
        world.answer = answer
        assert world.pod_of(token()) is None
        assert world.pod_of(token()) is None
        assert world.asked == 1
        world.answer, world.now = (ISSUER, KEYS), RETRY_S
        assert world.pod_of(token()) == POD

    def test_old_ones_do_not_outlive_an_outage(self, world: World) -> None:
        assert world.pod_of(token()) == POD
        world.answer, world.now = OSError("away"), MAX_AGE_S
        assert world.pod_of(token()) is None

    @pytest.mark.parametrize(
        "key",
        [
            rsa_jwk(RSA_KEY, "x", use="enc"),
            rsa_jwk(RSA_KEY, ""),
            rsa_jwk(rsa.generate_private_key(65537, 1024), "x"),
            {**rsa_jwk(RSA_KEY, "x"), "n": "?"},
            {**ec_jwk(EC_KEY, "x", "P-256"), "y": encoded(bytes(32))},
            ec_jwk(EC_384_KEY, "x", "P-256"),
            ec_jwk(EC_KEY, "x", "secp256k1"),
            {"kty": "oct", "kid": "x", "k": encoded(b"secret")},
        ],
    )
    def test_what_is_no_key_for_tokens_is_left_out(self, key: dict[str, Any]) -> None:
        assert list(read_keys({"keys": [key, *KEYS["keys"]]})) == ["rsa", "ec", "ec-384"]


class Server(ApiServer):
    """Answers as the API server does: keys are of a media type of their own."""

    async def request(self, method: str, path: str, **options: Any) -> Any:
        answers = {"/.well-known/openid-configuration": {"issuer": ISSUER}, "/openid/v1/jwks": KEYS}
        assert (method, options) == ("GET", {"text": True})
        return json.dumps(answers[path])

    def may_change(self) -> bool:
        return True


def test_keys_are_read_from_the_api_server() -> None:
    assert run(Server().token_keys()) == (ISSUER, KEYS)


class TestReviewer:
    """A token that is certain is not reviewed, for as long as a review would be believed."""

    def reviewer(self, world: World, reviews: list[str]) -> TokenReviewer:
        async def review(text: str) -> Mapping[str, Any]:
            reviews.append(text)
            return {"authenticated": False, "error": "withdrawn"}

        return TokenReviewer(review, world.keys.pod_of, clock=lambda: NOW + world.now)

    def test_first_use_asks_nobody_and_later_ones_do(self, world: World) -> None:
        reviews: list[str] = []
        reviewer, header = self.reviewer(world, reviews), b"Bearer " + token().encode()
        assert run(reviewer.identify(header)) == POD
        assert reviewer.cached(header) == POD
        assert reviews == []
        world.now = 301.0
        with pytest.raises(Exception, match="withdrawn"):
            run(reviewer.identify(header))
        assert len(reviews) == 1

    def test_uncertain_one_is_reviewed(self, world: World) -> None:
        reviews: list[str] = []
        with pytest.raises(Exception, match="withdrawn"):
            run(self.reviewer(world, reviews).identify(b"Bearer " + token(key=OTHER_RSA_KEY).encode()))
        assert len(reviews) == 1
