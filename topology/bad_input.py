"""The one exception for input that somebody else got wrong."""

from __future__ import annotations


class BadInput(ValueError):  # noqa: N818  # the caller's mistake, not a failure of ours
    """One clear sentence: which field, which value, what is allowed. Nothing was changed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} is {shown}; {allowed}")
