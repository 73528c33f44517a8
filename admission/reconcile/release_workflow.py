"""EDGE: what happens beside the loop once a gang has a plan: nominate, release, wait to see it, make the PodGroup.

Each step may be repeated, by us or by a successor; a step that fails gives the room back or keeps it until somebody can
say how the write ended (`GangState.unconfirmed`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final, Protocol

from admission.gangs.gang_view import GangView, view_of
from admission.gangs.template_revision import TemplateOf, no_template
from admission.recognition.replica_group import units_by_uid
from admission.reconcile.gang_state import GangState
from admission.reconcile.timing import ReconcileSettings
from admission.release.pod_group import TopOwner, differs, group_names, is_ours, wanted_pod_group
from admission.release.pod_group_schema import OPTIONAL
from admission.release.pod_writer import PodRelease, PodWriter
from scheduler.model.decision import Plan
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GATE, PHASES
from topology.objects import Pod, PodGroup

_LAG_PER_GANG_S: Final = 0.05
"""How far Volcano's watch may be behind ours for each gang that is let go at this moment, up to `other_watch_s`."""


class GroupAnnotations(Protocol):
    """What a PodGroup of ours carries."""

    def group_annotations(self, plan: Plan | None) -> dict[str, str]: ...


class ReleaseWorkflow:
    """Carries out what the loop decided. Everything returns whether it is done, or must be tried again."""

    def __init__(
        self,
        state: ClusterState,
        pod_writer: PodWriter,
        annotations: GroupAnnotations,
        pod_groups: Mapping[str, PodGroup],
        top_owner: TopOwner,
        more_later: Callable[[Sequence[Pod]], bool],
        settings: ReconcileSettings,
        template_of: TemplateOf = no_template,
    ) -> None:
        self._state, self.pod_writer, self._annotations = state, pod_writer, annotations
        self._pod_groups, self._top_owner, self.more_later = pod_groups, top_owner, more_later
        self.settings, self._template_of = settings, template_of
        self._under_way = 0
        self.known_fields: frozenset[str] = frozenset(OPTIONAL)  # of a PodGroup, in this cluster

    async def release(self, view: GangView, result: Plan, releases: Sequence[PodRelease], gang: GangState) -> bool:
        """As `_nominate_and_release`, counted while it is under way."""
        self._under_way += 1
        try:
            return await self._nominate_and_release(view, result, releases, gang)
        finally:
            self._under_way -= 1

    async def _nominate_and_release(
        self, view: GangView, result: Plan, releases: Sequence[PodRelease], gang: GangState
    ) -> bool:
        """Nominate, release, PodGroup. Pods that cannot go are given back; with too few left nobody goes."""
        nominated = await self.pod_writer.nominate(releases)
        ready = nominated & self._state.gangs().get(view.key, {}).keys()  # some may have gone meanwhile
        ready -= self._homeless(releases)
        units = units_by_uid([release.pod for release in releases])
        split_groups = {unit for uid, unit in units.items() if uid not in ready}
        ready = {uid for uid in ready if units.get(uid) not in split_groups}
        if not self._still_enough(result, ready):
            ready = set()
        self._give_back([release for release in releases if release.pod.metadata.uid not in ready], gang)
        if not ready:
            if view.started:  # those that went before need it all the same
                await self.make_group(view, gang, None)
            return False
        releases, planned = [x for x in releases if x.pod.metadata.uid in ready], len(releases)
        released = await self._release(releases, gang)
        await self._shown(view.key, gang, released)
        # No PodGroup for nobody: Volcano would look at it before the pods have their nominations.
        grouped = bool(released) and await self.make_group(view, gang, result)
        return grouped and len(released) == planned

    def _homeless(self, releases: Sequence[PodRelease]) -> set[str]:
        """Pods whose planned node has gone meanwhile; they are planned anew while they still can be."""
        nodes = self._state.table().index
        return {release.pod.metadata.uid for release in releases if release.node and release.node not in nodes}

    async def _release(self, releases: Sequence[PodRelease], gang: GangState) -> set[str]:
        """The uids that are known to be let go. Where nobody can say, the pod keeps its room until somebody can."""
        released, unconfirmed = await self.pod_writer.release(releases)
        gang.release_unconfirmed([x for x in releases if x.pod.metadata.uid in unconfirmed])
        self._give_back([x for x in releases if x.pod.metadata.uid not in released | unconfirmed], gang)
        return released

    async def _shown(self, key: GangKey, gang: GangState, uids: Set[str]) -> None:
        """Until our own watch shows the gates open, with a limit.

        Volcano watches pods and PodGroups apart. A PodGroup that it sees first makes it try the gang with gated pods:
        a session lost, and a condition, an Event and a status for each pod, which cost more than all of our writes.
        """
        until = monotonic_s() + self.settings.shown_s
        while (left := until - monotonic_s()) > 0:
            pods = self._state.gangs().get(key, {})
            if not any(pods[uid].has_gate(GATE) for uid in uids if uid in pods):
                break
            gang.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await gang.changed.wait()
        await asyncio.sleep(min(self.settings.other_watch_s, _LAG_PER_GANG_S * self._under_way))

    async def settle(self, gang: GangState) -> bool:
        """Once more for the pods in doubt: whatever the answer, it says how the first write ended."""
        await self._release(gang.unconfirmed, gang)
        return not gang.unconfirmed

    def _give_back(self, releases: Iterable[PodRelease], gang: GangState) -> None:
        uids = {release.pod.metadata.uid for release in releases}
        for uid in uids:
            self._state.unassume(uid)
        gang.not_released(uids)

    @staticmethod
    def _still_enough(result: Plan, uids: set[str]) -> bool:
        """Whether the pods that are left still reach the gang's minimum; nothing was released so far."""
        members = {m.uid: m for m in result.request.members}
        return all(
            sum(1 for uid in uids if members[uid].phase == phase) >= result.request.still_needed(phase)
            for phase in PHASES
        )

    async def make_group(self, view: GangView, gang: GangState, result: Plan | None) -> bool:
        """Apply the gang's own PodGroup if it is missing or was changed. Groups of others are left alone."""
        for name, pods in sorted(group_names(view).items()):
            if not is_ours(name, view.key[1]):
                continue
            annotations = self._annotations.group_annotations(result)
            releasing = result.places.keys() if result is not None else frozenset()
            wanted = wanted_pod_group(
                view, pods, self._top_owner, annotations, self.more_later, self.known_fields, releasing
            )
            existing = self._pod_groups.get(f"{view.key[0]}/{name}")
            if gang.preempts or existing is None or existing.spec.min_resources is None:
                # Volcano's enqueue action compares these with what is free: not before the gang runs
                # (`MinResourcesWriter`).
                del wanted["spec"]["minResources"]
            if existing is not None and not differs(existing, wanted):
                gang.group_found()
                continue
            if not await self.pod_writer.apply_pod_group(wanted):
                return False
            gang.group_written(monotonic_s() + self.settings.group_shown_s)
        return True

    def needs_of(self, key: GangKey) -> dict[str, str]:
        """What the minimum of a gang needs, from those of its pods that run."""
        view = view_of(key, self._state.gang_pods(*key), self._template_of)
        wanted = wanted_pod_group(view, view.bound, self._top_owner, {}, self.more_later, self.known_fields)
        needs: dict[str, str] = wanted["spec"]["minResources"]
        return needs

    def needs_group(self, view: GangView, gang: GangState) -> bool:
        """Released pods stand without a PodGroup of ours (a predecessor died, or somebody deleted it)."""
        names = [name for name in group_names(view) if is_ours(name, view.key[1])]
        return not gang.group_made and any(f"{view.key[0]}/{name}" not in self._pod_groups for name in names)

    def missing_group(self, view: GangView) -> str | None:
        """A PodGroup of somebody else that the gang's pods name and that does not exist yet."""
        for name in sorted(group_names(view)):
            if not is_ours(name, view.key[1]) and f"{view.key[0]}/{name}" not in self._pod_groups:
                return name
        return None
