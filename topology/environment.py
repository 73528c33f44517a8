"""EDGE: the settings of a process, from its environment: `ISOCHRONE_LISTEN`, `ISOCHRONE_NODE_NAME` and so on.

Decides how a wrong value is refused: one line that names the variable. It must never know what a setting is for.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, ValidationError
from pydantic_settings import BaseSettings

from topology.bad_input import BadInput

ENV_PREFIX: Final = "ISOCHRONE_"
FIELD: Final = "setting"  # what a validator names in its BadInput; `load` puts the variable's name in its place
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def _log_level(value: object) -> str:
    level = str(value).lower()
    if level not in _LOG_LEVELS:
        raise BadInput(FIELD, value, f"use {', '.join(_LOG_LEVELS[:-1])} or {_LOG_LEVELS[-1]}")
    return level


LogLevel = Annotated[str, BeforeValidator(_log_level)]
Settings = TypeVar("Settings", bound=BaseSettings)


def load(cls: type[Settings], **given: Any) -> Settings:
    """The settings from the environment; `given` (command line) wins. Raises BadInput, one line, for a wrong value."""
    try:
        return cls(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        if not isinstance(cause, BadInput):
            cause = BadInput(FIELD, first.get("input"), first["msg"])
        # A check of several settings together has no place of its own and names one of them.
        field = "_".join(str(part) for part in first["loc"]) or cause.field
        raise BadInput(ENV_PREFIX + field.upper().removeprefix(ENV_PREFIX), cause.value, cause.allowed) from None
