"""The pods of a RoleBasedGroup, whose roles may share templates, and of vLLM production-stack's Helm values.

Both describe pods by pieces that are put together: a role template and a patch, or a model's options. Sources:
sgl-project/rbg api/workloads (v1alpha1 and v1alpha2), vllm-project/production-stack helm/templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from admission.templates.pod_templates import Filled, Raw, TemplateOfWorkload, count, filled, mapping, sequence, tokens
from topology.labels import GROUP_NAME, VOLCANO_SCHEDULER

_RBG: Final = "rbg.workloads.x-k8s.io/"
_RELEASE: Final = "release"
_MAX_DEPTH: Final = 32


def role_based_group(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """One workload a role; gang scheduling, where the annotation asks for it, is one PodGroup for the group."""
    meta, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    name, kind = str(meta.get("name", "")), str(document.get("kind"))
    older = str(document.get("apiVersion", "")).endswith("/v1alpha1")
    shared = {str(each.get("name")): mapping(each.get("template")) for each in sequence(spec.get("roleTemplates"))}
    held = str(mapping(meta.get("annotations")).get(_RBG + "group-gang-scheduling", "")).lower() == "true"
    for role in sequence(spec.get("roles")):
        word = str(role.get("name", ""))
        labels = {_RBG + "group-name": name, _RBG + "role-name": word}
        if older:
            labels = {f"rolebasedgroup.workloads.x-k8s.io/{k}": v for k, v in (("name", name), ("role", word))}
        for part, template, copies in _role_parts(role, shared):
            scheduler = str(mapping(mapping(template).get("spec")).get("schedulerName", ""))
            carrier = {GROUP_NAME: name} if held and scheduler == VOLCANO_SCHEDULER else {}
            size = count(mapping(role.get("leaderWorkerPattern")).get("size"))
            own, variables = labels, {}
            if size > 1:
                own = {**labels, _RBG + "role-instance-name": f"{name}-{word}-0"}
                variables = {"RBG_LWP_GROUP_SIZE": str(size)}
            raw = filled(template, Filled(own, carrier, name=f"{name}-{word}-0", variables=variables))
            shown = f"{word}/{part}" if part else word
            yield TemplateOfWorkload(kind, namespace, name, shown, raw, count(role.get("replicas")) * copies)


def _role_parts(role: Raw, shared: dict[str, Raw]) -> Iterator[tuple[str, Raw, int]]:
    """Part, template and pods a copy of one role: a pod alone, a leader with workers, or named components."""
    leader_worker = mapping(role.get("leaderWorkerPattern"))
    older = mapping(role.get("leaderWorkerSet"))
    if leader_worker or older:
        base = _source(leader_worker or role, shared)
        size = count((leader_worker or older).get("size"))
        leader = (
            leader_worker.get("leaderTemplatePatch")
            or leader_worker.get("leaderPatch")
            or older.get("patchLeaderTemplate")
        )
        worker = (
            leader_worker.get("workerTemplatePatch")
            or leader_worker.get("workerPatch")
            or older.get("patchWorkerTemplate")
        )
        yield "leader", _merged(base, mapping(leader)), 1
        if size > 1:
            yield "worker", _merged(base, mapping(worker)), size - 1
        return
    components = sequence(mapping(role.get("customComponentsPattern")).get("components"))
    for component in components:
        yield str(component.get("name", "")), _source(component, shared), count(component.get("size"))
    if not components:
        yield "", _source(mapping(role.get("standalonePattern")) or role, shared), 1


def _source(holder: Raw, shared: dict[str, Raw]) -> Raw:
    """The template itself, or a shared one with this role's patch."""
    ref = mapping(holder.get("templateRef"))
    if ref:
        patch = ref.get("patch") or holder.get("templatePatch")
        return mapping(_merged(shared.get(str(ref.get("name")), {}), mapping(patch)))
    return mapping(holder.get("template"))


def _merged(base: Any, patch: Any, depth: int = 0) -> Any:
    """A strategic merge as far as pod templates need it: maps by key, lists of named things by name."""
    if depth > _MAX_DEPTH:
        return patch
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = dict(base)
        for key, value in patch.items():
            merged[key] = _merged(base[key], value, depth + 1) if key in base else value
        return merged
    if (
        isinstance(base, list)
        and isinstance(patch, list)
        and all(isinstance(mapping(each).get("name"), str) for each in [*base, *patch])
    ):
        by_name = {each["name"]: each for each in base}
        for each in patch:
            by_name[each["name"]] = _merged(by_name.get(each["name"], {}), each, depth + 1)
        return list(by_name.values())
    return patch


def _named(value: Any) -> bool:
    return isinstance(mapping(value).get("name"), str)


def is_production_stack(document: Raw) -> bool:
    """Helm values have no kind; these have a list of models."""
    return "kind" not in document and isinstance(mapping(document.get("servingEngineSpec")).get("modelSpec"), list)


def production_stack(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """The Deployments that the chart would render for a release called `release`."""
    note = (f"Helm values, read as the chart would render them for a release called {_RELEASE}",)
    for model in sequence(mapping(document.get("servingEngineSpec")).get("modelSpec")):
        name = f"{_RELEASE}-{model.get('name')}-deployment-vllm"
        cache = mapping(model.get("lmcacheConfig"))
        args = ["serve", str(model.get("modelURL", ""))]
        if cache.get("enabled"):
            role = str(cache.get("kvRole") or "kv_both")
            args += ["--kv-transfer-config", json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": role})]
        args += tokens(mapping(model.get("vllmConfig")).get("extraArgs"))
        env = list(sequence(model.get("env")))
        if cache.get("enablePD") and cache.get("nixlRole"):
            env.append({"name": "LMCACHE_NIXL_ROLE", "value": cache["nixlRole"]})
        engine: Raw = {
            "name": "vllm",
            "image": f"{model.get('repository')}:{model.get('tag')}",
            "args": args,
            "env": env,
        }
        engine["command"] = ["vllm"]
        if model.get("requestGPU"):
            engine["resources"] = {"limits": {"nvidia.com/gpu": model["requestGPU"]}}
        labels = {"model": str(model.get("name")), "helm-release-name": _RELEASE}
        raw = filled({"spec": {"containers": [engine]}}, Filled(labels, generate_name=f"{name}-"))
        yield TemplateOfWorkload("Deployment", namespace, name, "", raw, count(model.get("replicaCount")), note)
    router = mapping(document.get("routerSpec"))
    if router and router.get("enableRouter", True):
        name = f"{_RELEASE}-deployment-router"
        args = ["--routing-logic", str(router.get("routingLogic", "")), *tokens(router.get("extraArgs"))]
        container = {"name": "router-container", "image": str(router.get("repository", "")), "args": args}
        raw = filled({"spec": {"containers": [container]}}, Filled(generate_name=f"{name}-"))
        yield TemplateOfWorkload("Deployment", namespace, name, "", raw, count(router.get("replicaCount")), note)
