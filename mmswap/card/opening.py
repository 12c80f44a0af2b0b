"""From the name that a person gives to the card: `open_card("auto" | "cpu" | "cuda:1" | "sim:16GiB@24GB/s")`."""

from __future__ import annotations

import logging

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.backend import Backend, TorchBackend
from mmswap.card.base import Card
from mmswap.card.choosing import Unusable, require_kernel
from mmswap.card.host import HostCard
from mmswap.card.known import known_card
from mmswap.card.simulated import SimulatedCard
from mmswap.errors import OptionError
from mmswap.units import format_bytes

log = logging.getLogger(__name__)


def open_card(spec: str, backend: Backend | None = None, vram_limit: int | None = None) -> Card:
    """The card that `spec` names.

    Args:
        spec: `auto` (the largest accelerator that is no part of the processor, or else the processor), `cpu`, `cuda`
            (the same, but there must be one), `cuda:1`, `sim:SIZE`, `sim:SIZE@LINK`.
        backend: what is asked about accelerators; `torch.cuda` by default.
        vram_limit: bytes of the card that this process may use.

    Raises:
        OptionError: no such card, with what there is; or one that can run no kernel, with what it wants. `auto` goes on
            to the next one then, and at last to the processor, and says so.
    """
    spec = spec.strip()
    if spec == "cpu":
        return _host("it was asked for", vram_limit)
    if spec.partition(":")[0] == "sim":
        return SimulatedCard(spec, vram_limit=vram_limit)
    kind, colon, index = spec.partition(":")
    if spec != "auto" and (kind != "cuda" or (colon and not index.isdecimal())):
        raise OptionError(_no_card(spec))
    backend = backend or TorchBackend()
    count = backend.count()
    if spec == "auto" and count == 0:
        return _host("torch sees no accelerator", vram_limit)
    if count == 0:
        raise OptionError(f"--card {spec}: torch sees no accelerator here; use --card cpu, or sim:16GiB to try one.")
    if index and int(index) >= count:
        raise OptionError(f"--card {spec}: there are {count} accelerators, cuda:0 to cuda:{count - 1}.")
    if index:
        require_kernel(backend, int(index))
        return AcceleratorCard(backend, int(index), vram_limit)
    try:
        return AcceleratorCard(backend, None, vram_limit)
    except Unusable as error:
        if spec != "auto":
            raise
        log.warning("%s The processor is used instead, which is much slower.", error)
        return _host(f"no accelerator can run a kernel: {error}".rstrip("."), vram_limit)


def _no_card(spec: str) -> str:
    """What to write instead; a card's name is none, but says which simulated one is like it."""
    try:
        card = known_card(spec)
    except OptionError:
        return f"'{spec}' is not a card: use auto, cpu, cuda or cuda:0 (AMD cards too), sim:16GiB."
    size = format_bytes(card.total).replace(".0 ", "")
    return (
        f"'{spec}' is a card's name, which only mmswap plan takes (--card \"{card.name}\"): use cuda if it is in this "
        f"machine, or sim:{size}@{card.link_rate / 1e9:.1f}GB/s to simulate one of its size."
    )


def _host(choice: str, vram_limit: int | None) -> HostCard:
    card = HostCard()
    card.choice = choice
    if vram_limit is not None:
        log.warning("--vram-limit %s limits a card's memory; the processor has none.", format_bytes(vram_limit))
    return card
