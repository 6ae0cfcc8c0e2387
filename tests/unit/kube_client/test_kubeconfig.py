from __future__ import annotations

import json
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.kube_client.kubeconfig import find_access


def config(user: dict[str, Any], cluster: dict[str, Any] | None = None, **context: Any) -> dict[str, Any]:
    return {
        "current-context": "dev",
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }


def write(folder: Path, document: dict[str, Any], name: str = "config") -> dict[str, str]:
    path = folder / name
    path.write_text(json.dumps(document))
    return {"KUBECONFIG": str(path)}


def test_a_token_becomes_a_header_and_is_in_no_repr(tmp_path: Path) -> None:
    access = find_access(write(tmp_path, config({"token": "s3cret"}, namespace="team")))
    assert (access.server, access.namespace) == ("https://api.example:6443", "team")
    assert access.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(access)
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED


def test_a_token_file_beside_the_kubeconfig_is_found(tmp_path: Path) -> None:
    access = find_access(write(tmp_path, config({"tokenFile": "token"})))
    assert access.token_file == str(tmp_path / "token")


def test_a_plug_in_is_asked_as_kubectl_asks_it(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    credential = '{"kind": "ExecCredential", "status": {"token": "\'$WHO\'"}}'
    plugin.write_text(f"#!/bin/sh\ntest -n \"$KUBERNETES_EXEC_INFO\" || exit 3\necho '{credential}'\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IEXEC)
    user = {"exec": {"command": "./plugin", "env": [{"name": "WHO", "value": "jane"}]}}
    assert find_access(write(tmp_path, config(user))).headers == {"Authorization": "Bearer jane"}


def test_a_plug_in_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    user = {"exec": {"command": "trialpod-no-such-plugin", "installHint": "get it from example.com"}}
    with pytest.raises(
        InvalidInputError, match=r"trialpod-no-such-plugin .*is not installed; get it from example.com"
    ):
        find_access(write(tmp_path, config(user)))
    user = {"exec": {"command": "sh", "args": ["-c", "echo token expired >&2; exit 4"]}}  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="failed with status 4: token expired; log in again"):
        find_access(write(tmp_path, config(user)))


def test_the_first_of_several_files_that_names_an_entry_counts(tmp_path: Path) -> None:
    first = write(tmp_path, config({"token": "one"}), "one")["KUBECONFIG"]
    second = config({"token": "two"})
    second["contexts"].append({"name": "prod", "context": {"cluster": "c", "user": "v"}})
    second["users"].append({"name": "v", "user": {"token": "three"}})
    both = {"KUBECONFIG": f"{first}:{write(tmp_path, second, 'two')['KUBECONFIG']}"}
    assert find_access(both).headers["Authorization"] == "Bearer one"
    assert find_access(both, context="prod").headers["Authorization"] == "Bearer three"


def test_what_is_missing_is_named_with_the_nearest(tmp_path: Path) -> None:
    environ = write(tmp_path, config({"token": "x"}))
    with pytest.raises(InvalidInputError, match="has no context 'devv'; did you mean 'dev'"):
        find_access(environ, context="devv")
    with pytest.raises(InvalidInputError, match="which is not there"):
        find_access({"KUBECONFIG": str(tmp_path / "none")})
    with pytest.raises(InvalidInputError, match="no cluster is known: there is no kubeconfig"):
        find_access({"HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["{", "- a", ""])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InvalidInputError, match="is not a kubeconfig"):
        find_access({"KUBECONFIG": str(tmp_path / "config")})


def test_a_client_certificate_is_loaded_and_not_left_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"), "-subj", "/CN=jane"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    left = tmp_path / "tmp"
    left.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(left))
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    cluster = {"certificate-authority": "cert.pem"}
    assert find_access(write(tmp_path, config(user, cluster))).tls is not None
    assert list(left.iterdir()) == []
    with pytest.raises(InvalidInputError, match=r"client-key is .*, which cannot be read"):
        find_access(write(tmp_path, config({**user, "client-key": "gone.pem"}, cluster)))
