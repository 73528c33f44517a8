"""Property tests prove properties, not speed: no example fails because another program had the processor meanwhile.

Their examples are the same in every run, so that a change is judged and not the day; new ones are looked for by
`pytest --hypothesis-profile=explore tests`.

And a connection whose other end was too slow to close it ends with its event loop: the garbage collector would find it
in the middle of another test, and fail that one.
"""

import asyncio

from hypothesis import HealthCheck, settings

_ANY_MACHINE = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("same-examples", _ANY_MACHINE, derandomize=True)
settings.register_profile("explore", _ANY_MACHINE)
settings.load_profile("same-examples")

_close = asyncio.SelectorEventLoop.close


def _close_all(loop: asyncio.SelectorEventLoop) -> None:
    if not loop.is_closed() and not loop.is_running():
        for transport in list(loop._transports.values()):  # type: ignore[attr-defined]  # by file descriptor
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
    _close(loop)


asyncio.SelectorEventLoop.close = _close_all  # type: ignore[method-assign, assignment]
