"""The pods that serving frameworks' operators would create from their own kinds of objects.

Decides, kind by kind, where the templates are and which labels and annotations the operator puts on its pods, for the
pods are recognised by those. The first copy of each role stands for all. Each entry names the source of its labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from admission.templates.pod_templates import Filled, Raw, TemplateOfWorkload, count, filled, mapping, sequence, tokens
from topology.labels import GROUP_NAME, TASK_SPEC, VOLCANO_SCHEDULER

_LWS: Final = "leaderworkerset.sigs.k8s.io/"
_NOT_IN_A_LABEL: Final = re.compile(r"[^A-Za-z0-9_.]+")


def leader_worker_set(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """kubernetes-sigs/lws api/leaderworkerset/v1."""
    name = _name(document)
    yield from _lws(document, namespace, name, name, mapping(document.get("spec")), {})


def _lws(
    document: Raw, namespace: str, name: str, lws: str, spec: Raw, labels: dict[str, str], prefix: str = ""
) -> Iterator[TemplateOfWorkload]:
    group = mapping(spec.get("leaderWorkerTemplate"))
    size = count(group.get("size"))
    worker = group.get("workerTemplate")
    leader = group.get("leaderTemplate") or worker
    parts = [("leader", leader, "0")] + ([("worker", worker, "1")] if size > 1 else [])
    for part, template, index in parts:
        more = {_LWS + "name": lws, _LWS + "group-index": "0", _LWS + "worker-index": index, **labels}
        pod_name = f"{lws}-0" if index == "0" else f"{lws}-0-{index}"
        raw = filled(template, Filled(more, {_LWS + "size": str(size)}, name=pod_name))
        replicas = count(spec.get("replicas")) * (1 if index == "0" else size - 1)
        yield TemplateOfWorkload(str(document.get("kind")), namespace, name, prefix + part, raw, replicas)


def disaggregated_set(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """kubernetes-sigs/lws api/disaggregatedset/v1: one LWS a role and slice."""
    name, spec = _name(document), mapping(document.get("spec"))
    slices = count(spec.get("slices"))
    notes = (f"{slices} slices: each is a gang of its own; slice 0 is shown",) if slices > 1 else ()
    for role in sequence(spec.get("roles")):
        word = str(role.get("name", ""))
        labels = {f"disaggregatedset.x-k8s.io/{key}": value for key, value in _slice(name, word).items()}
        inner = mapping(role.get("spec")) or mapping(mapping(role.get("template")).get("spec"))
        for template in _lws(document, namespace, name, f"{name}-0-{word}", inner, labels, f"{word}/"):
            yield _noted(template, notes)


def _slice(name: str, role: str) -> dict[str, str]:
    return {"name": name, "role": role, "slice": "0"}


def model_serving(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """volcano-sh/kthena pkg/model-serving-controller: one PodGroup a serving group, if it has a gang or topology policy
    and Volcano schedules it (podgroupmanager/manager.go, shouldCreatePodGroup; Volcano is the default of the CRD)."""
    name, spec = _name(document), mapping(document.get("spec"))
    scheduler, group = str(spec.get("schedulerName") or VOLCANO_SCHEDULER), f"{name}-0"
    groups = count(spec.get("replicas"))
    notes = (f"{groups} serving groups: each is a gang of its own; the first is shown",) if groups > 1 else ()
    inner = mapping(spec.get("template"))
    grouped = scheduler == VOLCANO_SCHEDULER and bool({"gangPolicy", "networkTopology"} & inner.keys())
    for role in sequence(inner.get("roles")):
        word = str(role.get("name", ""))
        role_id = f"{word}-0"
        labels = {"name": name, "group-name": group, "role": word, "role-id": role_id}
        copies = count(role.get("replicas"))
        for part, replicas in (("entry", copies), ("worker", copies * count(role.get("workerReplicas"), 0))):
            template = role.get(f"{part}Template")
            if not template or not replicas:
                continue
            own = {f"modelserving.volcano.sh/{key}": value for key, value in labels.items()}
            if part == "entry":
                own["modelserving.volcano.sh/entry"] = "true"
            carrier = {GROUP_NAME: group, TASK_SPEC: role_id} if grouped else {}
            pods = {"GROUP_SIZE": str(1 + count(role.get("workerReplicas"), 0))}
            name_ = f"{group}-{role_id}-{int(part == 'worker')}"
            with_ = Filled(own, carrier, name=name_, scheduler=scheduler, variables=pods)
            shown = f"{word}/{part}"
            raw = filled(template, with_)
            yield TemplateOfWorkload(str(document.get("kind")), namespace, name, shown, raw, replicas, notes)


def dynamo_graph(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """ai-dynamo/dynamo deploy/operator/internal/dynamo: v1alpha1 has services by name, v1beta1 a list of components."""
    name, spec = _name(document), mapping(document.get("spec"))
    services = [{"name": key, **mapping(value)} for key, value in mapping(spec.get("services")).items()]
    for part in [*services, *sequence(spec.get("components"))]:
        component = str(part.get("name") or part.get("componentName") or "")
        labels = {"dynamo-graph-deployment-name": name, "dynamo-component": component}
        labels["dynamo-component-type"] = str(part.get("componentType") or part.get("type") or "")
        labels["dynamo-sub-component-type"] = str(part.get("subComponentType") or "")
        with_ = Filled(
            {f"nvidia.com/{key}": value for key, value in labels.items() if value},
            generate_name=f"{name}-{component.lower()}-",
        )
        raw = filled(part.get("podTemplate") or _dynamo_alpha(part), with_)
        kind = str(document.get("kind"))
        yield TemplateOfWorkload(kind, namespace, name, component, raw, count(part.get("replicas")))


def dynamo_component(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """One component of a Dynamo graph by itself; the graph's name is a label of the object."""
    meta, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    graph = mapping(meta.get("labels")).get("nvidia.com/dynamo-graph-deployment-name")
    part = {"name": spec.get("serviceName") or spec.get("componentName") or meta.get("name"), **spec}
    whole = {
        "kind": document.get("kind"),
        "metadata": {"name": graph or meta.get("name")},
        "spec": {"components": [part]},
    }
    for each in dynamo_graph(whole, namespace):
        yield TemplateOfWorkload(each.kind, namespace, str(meta.get("name", "")), "", each.raw, each.replicas)


def model_booster(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """volcano-sh/kthena: a ModelBooster makes a ModelServing for each backend, with a role for each kind of worker."""
    name, spec = _name(document), mapping(document.get("spec"))
    backends = sequence(spec.get("backends")) or [mapping(spec.get("backend"))]
    for backend in backends:
        serving = f"{name}-{backend.get('name', '')}"
        roles = []
        for worker in sequence(backend.get("workers")):
            kind = str(worker.get("type", ""))
            engine = {"name": "engine", "image": worker.get("image", ""), "resources": mapping(worker.get("resources"))}
            engine["args"] = ["--model", str(backend.get("modelURI", ""))]
            template = {"spec": {"containers": [engine]}}
            roles.append({"name": kind, "replicas": worker.get("replicas"), "entryTemplate": template})
        inner = {"gangPolicy": {}, "roles": roles}  # its own has a minimum of one for each role
        made = {"kind": document.get("kind"), "metadata": {"name": serving}, "spec": {"template": inner}}
        for each in model_serving(made, namespace):
            shown = f"{backend.get('name', '')}/{each.template.partition('/')[0]}"
            note = ("read as the ModelServing that its operator makes",)
            yield TemplateOfWorkload(each.kind, namespace, name, shown, each.raw, each.replicas, note)


def _dynamo_alpha(part: Raw) -> Raw:
    """v1alpha1 keeps the main container apart from the rest of the pod, and resources and env beside both."""
    extra = dict(mapping(part.get("extraPodSpec")))
    main = dict(mapping(extra.pop("mainContainer", None)))
    main.setdefault("name", "main")
    amounts = {}
    for kind, given in mapping(part.get("resources")).items():
        known = mapping(given)
        amounts[kind] = {("nvidia.com/gpu" if key == "gpu" else key): v for key, v in known.items() if key != "custom"}
        amounts[kind] |= mapping(known.get("custom"))
    if amounts:
        main.setdefault("resources", amounts)
    shared = sequence(part.get("envs"))
    if shared:
        main["env"] = [*sequence(main.get("env")), *shared]
    metadata = mapping(part.get("extraPodMetadata"))
    own = {"labels": {**mapping(part.get("labels")), **mapping(metadata.get("labels"))}}
    if metadata.get("annotations"):
        own["annotations"] = mapping(metadata["annotations"])
    return {"metadata": own, "spec": {**extra, "containers": [main, *sequence(extra.get("containers"))]}}


def pod_clique_set(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """ai-dynamo/grove operator/api/common: cliques of a scaling group have its name in theirs, all are in a PodGang."""
    name, spec = _name(document), mapping(document.get("spec"))
    replicas = count(spec.get("replicas"))
    notes = (f"{replicas} replicas: each is a gang of its own; the first is shown",) if replicas > 1 else ()
    template = mapping(spec.get("template"))
    scaled = {
        str(clique): str(group.get("name", ""))
        for group in sequence(template.get("podCliqueScalingGroups"))
        for clique in tokens(group.get("cliqueNames"))
    }
    for clique in sequence(template.get("cliques")):
        word, inner = str(clique.get("name", "")), mapping(clique.get("spec"))
        role = str(inner.get("roleName", ""))
        base = f"{name}-0-{scaled[word]}-0" if word in scaled else f"{name}-0"
        labels = {"grove.io/podclique": f"{base}-{word}", "grove.io/podgang": f"{name}-0"}
        labels["grove.io/podcliqueset-replica-index"] = "0"
        if word in scaled:
            labels["grove.io/podcliquescalinggroup"] = f"{name}-0-{scaled[word]}"
            labels["grove.io/podcliquescalinggroup-replica-index"] = "0"
        own = {"labels": {**mapping(clique.get("labels")), **labels}}
        raw = filled({"metadata": own, "spec": inner.get("podSpec")}, Filled(generate_name=f"{base}-{word}-"))
        reported = notes
        if role and role not in word:
            reported = (*notes, f"roleName {role} is not on the pods: the clique's name {word} is what counts")
        yield TemplateOfWorkload(
            str(document.get("kind")), namespace, name, word, raw, count(inner.get("replicas")), reported
        )


def storm_service(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """vllm-project/aibrix pkg/controller: a StormService makes role sets, a role set makes pods."""
    name, spec = _name(document), mapping(document.get("spec"))
    alone = document.get("kind") == "RoleSet"
    sets = 1 if alone else count(spec.get("replicas"))
    notes = () if alone else ("the operator names its role sets; each is a gang of its own, named after it",)
    roles = spec if alone else mapping(mapping(spec.get("template")).get("spec"))
    for role in sequence(roles.get("roles")):
        word = str(role.get("name", ""))
        labels = {"roleset-name": name} if alone else {"storm-service-name": name}
        size, variables = count(role.get("podGroupSize")), {}
        if size > 1:  # each copy is a pod set
            labels["stormservice.orchestration.aibrix.ai/podset-name"] = f"{name}-{word}-0"
            variables["POD_GROUP_SIZE"] = str(size)
        with_ = Filled({**labels, "role-name": word}, generate_name=f"{name}-{word}-", variables=variables)
        raw = filled(role.get("template"), with_)
        replicas = count(role.get("replicas")) * sets * size
        yield TemplateOfWorkload(str(document.get("kind")), namespace, name, word, raw, replicas, notes)


def llm_inference_service(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """kserve/kserve pkg/controller/v1alpha1/llmisvc: the main workload decodes once there is a prefill workload."""
    name, spec = _name(document), mapping(document.get("spec"))
    prefill = mapping(spec.get("prefill"))
    for word, part in (("prefill", prefill), ("decode" if prefill else "both", spec)):
        for key in ("template", "worker"):
            if (key == "worker" and not part.get(key)) or (word == "prefill" and not prefill):
                continue
            labels = {
                "app.kubernetes.io/name": name,
                "app.kubernetes.io/part-of": "llminferenceservice",
                "kserve.io/component": "workload",
                "llm-d.ai/role": word,
            }
            with_ = Filled(labels, generate_name=f"{name}-kserve-{word}-")
            raw = filled({"spec": _with_model(mapping(part.get(key)), spec)}, with_)
            shown = word if key == "template" else f"{word}/worker"
            yield TemplateOfWorkload(
                str(document.get("kind")), namespace, name, shown, raw, count(part.get("replicas"))
            )


def _with_model(pod_spec: Raw, spec: Raw) -> Raw:
    """The main container as the operator's own templates start it: vLLM with the model that the service names."""
    model = mapping(spec.get("model"))
    named = str(model.get("name") or model.get("uri") or "")
    containers = sequence(pod_spec.get("containers")) or [{"name": "main"}]
    main = dict(containers[0])
    if not main.get("command") and not main.get("args") and named:
        main |= {"image": main.get("image", "vllm-openai"), "args": ["--served-model-name", named]}
    return {**pod_spec, "containers": [main, *containers[1:]]}


def inference_service(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """kserve/kserve v1beta1: one predictor, which serves both phases unless its arguments say otherwise."""
    name = _name(document)
    predictor = mapping(mapping(document.get("spec")).get("predictor"))
    model = mapping(predictor.get("model"))
    if mapping(model.get("modelFormat")).get("name") == "huggingface":
        model = {"image": "kserve/huggingfaceserver", **model}  # what its serving runtime brings
    containers = sequence(predictor.get("containers")) or [{"name": "kserve-container", **model}]
    labels = {"serving.kserve.io/inferenceservice": name, "component": "predictor"}
    raw = filled({"spec": {**predictor, "containers": containers}}, Filled(labels, generate_name=f"{name}-predictor-"))
    yield TemplateOfWorkload(str(document.get("kind")), namespace, name, "", raw, count(predictor.get("minReplicas")))


def ome_service(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """sgl-project/ome pkg/constants: with a decoder beside it, the engine prefills; their arguments tell."""
    name, spec = _name(document), mapping(document.get("spec"))
    for word in ("engine", "decoder", "router"):
        part = mapping(spec.get(word))
        for copy, inner in (
            ("", part),
            ("/leader", mapping(part.get("leader"))),
            ("/worker", mapping(part.get("worker"))),
        ):
            runner = mapping(inner.get("runner"))
            if not runner:
                continue
            pod_spec = {**inner, "containers": [{"name": "ome-container", **runner}]}
            labels = {"ome.io/inferenceservice": name, "component": word}
            raw = filled({"spec": pod_spec}, Filled(labels, generate_name=f"{name}-{word}-"))
            replicas = count(part.get("minReplicas"))
            yield TemplateOfWorkload(str(document.get("kind")), namespace, name, word + copy, raw, replicas)


def llm_d_model_service(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """llm-d/llm-d-model-service internal/controller: a Deployment a role; its base configuration is not read."""
    name, spec = _name(document), mapping(document.get("spec"))
    model = str(mapping(spec.get("routing")).get("modelName") or name)
    for word in ("prefill", "decode"):
        part = mapping(spec.get(word))
        if part:
            labels = {"llm-d.ai/model": _NOT_IN_A_LABEL.sub("-", model).strip("-"), "llm-d.ai/role": word}
            raw = filled({"spec": part}, Filled(labels, generate_name=f"{name}-{word}-"))
            yield TemplateOfWorkload(str(document.get("kind")), namespace, name, word, raw, count(part.get("replicas")))


def ray(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """ray-project/kuberay: head and worker groups; a RayService, a RayJob and AIBrix's fleet have a cluster inside."""
    name, spec = _name(document), mapping(document.get("spec"))
    cluster = mapping(spec.get("rayClusterConfig")) or mapping(spec.get("rayClusterSpec"))
    cluster = cluster or mapping(mapping(spec.get("template")).get("spec")) or spec
    head = {"groupName": "headgroup", "replicas": 1, **mapping(cluster.get("headGroupSpec"))}
    for group in [head, *sequence(cluster.get("workerGroupSpecs"))]:
        word = str(group.get("groupName", ""))
        labels = {"ray.io/group": word, "ray.io/originated-from-cr-name": name}
        raw = filled(group.get("template"), Filled(labels, generate_name=f"{name}-{word}-"))
        yield TemplateOfWorkload(str(document.get("kind")), namespace, name, word, raw, count(group.get("replicas")))


def volcano_job(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """volcano-sh/volcano pkg/controllers/job: a PodGroup for the whole job, named after it and its uid."""
    name, spec = _name(document), mapping(document.get("spec"))
    for task in sequence(spec.get("tasks")):
        word = str(task.get("name", ""))
        scheduler = str(spec.get("schedulerName") or VOLCANO_SCHEDULER)
        carrier = {TASK_SPEC: word, GROUP_NAME: name}
        raw = filled(task.get("template"), Filled({}, carrier, name=f"{name}-{word}-0", scheduler=scheduler))
        note = ("Volcano appends the job's uid to the PodGroup's name",)
        yield TemplateOfWorkload(
            str(document.get("kind")), namespace, name, word, raw, count(task.get("replicas")), note
        )


def _name(document: Raw) -> str:
    return str(mapping(document.get("metadata")).get("name", ""))


def _noted(template: TemplateOfWorkload, notes: tuple[str, ...]) -> TemplateOfWorkload:
    parts = (template.kind, template.namespace, template.name, template.template, template.raw, template.replicas)
    return TemplateOfWorkload(*parts, (*template.notes, *notes))


Reader = Callable[[Raw, str], Iterator[TemplateOfWorkload]]
KINDS: Final[dict[tuple[str, str], Reader]] = {
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): leader_worker_set,
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): disaggregated_set,
    ("workload.serving.volcano.sh", "ModelServing"): model_serving,
    ("workload.serving.volcano.sh", "ModelBooster"): model_booster,
    ("nvidia.com", "DynamoGraphDeployment"): dynamo_graph,
    ("nvidia.com", "DynamoComponentDeployment"): dynamo_component,
    ("grove.io", "PodCliqueSet"): pod_clique_set,
    ("orchestration.aibrix.ai", "StormService"): storm_service,
    ("orchestration.aibrix.ai", "RoleSet"): storm_service,
    ("orchestration.aibrix.ai", "RayClusterFleet"): ray,
    ("orchestration.aibrix.ai", "RayClusterReplicaSet"): ray,
    ("serving.kserve.io", "LLMInferenceService"): llm_inference_service,
    ("serving.kserve.io", "InferenceService"): inference_service,
    ("ome.io", "InferenceService"): ome_service,
    ("llm-d.ai", "ModelService"): llm_d_model_service,
    ("ray.io", "RayCluster"): ray,
    ("ray.io", "RayService"): ray,
    ("ray.io", "RayJob"): ray,
    ("batch.volcano.sh", "Job"): volcano_job,
}


def reader_of(document: Raw) -> Reader | None:
    """The reader of this object's kind, by its group and not its version."""
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    return KINDS.get((group, str(document.get("kind", ""))))
