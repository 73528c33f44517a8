"""What placing a pod does to the room that remains: every node at once, in named losses, each in GPUs.

Rules of this file. (1) A loss is the value after minus the value before; below zero the placement mends something.
(2) Where a pod shares a GPU, every GPU of a node that has room is a row of its own; else a node has one row.

`remainder`: GPU left over minus what it is worth to the mix (topology/fragmentation/remainder.py). `fragmentation`: the
FGD measure (topology/fragmentation/unusable.py). `balance`: GPUs that no CPU is left for, or CPU that no GPU is left
for, at the CPU that the mix asks for with one GPU. `scarcity`: GPUs of a model that others cannot do without. `width`:
GPUs that the host has less than a wide one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI
from topology.fragmentation.unusable import Room, by_card, fragmented_gpus

Gpus = NDArray[np.float64]

WIDEST_HOST = 8
"""GPUs of a wide host; narrower ones are compared with it."""


@dataclass(frozen=True, slots=True)
class Harm:
    """Losses per row, in GPUs, shape (R,). `node` (R,) is the position of the row's node in the room asked about.

    `card_left` (R,): what is left on the shared GPU before (-1 where none is chosen).
    """

    node: NDArray[np.int64]
    card_left: NDArray[np.int64]
    remainder: Gpus
    fragmentation: Gpus
    balance: Gpus
    scarcity: Gpus
    width: Gpus


def harm(room: Room, pod: PodShape, mix: Mix, model_gpus: NDArray[np.int64] | None = None) -> Harm:
    """The losses of placing `pod` on every node of `room`; nodes whose GPUs have no room for it have no row.

    `model_gpus` (models,): how many GPUs of each model the cluster has; without it no model is scarce. CPU and memory
    are the caller's to check: a node is taken as one that fits.
    """
    found = [_on_cards(room, rows, card_mib, pod, mix) for card_mib, rows in by_card(room)]
    if len(found) == 1:
        rows = found[0]
    else:
        none = np.zeros(0, dtype=np.int64)
        of: dict[str, Any] = {
            f.name: np.concatenate([none, *(getattr(h, f.name) for h in found)]) for f in fields(Harm)
        }
        for name in ("node", "card_left"):
            of[name] = of[name].astype(np.int64)
        rows = Harm(**of)
    if not pod.gpus or model_gpus is None or not len(model_gpus):
        return rows
    share = np.array([pod.share_of(int(size)) for size in room.card_mib]) if pod.card_mib else pod.milli
    wanted = mix.scarcity(room.models, model_gpus)[room.model] * pod.gpus * share / WHOLE_MILLI
    return replace(rows, scarcity=wanted[rows.node])


def _on_cards(room: Room, rows: NDArray[np.int64], card_mib: int, pod: PodShape, mix: Mix) -> Harm:
    before = room if len(rows) == len(room) else room.take(rows)
    ask = pod.share_of(card_mib)
    of, after, card_left = _after(before, pod, ask)
    both = Room(
        np.concatenate([before.cpu_milli, after.cpu_milli]),
        np.concatenate([before.gpu_milli, after.gpu_milli]),
        np.concatenate([before.model, after.model]),
        room.models,
        np.concatenate([before.card_mib, after.card_mib]),
    )
    count = len(before)
    left = np.maximum(both.gpu_milli, 0).sum(axis=1) / WHOLE_MILLI
    fragmented = fragmented_gpus(both, mix)
    cards = mix.on_card(card_mib)
    skewed = _skewed(left, both.cpu_milli, cards.cpu_per_gpu_milli)
    lost = np.zeros(len(of))
    if 0 < ask < WHOLE_MILLI and mix.pods:
        held = np.minimum(np.maximum(both.gpu_milli, 0), WHOLE_MILLI)
        waste = left - cards.worth[held].sum(axis=1)
        lost = waste[count:] - waste[:count][of]
    return Harm(
        node=rows[of],
        card_left=card_left,
        remainder=lost,
        fragmentation=fragmented[count:] - fragmented[:count][of],
        balance=skewed[count:] - skewed[:count][of],
        scarcity=np.zeros(len(of)),
        width=np.maximum(WIDEST_HOST - (after.gpu_milli >= 0).sum(axis=1), 0).astype(np.float64),
    )


def _skewed(gpus: Gpus, cpu_milli: NDArray[np.int64], per_gpu: float) -> Gpus:
    """GPUs without CPU, or CPU without GPUs in GPUs; 0 while the mix asks for no CPU."""
    if per_gpu <= 0:
        return np.zeros(len(gpus))
    skewed: Gpus = np.abs(gpus - np.maximum(cpu_milli, 0) / per_gpu)
    return skewed


def _after(room: Room, pod: PodShape, ask: int) -> tuple[NDArray[np.int64], Room, NDArray[np.int64]]:
    """The rows: position of the node, the room afterwards, what was left on the GPU that is shared."""
    cpu = room.cpu_milli - pod.cpu_milli
    if not pod.gpus:
        every = np.arange(len(room))
        after = Room(cpu, room.gpu_milli, room.model, room.models, room.card_mib)
        return every, after, np.full(len(room), -1, dtype=np.int64)
    if pod.gpus == 1 and ask < WHOLE_MILLI:
        return _after_sharing(room, cpu, ask)
    # Several GPUs, or a whole one: the fullest that have room, the first among equals.
    fits = room.gpu_milli >= ask
    enough = np.flatnonzero(fits.sum(axis=1) >= pod.gpus)
    cards = np.where(fits[enough], room.gpu_milli[enough], np.iinfo(np.int64).max)
    taken = np.argsort(cards, axis=1, kind="stable")[:, : pod.gpus]
    left = room.gpu_milli[enough].copy()
    np.put_along_axis(left, taken, np.take_along_axis(left, taken, axis=1) - ask, axis=1)
    after = Room(cpu[enough], left, room.model[enough], room.models, room.card_mib[enough])
    return enough, after, np.full(len(enough), -1, dtype=np.int64)


def _after_sharing(room: Room, cpu: NDArray[np.int64], ask: int) -> tuple[NDArray[np.int64], Room, NDArray[np.int64]]:
    """One row for every different amount left on a node's GPUs that is enough."""
    cards = np.sort(room.gpu_milli, axis=1)
    fits = cards >= ask
    fits[:, 1:] &= cards[:, 1:] != cards[:, :-1]
    of, card = np.nonzero(fits)
    had = cards[of, card]
    left = cards[of]
    left[np.arange(len(of)), card] -= ask
    return of, Room(cpu[of], left, room.model[of], room.models, room.card_mib[of]), had
