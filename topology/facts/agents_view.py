"""What the agents of nodes saw, as far as it may be used: fresh and stale facts count, expired ones are left out.

It keeps the last word of every agent, so that facts that expired count again as soon as the agent is heard. It says
what a change touches: a node table is made anew only where something that counted no longer does, or the other way
round. No clock: which facts are old comes in.
"""

from __future__ import annotations

from collections.abc import Mapping

from topology.facts.age import Aged, Freshness
from topology.facts.report import NodeFacts
from topology.gpus.seen_cards import SeenCards, seen_cards
from topology.reach.hardware_links import SeenLinks, seen_links

_NO_LINKS, _NO_CARDS = SeenLinks(), SeenCards()


class AgentsView:
    """By node name. `aged` are the nodes whose facts are not fresh; a new mapping after each change, never altered."""

    def __init__(self) -> None:
        self._links: dict[str, SeenLinks] = {}
        self._cards: dict[str, SeenCards] = {}
        self.aged: Mapping[str, Aged] = {}

    def hear(self, node: str, facts: NodeFacts) -> bool:
        """One agent's facts; whether they say anything else than before that counts."""
        links, cards = seen_links(facts), seen_cards(facts)
        if links == self._links.get(node, _NO_LINKS) and cards == self._cards.get(node, _NO_CARDS):
            return False
        self._links[node], self._cards[node] = links, cards
        return not self._expired(node)

    def forget(self, node: str) -> None:
        """The node is gone. How old its agent's facts are stays known: the agent may outlive the Node object."""
        self._links.pop(node, None)
        self._cards.pop(node, None)

    def knows(self, node: str) -> bool:
        """Whether anything that an agent saw of this node is kept."""
        return node in self._links

    def grow_old(self, changes: Mapping[str, Aged | None]) -> bool:
        """Nodes whose freshness changed, None for fresh again; whether anything came to count or no longer does."""
        before = {node for node in changes if self._expired(node)}
        aged = {**self.aged, **{node: aged for node, aged in changes.items() if aged is not None}}
        for node, now in changes.items():
            if now is None:
                aged.pop(node, None)
        self.aged = aged
        return any(self.knows(node) and (node in before) is not self._expired(node) for node in changes)

    @property
    def links(self) -> dict[str, SeenLinks]:
        """Links of every node, without those whose facts expired."""
        return {node: links for node, links in self._links.items() if not self._expired(node)}

    @property
    def cards(self) -> dict[str, SeenCards]:
        """Cards of every node, without those whose facts expired."""
        return {node: cards for node, cards in self._cards.items() if not self._expired(node)}

    def _expired(self, node: str) -> bool:
        aged = self.aged.get(node)
        return aged is not None and aged.freshness is Freshness.EXPIRED
