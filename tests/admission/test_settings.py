"""Settings come from ISOCHRONE_* and a wrong one is told in one line."""

from __future__ import annotations

import pytest

from admission.settings import RENAMED, ControllerSettings, IsochroneSettings, SizeBytes, WebhookSettings, old_names
from topology.bad_input import BadInput
from topology.environment import load
from topology.units import HostPort


def test_defaults() -> None:
    settings = load(WebhookSettings)
    assert settings.listen == HostPort("0.0.0.0", 8443)
    assert settings.health_listen == HostPort("0.0.0.0", 8081)
    assert (settings.cert_dir, settings.namespace, settings.service) == ("", "isochrone-system", "isochrone-webhook")
    assert (settings.cert_secret, settings.webhook_configuration) == ("isochrone-webhook-cert", "zz-isochrone")
    assert (settings.extra_names, settings.kubeconfig, settings.log_level) == ((), "", "info")
    assert settings.drain == 5_000_000


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        ("LISTEN", "127.0.0.1:0", "listen", HostPort("127.0.0.1", 0)),
        ("LISTEN", "[::1]:8443", "listen", HostPort("::1", 8443)),
        ("EXTRA_NAMES", "a.b, 10.0.0.1,", "extra_names", ("a.b", "10.0.0.1")),
        ("LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("DRAIN", "200ms", "drain", 200_000.0),
        ("CERT_DIR", "/certs", "cert_dir", "/certs"),
    ],
)
def test_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, read: object) -> None:
    monkeypatch.setenv(f"ISOCHRONE_{name}", value)
    monkeypatch.setenv("ISOCHRONE_PORT", "tcp://10.0.0.1:443")  # Kubernetes sets such for a Service called isochrone
    assert getattr(load(WebhookSettings), field) == read


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LISTEN", "8443", 'use HOST:PORT such as "0.0.0.0:8443" or "[::]:8443", with a port up to 65535'),
        ("LISTEN", "::1:8443", 'use HOST:PORT such as "0.0.0.0:8443" or "[::]:8443", with a port up to 65535'),
        ("LISTEN", "h:65536", 'use HOST:PORT such as "0.0.0.0:8443" or "[::]:8443", with a port up to 65535'),
        ("LISTEN", "h:٣", 'use HOST:PORT such as "0.0.0.0:8443" or "[::]:8443", with a port up to 65535'),
        ("NAMESPACE", "Team A", "use a Kubernetes name: small letters, digits, - and ."),
        ("EXTRA_NAMES", "a b", "use host names or IP addresses with commas between them"),
        ("LOG_LEVEL", "loud", "use debug, info, warning or error"),
        ("DRAIN", "5", 'use a duration such as "1ms", "100us" or "1.5ms", above 0 and at most 60s'),
    ],
)
def test_a_wrong_value_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str) -> None:
    monkeypatch.setenv(f"ISOCHRONE_{name}", value)
    with pytest.raises(BadInput) as caught:
        load(WebhookSettings)
    assert str(caught.value) == f"ISOCHRONE_{name} is {value!r}; {sentence}"


def test_shares_of_a_card_are_percentages(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = load(ControllerSettings)
    assert (defaults.memory_reserve, defaults.peak_limit) == (0.15, 0.85)
    monkeypatch.setenv("ISOCHRONE_MEMORY_RESERVE", "5%")
    monkeypatch.setenv("ISOCHRONE_PEAK_LIMIT", "90")
    settings = load(ControllerSettings)
    assert (settings.memory_reserve, settings.peak_limit) == (0.05, 0.9)
    for wrong in ("101%", "-1", "half", "0.5"):
        monkeypatch.setenv("ISOCHRONE_PEAK_LIMIT", wrong)
        with pytest.raises(BadInput, match=r"^ISOCHRONE_PEAK_LIMIT is '.*'; use a whole percentage from 0 to 100"):
            load(ControllerSettings)


def test_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOCHRONE_LISTEN", "127.0.0.1:1")
    assert load(WebhookSettings, listen=HostPort("127.0.0.1", 2)).listen.port == 2


def test_the_types_serve_other_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(IsochroneSettings):
        max_body: SizeBytes = 1

    monkeypatch.setenv("ISOCHRONE_MAX_BODY", "512Mi")
    assert load(Other).max_body == 512 * 2**20
    monkeypatch.setenv("ISOCHRONE_MAX_BODY", "lots")
    with pytest.raises(BadInput, match=r"ISOCHRONE_MAX_BODY is 'lots'; use a size"):
        load(Other)


@pytest.mark.parametrize("names", [tuple(RENAMED), tuple(RENAMED.values())])
def test_old_names_of_variables_still_work(monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]) -> None:
    settle, bypass_limit = names
    monkeypatch.setenv(settle, "2s")
    monkeypatch.setenv(bypass_limit, "3")
    settings = load(ControllerSettings)
    assert (settings.settle, settings.bypass_limit) == (2_000_000.0, 3)
    given = load(ControllerSettings, settle="5ms", bypass_limit="0")
    assert (given.settle, given.bypass_limit) == (5_000.0, 0), "the command line wins"


def test_the_new_name_of_a_variable_wins_over_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOCHRONE_QUIET", "2s")
    monkeypatch.setenv("ISOCHRONE_SETTLE", "3s")
    assert load(ControllerSettings).settle == 3_000_000.0


@pytest.mark.parametrize("name", ["ISOCHRONE_QUIET", "ISOCHRONE_SETTLE"])
def test_a_wrong_value_of_a_renamed_variable_has_its_new_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "soon")
    with pytest.raises(BadInput, match=r"^ISOCHRONE_SETTLE is 'soon'; use a duration"):
        load(ControllerSettings)


def test_an_old_name_is_told_with_the_new_one() -> None:
    assert old_names({"ISOCHRONE_SETTLE": "1s", "ISOCHRONE_LISTEN": ""}) == []
    (sentence,) = old_names({"ISOCHRONE_QUIET": "1s"})
    assert sentence.startswith("ISOCHRONE_QUIET is now called ISOCHRONE_SETTLE;")
