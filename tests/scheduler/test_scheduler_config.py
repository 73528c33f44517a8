"""The extender stanza and the findings about a configuration."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.scheduler_config import check, stanza
from topology.bad_input import BadInput

URL = "http://isochrone-controller.isochrone-system.svc:8800"


def conf(**changes: Any) -> dict[str, Any]:
    """A correct configuration; `changes` are extender arguments (None removes one)."""
    (extender,) = yaml.safe_load(stanza(URL))
    for key, value in changes.items():
        if value is None:
            del extender["arguments"][f"extender.{key}"]
        else:
            extender["arguments"][f"extender.{key}"] = value
    return {
        "actions": "enqueue, allocate, backfill",
        "tiers": [
            {"plugins": [{"name": "priority"}, {"name": "gang"}, {"name": "conformance"}]},
            {"plugins": [{"name": "drf"}, {"name": "predicates"}, {"name": "nodeorder"}, extender]},
        ],
    }


def findings(content: object) -> list[str]:
    return check(yaml.safe_dump(content))


def test_the_stanza_is_the_smallest_one_and_is_found_correct() -> None:
    assert stanza(URL + "/", "250ms") == (
        "- name: extender\n"
        "  arguments:\n"
        f"    extender.urlPrefix: {URL}\n"
        "    extender.httpTimeout: 250ms\n"
        "    extender.prioritizeVerb: prioritize\n"
        "    extender.allocateFuncVerb: allocateFunc\n"
        "    extender.deallocateFuncVerb: deallocateFunc\n"
        "    extender.onSessionCloseVerb: onSessionClose\n"
        "    extender.managedResources:\n"
        "    - isochrone.dev/pair\n"
        "    extender.ignorable: true\n"
    )
    assert findings(conf()) == []


def test_the_stanza_by_itself_is_no_configuration() -> None:
    (output,) = check(stanza(URL))
    assert output.startswith("the configuration is 'the plugin alone'; check the whole configuration: it must be ")


@pytest.mark.parametrize(("url", "timeout"), [("isochrone:8800", "1s"), (URL + " x", "1s"), (URL, "500"), (URL, "0s")])
def test_the_stanza_refuses_what_volcano_would_misread(url: str, timeout: str) -> None:
    with pytest.raises(BadInput):
        stanza(url, timeout)


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"managedResources": {"isochrone.dev/pair": None}}, "extender.managedResources is not a YAML list"),
        ({"managedResources": "isochrone.dev/pair"}, "extender.managedResources is not a YAML list"),
        ({"managedResources": None}, "extender.managedResources is missing"),
        ({"managedResources": ["nvidia.com/gpu"]}, "extender.managedResources does not name isochrone.dev/pair"),
        ({"managedResources": ["isochrone.dev/pair", "nvidia.com/gpu"]}, "extender.managedResources names more"),
        ({"predicateVerb": "predicate"}, "extender.predicateVerb is set: it costs one call per pod and node"),
        ({"jobReadyVerb": "jobReady"}, "extender.jobReadyVerb is set"),
        ({"httpTimeout": 500}, "extender.httpTimeout is not a number above zero with a unit"),
        ({"httpTimeout": "500"}, "extender.httpTimeout is not a number above zero with a unit"),
        ({"httpTimeout": "0s"}, "extender.httpTimeout is not a number above zero with a unit"),
        ({"httpTimeout": None}, "extender.httpTimeout is missing"),
        ({"ignorable": False}, "extender.ignorable is not true"),
        ({"ignorable": None}, "extender.ignorable is not true"),
        ({"allocateFuncVerb": None}, "extender.allocateFuncVerb is missing"),
        ({"prioritizeVerb": "score"}, "extender.prioritizeVerb is not prioritize"),
        ({"urlPrefix": "isochrone:8800"}, "extender.urlPrefix is missing or not a URL"),
    ],
)
def test_one_wrong_argument_is_one_finding(changes: dict[str, Any], start: str) -> None:
    (finding,) = findings(conf(**changes))
    assert finding.startswith(start)
    assert finding.endswith(".")


def test_the_extender_must_be_there_once() -> None:
    content = conf()
    extender = content["tiers"][1]["plugins"].pop()
    (finding,) = findings(content)
    assert finding.startswith("The plugin extender is missing")
    content["tiers"][1]["plugins"] += [extender, extender]
    (finding,) = findings(content)
    assert finding.startswith("The plugin extender is listed 2 times")


def test_the_extender_stands_after_predicates_and_nodeorder_in_their_tier() -> None:
    content = conf()
    plugins = content["tiers"][1]["plugins"]
    plugins.insert(0, plugins.pop())
    assert [finding.split(":")[0] for finding in findings(content)] == [
        "The plugin extender stands before predicates",
        "The plugin extender stands before nodeorder",
    ]
    content["tiers"].append({"plugins": [plugins.pop(0)]})
    assert [finding.split(":")[0] for finding in findings(content)] == [
        "The plugin extender is not in the tier of predicates",
        "The plugin extender is not in the tier of nodeorder",
    ]


@pytest.mark.parametrize("no", [False, "false"])
def test_node_affinity_must_stay_on(no: object) -> None:
    content = conf()
    content["tiers"][1]["plugins"][1]["arguments"] = {"predicate.NodeAffinityEnable": no}
    (finding,) = findings(content)
    assert finding.startswith("predicate.NodeAffinityEnable is false")


def test_the_predicate_cache_and_missing_neighbours_are_named() -> None:
    content = conf()
    content["tiers"][1]["plugins"][1]["arguments"] = {"predicate.CacheEnable": True}
    (finding,) = findings(content)
    assert finding.startswith("predicate.CacheEnable is true")
    del content["tiers"][1]["plugins"][1:3]
    assert [finding.split(":")[0] for finding in findings(content)] == [
        "The plugin predicates is missing or off",
        "The plugin nodeorder is missing",
    ]


def test_the_config_map_is_read_as_kubectl_prints_it() -> None:
    data = {"volcano-scheduler.conf": yaml.safe_dump(conf(ignorable=False))}
    (finding,) = findings({"apiVersion": "v1", "kind": "ConfigMap", "data": data})
    assert finding.startswith("extender.ignorable")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "tiers: 3",
        "tiers: []",
        "tiers: [3]",
        "tiers: [{plugins: [3]}]",
        "tiers: [{plugins: [{name: 3}]}]",
        "kind: ConfigMap",
        "kind: ConfigMap\ndata: {a.conf: x, b.conf: y}",
        "kind: ConfigMap\ndata: {a.conf: 7}",
        "a: 2001-99-99",
        "\x00",
        "[" * 5000,
        "a: &a [*a]",
    ],
)
def test_garbage_is_one_sentence(text: str) -> None:
    (finding,) = check(text)
    assert len(finding) < 300
    assert "must" in finding


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert check(text)


@pytest.mark.parametrize("verb", ["preemptable", "reclaimable", "queueOverused"])
def test_a_verb_on_which_there_is_no_opinion_is_found(verb: str) -> None:
    (output,) = findings(conf(**{f"{verb}Verb": verb}))
    assert output == f"extender.{verb}Verb is set: it costs calls and Isochrone has no opinion to give; remove it."
