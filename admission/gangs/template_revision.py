"""Which of a gang's pods are of a template that was replaced, and which of them still make up the minimum. Pure.

A Deployment that may lose none of its pods (RollingUpdate of few replicas: `maxUnavailable` is rounded down to 0) makes
`maxSurge` pods of a new template and removes no old one, ready or not, until those are available
(`reconcileOldReplicaSets` in kubernetes/kubernetes pkg/controller/deployment/rolling.go). A gang that needs more than
those would wait for pods that are made once it runs. So held pods of older templates go with the new ones, as far as
the minimum lacks pods; the Deployment replaces them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from scheduler.model.request import GangRequest, PodRequest
from topology.labels import PHASE, PHASES
from topology.objects import Pod


class Template(NamedTuple):
    """Whose template a pod was made of, and which of them: a higher revision is newer."""

    owner: str  # uid
    revision: int
    retained: bool = False  # its owner may keep pods of older templates for good: they count as others do


TemplateOf = Callable[[Pod], Template | None]
"""None where nobody can say."""


def no_template(_: Pod) -> Template | None:
    """Every pod is of the newest template."""
    return None


def of_older(pods: Iterable[Pod], template_of: TemplateOf) -> dict[str, Template]:
    """Uid to template of pods whose owner has pods of a newer template among these."""
    templates = {p.metadata.uid: t for p in pods if (t := template_of(p)) is not None}
    newest: dict[str, int] = {}
    for each in templates.values():
        newest[each.owner] = max(newest.get(each.owner, each.revision), each.revision)
    return {uid: t for uid, t in templates.items() if t.revision < newest[t.owner]}


def to_fill(candidates: Iterable[Pod], lacking: Mapping[str, int], older: Mapping[str, Template]) -> list[Pod]:
    """As many of the candidates as each phase lacks, those of the newest template first, then by name."""
    ranked = sorted(candidates, key=lambda p: (-older[p.metadata.uid].revision, p.metadata.name))
    chosen: list[Pod] = []
    for phase in PHASES:
        mine = [p for p in ranked if p.metadata.label(PHASE) == phase]
        chosen += mine[: max(0, lacking[phase])]
    return chosen


def all_new(gang: GangRequest, fill: Iterable[Pod], newest: Mapping[str, PodRequest]) -> GangRequest:
    """The request as it will be when pods of the newest template, by phase, stand where older ones fill."""
    older = {p.metadata.uid for p in fill}
    members = tuple(
        replace(newest[m.phase], uid=m.uid, name=m.name, unit=m.unit) if m.uid in older and m.phase in newest else m
        for m in gang.members
    )
    return replace(gang, members=members)
