"""Fixtures of the end-to-end tests: the built stack, clusters, and logs kept when a test fails."""

import hashlib
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from e2e.stack.build import Stack, build
from e2e.stack.cluster import Cluster
from e2e.stack.control_plane import ControlPlane
from e2e.stack.isochrone import Isochrone, install
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S

ClusterFactory = Callable[..., Cluster]
NamespaceFactory = Callable[..., str]

OWNERS_FIRST = (
    "/apis/apps/v1/namespaces/{}/deployments",
    "/apis/apps/v1/namespaces/{}/replicasets",
    "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    "/api/v1/namespaces/{}/pods",
)


@pytest.fixture(scope="session")
def stack_bin(request: pytest.FixtureRequest) -> Stack:
    """The stack's programs, built if missing; the error of a failed build holds the end of its log."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        return build()
    # A first build takes minutes: its progress must be seen.
    with capture.global_and_fixture_disabled():
        return build()


@pytest.fixture(scope="module")
def cluster_factory(stack_bin: Stack, request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Makes clusters that end with the module; arguments are those of `Cluster`."""
    module = request.module.__name__.rpartition(".")[2]
    with ExitStack() as open_clusters:

        def make(nodes: Any = (), **options: Any) -> Cluster:
            whole = {"name": module, "stack": stack_bin} | options
            return open_clusters.enter_context(Cluster(nodes, **whole))

        yield make


class Shared:
    """One cluster with Isochrone for one module after the other; each leaves it as it found it, or spoilt."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._open = stack, ExitStack()
        self._isochrone: Isochrone | None = None

    def take(self) -> Isochrone:
        """It runs and is ready; a new one if there is none, or something of the old one ended."""
        if self._isochrone is not None:
            try:
                self._isochrone.wait_ready()
            except (RuntimeError, TimeoutError):
                self.spoilt()
        if self._isochrone is None:
            self._isochrone = install(
                self._open.enter_context(Cluster(grid(16), name="shared", audit=True, stack=self._stack))
            )
        return self._isochrone

    def of(self, cluster: Cluster) -> Isochrone | None:
        """What is installed there, if this is the shared cluster."""
        return self._isochrone if self._isochrone is not None and self._isochrone.cluster is cluster else None

    def spoilt(self) -> None:
        """Ends it: nobody can use it any more."""
        self._isochrone = None
        self._open.close()


@pytest.fixture(scope="session")
def shared(stack_bin: Stack) -> Iterator[Shared]:
    """The cluster that modules share; they ask for `cluster` and `isochrone`."""
    made = Shared(stack_bin)
    try:
        yield made
    finally:
        made.spoilt()


@pytest.fixture(scope="module")
def cluster(shared: Shared) -> Cluster:
    """A cluster of 16 GPU nodes with an audit log and Isochrone, shared with other modules: leave it as you found it.

    A module that needs another one has a fixture of this name that makes it with `cluster_factory`.
    """
    return shared.take().cluster


@pytest.fixture(scope="module")
def isochrone(cluster: Cluster, shared: Shared) -> Isochrone:
    """Isochrone on the module's cluster: every test that asks for it finds pods tagged and gangs planned."""
    common = shared.of(cluster)
    return install(cluster) if common is None else common


@pytest.fixture
def new_namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[NamespaceFactory]:
    """Makes namespaces of the test's own (`new_namespace("other", {label: value})`), emptied at its end."""
    # Names end at 63 characters; the hash keeps tests with the same beginning apart.
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:6]
    made: list[str] = []

    def make(suffix: str = "", labels: dict[str, str] | None = None) -> str:
        made.append(cluster.create_namespace("-".join(filter(None, (name, suffix, digest))), labels))
        return made[-1]

    yield make
    for namespace in made:
        empty(cluster, namespace)


@pytest.fixture
def namespace(new_namespace: NamespaceFactory) -> str:
    """One namespace of the test's own."""
    return new_namespace()


def empty(cluster: Cluster, namespace: str) -> None:
    """Deletes what runs in a namespace, owners before what they own, and waits until its room is free again."""
    for path in OWNERS_FIRST:
        collection = path.format(namespace)
        names = [item["metadata"]["name"] for item in cluster.api("GET", collection)["items"]]
        how = "gracePeriodSeconds=0&propagationPolicy=Background"
        paths = [f"{collection}/{name}?{how}" for name in names]
        with ThreadPoolExecutor(16) as pool:
            codes = list(pool.map(lambda each: cluster.client.request("DELETE", each)[0], paths))
        # Gone already is as good: its owner's end took it along.
        assert {code for code in codes if code not in (200, 202, 404)} == set()
    cluster.wait_for(lambda: not cluster.pods(namespace), LIMIT_S, f"namespace {namespace} is empty")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keeps the logs of every running cluster under the name of the test that failed."""
    report: Any = yield
    if report.failed and item.get_closest_marker("e2e") is not None:
        for each in list(ControlPlane.live):
            retained = each.keep_logs(f"{each.name}-{item.name}")
            report.sections.append(("logs", f"{each.name}: {retained}"))
    return report
