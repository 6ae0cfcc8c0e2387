from __future__ import annotations

import pytest

from trialpod.errors import InvalidInputError
from trialpod.storage.s3.routes import endpoint_of, forget, plain, region_of


@pytest.fixture(autouse=True)
def nothing_remembered():
    forget()
    yield
    forget()


def test_a_uri_names_its_server_for_everything_in_the_bucket():
    assert plain("s3://ml/runs?endpoint=http://minio:9000/") == "s3://ml/runs"
    assert endpoint_of("s3://ml/other/place") == "http://minio:9000"
    assert endpoint_of("s3://another/place") == ""


class TestRaysForm:
    def test_server_scheme_and_region(self):
        uri = "s3://ml/runs?endpoint_override=minio:9000&scheme=http&region=eu-west-1&allow_bucket_creation=true"
        assert plain(uri) == "s3://ml/runs"
        assert (endpoint_of("s3://ml/x"), region_of("s3://ml/x")) == ("http://minio:9000", "eu-west-1")

    def test_a_server_without_scheme_is_secure(self):
        plain("s3://ml/runs?endpoint_override=minio.example:9000")
        assert endpoint_of("s3://ml/x") == "https://minio.example:9000"

    def test_a_region_alone(self):
        assert plain("s3://ml/runs?region=eu-west-1") == "s3://ml/runs"
        assert (endpoint_of("s3://ml/x"), region_of("s3://ml/x")) == ("", "eu-west-1")


def test_what_names_no_server_stays_as_it_is():
    for uri in ("s3://ml/runs", "runs/what?", "file:///data/a?b"):
        assert plain(uri) == uri


@pytest.mark.parametrize("query", ["", "endpoint=", "endpoint=http://a&secret=b"])
def test_anything_else_after_the_place_is_refused(query):
    with pytest.raises(InvalidInputError, match=r"there can only be the server"):
        plain(f"s3://ml/runs?{query}")
