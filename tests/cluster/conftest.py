"""The running test cluster for tests, a fresh namespace for each, and what was continuing there when one fails."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_access import ROOT, Cluster, not_inside
from operator_release import NAMESPACE, RELEASE, Operator
from testcluster import images, layout

TIMEOUT_SECONDS = 300
TOGETHER = frozenset(
    [
        "test_admission_policy",
        "test_any_image_cluster",
        "test_backend_cluster",
        "test_causes_cluster",
        "test_chart",
        "test_command_trials_cluster",
        "test_commands_cluster",
        "test_endings",
        "test_gitops_cluster",
        "test_groups_cluster",
        "test_lifecycle",
        "test_mistakes_cluster",
        "test_ray_scripts_cluster",
        "test_recipes",
        "test_remedies_cluster",
        "test_restore",
        "test_retry_cluster",
        "test_scoped_storage",
        "test_trial_objects_cluster",
        "test_ui_served",
        "test_value_types_cluster",
    ]
)
"""Modules whose tests run side by side: each stays in a namespace of its own, and ends nothing that others use.

Single tests of other modules say so by the marker `together`.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster/" in str(item.path):
            item.add_marker(pytest.mark.cluster)
            if "no_shared_operator" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.apart)
            elif item.path.stem in TOGETHER:
                item.add_marker(pytest.mark.together)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, float]:
    """Return where a test comes: without the shared operator after all others; side by side, long ones first."""
    apart = item.get_closest_marker("apart") is not None
    timeout = item.get_closest_marker("timeout")
    side_by_side = apart or item.get_closest_marker("together") is not None
    return apart, -float(timeout.args[0]) if timeout is not None and side_by_side else 0.0


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    kinds = {item.get_closest_marker("apart") is not None for item in session.items}
    if len(kinds) > 1 and hasattr(session.config, "workerinput"):
        pytest.exit(
            "tests that share the operator cannot run beside those without it: -m apart, or -m 'not apart'", 4
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when in ("setup", "call"):
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Cluster) and value.namespace != "default":
                report.sections.append((f"the cluster's namespace {value.namespace}", value.describe_failure()))
            elif isinstance(value, Operator):
                report.sections.append(("the operator's log", value.describe_failure()))
                if value.is_own:
                    report.sections.append(("the namespace that it serves", value.served.describe_failure()))
    return report


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster; tests fail, and are not skipped, when there is none."""
    reason = not_inside()
    if reason:
        pytest.fail(reason, pytrace=False)
    made = Cluster()
    made.sweep_namespaces()
    with _install_lock():
        _apply_definitions(made)  # of two releases that make them at the same time, one fails
    return made


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Operator:
    """The operator, installed from the chart with the image of this tree; it stays when the tests are over."""
    with _install_lock():  # Helm refuses to work on one release twice at the same time
        return Operator.install(cluster)


@pytest.fixture(scope="session")
def no_shared_operator(cluster: Cluster) -> None:
    """Nobody serves all namespaces; the definitions are there."""
    with _install_lock():
        Cluster(NAMESPACE).helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
        _apply_definitions(cluster)


@contextmanager
def _install_lock() -> Iterator[None]:
    with open(layout.CACHE / "operator-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _apply_definitions(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    # kubectl gives up at once on one that was made right now, and has no conditions yet.
    wait = ("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
    cluster.wait_for(lambda: cluster.kubectl(*wait), "the definitions are established")


@pytest.fixture
def own_operator(cluster: Cluster, no_shared_operator: None) -> Iterator[Operator]:
    """An operator that the test may kill and change: it serves `own_operator.served`, and nobody else does."""
    with Operator.own(cluster) as made:
        yield made


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster as seen from a fresh namespace with the Secret `minio`; deleted afterwards."""
    made = cluster.make_namespace()
    yield made
    cluster.delete_namespace(made.namespace)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of one static program, on the nodes: climb.c."""
    program = tmp_path_factory.mktemp("program") / "climb"
    subprocess.run(["gcc", "-static", "-Os", "-s", "-o", program, Path(__file__).with_name("climb.c")], check=True)
    reference = f"docker.io/trialpod/climb:{hashlib.sha256(program.read_bytes()).hexdigest()[:12]}"
    images.import_program(reference, program, "climb")
    return reference


@pytest.fixture(scope="session")
def musl_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same program linked with musl, in an image with that C library alone: as in Alpine, but Debian's build."""
    program = tmp_path_factory.mktemp("musl") / "climb"
    subprocess.run(["musl-gcc", "-Os", "-s", "-o", program, Path(__file__).with_name("climb.c")], check=True)
    library = Path("/lib/ld-musl-x86_64.so.1").resolve().read_bytes()
    reference = f"docker.io/trialpod/climb-musl:{hashlib.sha256(library + program.read_bytes()).hexdigest()[:12]}"
    images.import_files(
        reference, [("lib/ld-musl-x86_64.so.1", library, 0o755), ("climb", program.read_bytes(), 0o755)]
    )
    return reference


@pytest.fixture
def restricted(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace that takes pods of the restricted standard only."""
    made = cluster.make_namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    yield made
    cluster.delete_namespace(made.namespace)


@pytest.fixture
def faults(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster for tests that break it: whatever they end is started again afterwards."""
    yield cluster
    cluster.heal()
