"""docs/contracts.md names what there is: the table is checked against the code and the chart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from admission.cli import app
from admission.settings import ControllerSettings, WebhookSettings
from manifests.render import CHART, INSTALL
from scheduler.model.reason import Reason
from topology import labels
from topology.agent.settings import AgentSettings

DOCS = INSTALL.parents[1] / "docs"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in (DOCS / "contracts.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| kind")
]


def names(kind: str) -> set[str]:
    """The first code word of each row of a kind."""
    return {re.findall(r"`([^`]+)`", row[1])[0] for row in ROWS if row[0] == kind}


def test_every_key_of_ours_is_listed() -> None:
    keys = {value for value in vars(labels).values() if isinstance(value, str) and value.startswith(labels.PREFIX)}
    listed = names("label") | names("annotation") | names("gate") | names("resource")
    assert listed == keys - {labels.PREFIX}


def test_every_reason_is_explained_under_its_own_heading() -> None:
    text = (DOCS / "reasons.md").read_text()
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == names("reason")
    for section in text.split("\n## ")[1:]:
        for question in ("What it means.", "Is waiting enough?", "What to try."):
            assert section.count(f"**{question}**") == 1, section.splitlines()[0]


def test_every_metric_is_listed() -> None:
    sources = [
        path for capacity in ("topology", "scheduler", "admission") for path in (DOCS.parent / capacity).rglob("*.py")
    ]
    used = {name for path in sources for name in re.findall(r'"(isochrone_[a-z_]+)"', path.read_text())}
    # The client adds _total to a counter's name.
    assert {name.removesuffix("_total") for name in names("metric")} == used


def test_every_reason_of_the_code_is_listed() -> None:
    assert names("reason") == {reason.value for reason in Reason}


def test_every_command_is_listed() -> None:
    commands = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    assert {row.split()[1] for row in names("command")} == commands


def test_every_setting_is_listed_and_the_chart_sets_no_other() -> None:
    fields = {*WebhookSettings.model_fields, *ControllerSettings.model_fields, *AgentSettings.model_fields}
    given = {
        entry["name"]
        for each in yaml.safe_load_all(INSTALL.read_text())
        if each["kind"] in ("Deployment", "DaemonSet")
        for entry in each["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    settings = {f"ISOCHRONE_{field.upper()}" for field in fields}
    assert given <= settings
    assert settings == names("setting")


def test_every_top_level_value_is_listed() -> None:
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == names("value")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted(DOCS.glob("*.md")))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    file = Path(DOCS.parent, page)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text()):
        assert (file.parent / target).exists(), target
