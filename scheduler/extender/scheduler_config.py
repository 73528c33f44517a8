"""The extender stanza for Volcano's scheduler configuration, and what is wrong with a configuration that exists.

Decides text only; reading and applying the ConfigMap is somebody else's work. Why each key is there: Volcano calls
the extender for pods that name a managed resource, so the marker resource alone keeps every other pod free of cost;
the predicate verb would cost one call per pod and node and is left out, since the bound rests on node affinity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from topology.bad_input import BadInput
from topology.labels import MARKER_RESOURCE

PLUGIN: Final = "extender"
VERBS: Final = {
    "extender.prioritizeVerb": "prioritize",
    "extender.allocateFuncVerb": "allocateFunc",
    "extender.deallocateFuncVerb": "deallocateFunc",
    "extender.onSessionCloseVerb": "onSessionClose",
}
COSTLY: Final = {
    "extender.predicateVerb": "costs one call per pod and node",
    "extender.onSessionOpenVerb": "sends the whole cluster in every scheduling cycle",
    "extender.jobReadyVerb": "is called two or three times per pod with the whole gang",
    "extender.jobEnqueueableVerb": "is asked about every waiting PodGroup in every scheduling cycle",
}
NO_OPINION: Final = ("extender.preemptableVerb", "extender.reclaimableVerb", "extender.queueOverusedVerb")
"""Who must leave, and which queue holds too much, is Volcano's to say: asked about it, Isochrone abstains."""
_PRIORITIZE_LACK: Final = "pods are placed without Isochrone's scores"
_LACK: Final = {
    "extender.prioritizeVerb": _PRIORITIZE_LACK,
    "extender.allocateFuncVerb": "a node that became too far away meanwhile is not refused",
    "extender.deallocateFuncVerb": "Isochrone counts pods that Volcano took back",
    "extender.onSessionCloseVerb": "Isochrone does not forget what a scheduling cycle tried out",
}
_GO_DURATION: Final = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+")
_A_CONF: Final = "it must be Volcano's scheduler configuration: YAML with a list of tiers, each with a list of plugins"


def stanza(url_prefix: str, timeout: str = "500ms") -> str:
    """One list item for the `plugins` of the tier that holds predicates and nodeorder, to stand after them."""
    if not url_prefix.startswith(("http://", "https://")) or any(c.isspace() for c in url_prefix):
        raise BadInput("the URL of the extender", url_prefix, "it must start with http:// or https://")
    if not _usable_timeout(timeout):
        raise BadInput("the timeout", timeout, "it must be a number above zero with a unit, such as 500ms")
    arguments = {
        "extender.urlPrefix": url_prefix.rstrip("/"),
        "extender.httpTimeout": timeout,
        **VERBS,
        "extender.managedResources": [MARKER_RESOURCE],
        "extender.ignorable": True,
    }
    return yaml.safe_dump([{"name": PLUGIN, "arguments": arguments}], sort_keys=False, width=1000)


def check(conf_text: str) -> list[str]:
    """What is wrong with a scheduler configuration (or the ConfigMap that holds it), one plain sentence each."""
    try:
        tiers = _tiers(conf_text)
    except BadInput as bad:
        return [str(bad)]
    return list(_findings(tiers))


# --- reading -----------------------------------------------------------------------------------

Plugin = Mapping[str, Any]


def _tiers(conf_text: str) -> list[list[Plugin]]:
    conf = _load(conf_text)
    if conf.get("kind") == "ConfigMap":
        data = conf.get("data")
        texts = [text for key, text in data.items() if str(key).endswith(".conf")] if isinstance(data, Mapping) else []
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise BadInput("the ConfigMap", f"{len(texts)} keys that end in .conf", "it must hold exactly one")
        conf = _load(texts[0])
    tiers = conf.get("tiers")
    if not isinstance(tiers, list) or not tiers:
        raise BadInput("tiers", _kind(tiers), _A_CONF)
    return [_plugins(tier) for tier in tiers]


def _load(text: str) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"not YAML at line {mark.line + 1}" if mark else "not YAML"
        raise BadInput("the configuration", where, _A_CONF) from None
    if isinstance(loaded, list) and any(isinstance(each, Mapping) and each.get("name") == PLUGIN for each in loaded):
        raise BadInput("the configuration", "the plugin alone", f"check the whole configuration: {_A_CONF}")
    if not isinstance(loaded, Mapping):
        raise BadInput("the configuration", _kind(loaded), _A_CONF)
    return loaded


def _plugins(tier: object) -> list[Plugin]:
    plugins = tier.get("plugins") if isinstance(tier, Mapping) else None
    if not isinstance(plugins, list) or not all(
        isinstance(plugin, Mapping) and isinstance(plugin.get("name"), str) for plugin in plugins
    ):
        raise BadInput("plugins of a tier", _kind(plugins), "it must be a list of plugins with a name each")
    return plugins


def _kind(value: object) -> str:
    """What a person would call it; never the value itself, which may be endless."""
    names = {dict: "a mapping", list: "a list", str: "text", bool: "a switch", int: "a number", float: "a number"}
    return names.get(type(value), "a date") if value else "empty"


def _arguments(plugin: Plugin) -> Mapping[str, Any]:
    arguments = plugin.get("arguments")
    return arguments if isinstance(arguments, Mapping) else {}


def _reported(value: object) -> bool | None:
    """Volcano takes true and "true" alike."""
    text = str(value).strip().lower() if isinstance(value, (bool, str)) else ""
    return {"true": True, "false": False}.get(text)


def _usable_timeout(value: object) -> bool:
    """A Go duration above zero; anything else silently becomes one second, and zero means no limit at all."""
    return isinstance(value, str) and bool(_GO_DURATION.fullmatch(value)) and any(c in "123456789" for c in value)


# --- judging -----------------------------------------------------------------------------------


def _findings(tiers: Sequence[Sequence[Plugin]]) -> Iterator[str]:
    extenders = [plugin for tier in tiers for plugin in tier if plugin["name"] == PLUGIN]
    if not extenders:
        yield "The plugin extender is missing: Volcano does not call Isochrone; add what isochrone volcano-conf prints."
    if len(extenders) > 1:
        yield f"The plugin extender is listed {len(extenders)} times: the last one replaces the others; keep one."
    yield from _neighbours(tiers)
    if extenders:
        yield from _position(tiers)
        yield from _stanza_findings(extenders[-1])


def _neighbours(tiers: Sequence[Sequence[Plugin]]) -> Iterator[str]:
    predicates = [plugin for tier in tiers for plugin in tier if plugin["name"] == "predicates"]
    if not predicates or any(_reported(plugin.get("enablePredicate")) is False for plugin in predicates):
        yield "The plugin predicates is missing or off: Volcano ignores node affinity, on which reach bounds rest."
    for plugin in predicates:
        arguments = _arguments(plugin)
        if _reported(arguments.get("predicate.NodeAffinityEnable")) is False:
            yield (
                "predicate.NodeAffinityEnable is false: Volcano ignores node affinity, on which reach bounds rest; "
                "remove it."
            )
        if _reported(arguments.get("predicate.CacheEnable")) is True:
            yield (
                "predicate.CacheEnable is true: Volcano reuses a node's verdict for all pods of one template, but pods "
                "of one template can have different node affinity; remove it."
            )
    if not any(plugin["name"] == "nodeorder" for tier in tiers for plugin in tier):
        yield "The plugin nodeorder is missing: Volcano's usual scores (load, affinity, taints) do not count."


def _position(tiers: Sequence[Sequence[Plugin]]) -> Iterator[str]:
    tier = next(tier for tier in tiers if any(plugin["name"] == PLUGIN for plugin in tier))
    names = [plugin["name"] for plugin in tier]
    listed = {plugin["name"] for each in tiers for plugin in each}
    for other in ("predicates", "nodeorder"):
        if other in listed and other not in names:
            yield f"The plugin extender is not in the tier of {other}: later tiers are not always asked; move it there."
        elif other in names and names.index(other) > names.index(PLUGIN):
            yield f"The plugin extender stands before {other}: cheap checks must come first; move it after {other}."


def _stanza_findings(extender: Plugin) -> Iterator[str]:
    arguments = _arguments(extender)
    url = arguments.get("extender.urlPrefix")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        yield "extender.urlPrefix is missing or not a URL: Volcano cannot call Isochrone."
    yield from _managed(arguments.get("extender.managedResources"))
    for verb, usual in VERBS.items():
        given = arguments.get(verb)
        if not given:
            yield f"{verb} is missing: {_LACK[verb]}; set it to {usual}."
        elif given != usual:
            yield f"{verb} is not {usual}: Isochrone answers at {usual} only."
    for verb, price in COSTLY.items():
        if arguments.get(verb):
            yield f"{verb} is set: it {price} and Isochrone does not need it; remove it."
    for verb in NO_OPINION:
        if arguments.get(verb):
            yield f"{verb} is set: it costs calls and Isochrone has no opinion to give; remove it."
    timeout = arguments.get("extender.httpTimeout", "")
    if timeout == "":
        yield "extender.httpTimeout is missing: Volcano waits one second for each answer; set it to 500ms."
    elif not _usable_timeout(timeout):
        yield (
            "extender.httpTimeout is not a number above zero with a unit: Volcano then waits one second or for ever; "
            "write 500ms."
        )
    if _reported(arguments.get("extender.ignorable")) is not True:
        yield "extender.ignorable is not true: while Isochrone is away Volcano places no pod that it would ask about."
    if _reported(extender.get("enableNodeOrder")) is False:
        yield f"enableNodeOrder of the plugin extender is false: {_PRIORITIZE_LACK}."


def _managed(managed: object) -> Iterator[str]:
    if managed is None:
        yield (
            "extender.managedResources is missing: Volcano asks about every pod in the cluster; "
            f"set it to the list [{MARKER_RESOURCE}]."
        )
    elif not isinstance(managed, list) or not all(isinstance(name, str) for name in managed):
        yield (
            "extender.managedResources is not a YAML list of names: Volcano's scheduler stops when it reads this; "
            f"write [{MARKER_RESOURCE}]."
        )
    elif MARKER_RESOURCE not in managed:
        yield f"extender.managedResources does not name {MARKER_RESOURCE}: Volcano never asks about Isochrone's pods."
    elif len(managed) > 1:
        yield (
            f"extender.managedResources names more than {MARKER_RESOURCE}: Volcano asks about pods that are not "
            "Isochrone's; remove the others."
        )
