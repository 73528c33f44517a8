"""The text of Volcano's scheduler configuration, with or without an extender."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

ACTIONS = "enqueue, allocate, backfill"
FIRST_TIER = ("priority", "gang", "conformance")
SECOND_TIER = ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack")


def scheduler_conf(
    extender: Mapping[str, Any] | None = None,
    actions: str = ACTIONS,
    arguments: Mapping[str, Mapping[str, Any]] | None = None,
    extra_plugins: Iterable[str] = (),
) -> str:
    """Volcano's default plugins (and binpack, as its Helm chart has it); `extender` are the keys after `extender.`.

    The extender stands in the second tier: once a tier has a permit, later tiers are not asked.
    `arguments` are plugin arguments by plugin name.
    """
    given = arguments or {}
    second = [*SECOND_TIER, *extra_plugins]
    tiers = [
        {"plugins": [_plugin(name, given.get(name)) for name in FIRST_TIER]},
        {"plugins": [_plugin(name, given.get(name)) for name in second]},
    ]
    if extender is not None:
        keys = {f"extender.{key.removeprefix('extender.')}": value for key, value in extender.items()}
        tiers[1]["plugins"].append(_plugin("extender", keys))
    return yaml.safe_dump({"actions": actions, "tiers": tiers}, sort_keys=False)


def with_extender_stanza(conf: str, stanza: str | Iterable[str]) -> str:
    """`conf` with an extender plugin written by someone else (the product) at the end of its last tier.

    `stanza` are the lines of one list item (`- name: extender` and its arguments) at any indentation.
    """
    lines = stanza if isinstance(stanza, str) else "\n".join(stanza)
    parsed = yaml.safe_load(lines)
    plugins = parsed if isinstance(parsed, list) else [parsed]
    whole = yaml.safe_load(conf)
    whole["tiers"][-1]["plugins"].extend(plugins)
    text: str = yaml.safe_dump(whole, sort_keys=False)
    return text


def _plugin(name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "arguments": dict(arguments)} if arguments else {"name": name}
