"""The GPUs that a pod gets on its node, as a decision names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuPick:
    """Cards by index. `predicted`: somebody else picks. `joined`: the word of their worst pair, empty for one card or
    where nobody knows it. `network`: how many have a network card beside them, or one on a rail of the partner's cards;
    empty where that is not known. `better`: the best set that was free and its word, where it is better than this one.
    """

    gpus: tuple[int, ...]
    predicted: bool = True
    joined: str = ""
    better: str = ""
    network: str = ""

    def show(self) -> str:
        """`0,1 (PIX)`, `2,3 (SYS; 4,5 would be PIX)`, `0,1 (PIX; 2 of 2 on the partner's rails)`."""
        named = ",".join(map(str, self.gpus))
        value = "; ".join(part for part in (self.joined, self.network, self.better) if part)
        return f"{named} ({value})" if value else named
