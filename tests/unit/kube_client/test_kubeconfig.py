from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.kube_client.kubeconfig import Access, find_access

VERSION = {"apiVersion": "client.authentication.k8s.io/v1"}


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


def token(access: Access) -> str | None:
    """The authorization of the next request."""
    found = access.configuration.get_api_key_with_prefix("BearerToken")
    assert found is None or isinstance(found, str)
    return found


class TestUser:
    def test_token_is_sent_and_is_in_no_repr(self, tmp_path: Path) -> None:
        access = find_access(write(tmp_path, config({"token": "s3cret"}, namespace="team")))
        assert (access.server, access.namespace) == ("https://api.example:6443", "team")
        assert token(access) == "Bearer s3cret"
        assert "s3cret" not in repr(access)
        assert access.configuration.verify_ssl

    def test_token_file_beside_the_kubeconfig_is_read_again(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("one\n")
        access = find_access(write(tmp_path, config({"tokenFile": "token"})))
        assert token(access) == "Bearer one"
        (tmp_path / "token").write_text("two\n")
        assert token(access) == "Bearer two"

    def test_impersonation_is_asked_for(self, tmp_path: Path) -> None:
        user = {
            "token": "x",
            "as": "jane",
            "as-uid": 7,
            "as-groups": ["ml", "ops"],
            "as-user-extra": {"acme.com/project %": ["a", "b"]},
        }
        assert find_access(write(tmp_path, config(user))).headers == [
            ("Impersonate-User", "jane"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Group", "ml"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Extra-acme.com%2Fproject%20%25", "a"),
            ("Impersonate-Extra-acme.com%2Fproject%20%25", "b"),
        ]
        with pytest.raises(InvalidInputError, match=r"context dev: as-groups of the user is 'ml\\r\\nX: y'"):
            find_access(write(tmp_path, config({**user, "as-groups": ["ml\r\nX: y"]})))

    def test_client_certificate_is_loaded(self, tmp_path: Path) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"), "-subj", "/CN=jane"]
        subprocess.run([*command, *files], check=True, capture_output=True)
        user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
        cluster = {"certificate-authority": "cert.pem"}
        found = find_access(write(tmp_path, config(user, cluster))).configuration
        assert (found.cert_file, found.key_file) == (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
        with pytest.raises(InvalidInputError, match=r"File does not exist: .*gone.pem"):
            find_access(write(tmp_path, config({**user, "client-key": "gone.pem"}, cluster)))
        with pytest.raises(InvalidInputError, match="not base64"):
            find_access(write(tmp_path, config({"client-certificate-data": "x"}, cluster)))

    def test_key_in_the_kubeconfig_is_readable_by_owner_only(self, tmp_path: Path) -> None:
        user = {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}
        environ = write(tmp_path, config(user))
        (tmp_path / "tmp").mkdir()
        code = (
            "import os, sys; from trialpod_operator.kube_client.kubeconfig import Access, find_access;"
            "found = find_access().configuration; print(oct(os.stat(found.key_file).st_mode & 0o777))"
        )
        environ |= {"TMPDIR": str(tmp_path / "tmp"), "PATH": os.environ["PATH"]}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "0o600\n"
        assert list((tmp_path / "tmp").iterdir()) == []


class TestPlugIn:
    def test_is_asked_as_kubectl_asks_it(self, tmp_path: Path) -> None:
        plugin = tmp_path / "plugin"
        kind = '"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
        credential = f'{{{kind}, "status": {{"token": "\'$WHO\'"}}}}'
        plugin.write_text(f"#!/bin/sh\ntest -n \"$KUBERNETES_EXEC_INFO\" || exit 3\necho '{credential}'\n")
        plugin.chmod(plugin.stat().st_mode | stat.S_IEXEC)
        user = {"exec": {**VERSION, "command": "./plugin", "env": [{"name": "WHO", "value": "jane"}]}}
        assert token(find_access(write(tmp_path, config(user)))) == "Bearer jane"

    def test_that_is_missing_is_named(self, tmp_path: Path) -> None:
        user = {"exec": {**VERSION, "command": "trialpod-no-such-plugin", "installHint": "get it from example.com"}}
        with pytest.raises(
            InvalidInputError, match=r"trialpod-no-such-plugin .*is not installed; get it from example.com"
        ):
            find_access(write(tmp_path, config(user)))

    def test_that_fails_is_named(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        user = {"exec": {**VERSION, "command": "sh", "args": ["-c", "echo token expired >&2; exit 4"]}}
        with pytest.raises(InvalidInputError, match=r"failed: .* returned 4. token expired; log in again"):
            find_access(write(tmp_path, config(user)))
        assert capfd.readouterr() == ("", "")


class TestFiles:
    def test_the_first_that_names_an_entry_counts(self, tmp_path: Path) -> None:
        first = write(tmp_path, config({"token": "one"}), "one")["KUBECONFIG"]
        second = config({"token": "two"})
        second["current-context"] = "prod"
        second["contexts"].append({"name": "prod", "context": {"cluster": "c", "user": "v"}})
        second["users"].append({"name": "v", "user": {"token": "three"}})
        both = {"KUBECONFIG": f"{first}:{write(tmp_path, second, 'two')['KUBECONFIG']}"}
        assert token(find_access(both)) == "Bearer one"
        assert token(find_access(both, context="prod")) == "Bearer three"

    def test_what_is_missing_is_named_with_the_nearest(self, tmp_path: Path) -> None:
        environ = write(tmp_path, config({"token": "x"}))
        with pytest.raises(InvalidInputError, match="has no context 'devv'; did you mean 'dev'"):
            find_access(environ, context="devv")
        with pytest.raises(InvalidInputError, match="which does not exist"):
            find_access({"KUBECONFIG": str(tmp_path / "none")})
        with pytest.raises(InvalidInputError, match="no cluster is known: there is no kubeconfig"):
            find_access({"HOME": str(tmp_path)})

    @pytest.mark.parametrize("text", ["{", "- a", ""])
    def test_one_that_is_no_kubeconfig_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config").write_text(text)
        with pytest.raises(InvalidInputError, match="is not a kubeconfig"):
            find_access({"KUBECONFIG": str(tmp_path / "config")})

    def test_without_the_package_its_command_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "kubernetes.client", None)
        with pytest.raises(InvalidInputError, match=r"pip install 'trialpod\[kubernetes\]'"):
            find_access(write(tmp_path, config({"token": "x"})))
