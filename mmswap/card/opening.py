"""From the name that a person gives to the card: `open_card("auto" | "cpu" | "cuda:1" | "sim:16GiB@24GB/s")`."""

from __future__ import annotations

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.backend import Backend, TorchBackend
from mmswap.card.base import Card
from mmswap.card.host import HostCard
from mmswap.card.simulated import SimulatedCard
from mmswap.errors import OptionError


def open_card(spec: str, backend: Backend | None = None) -> Card:
    """The card that `spec` names.

    Args:
        spec: `auto` (the largest accelerator that is no part of the processor, or else the processor), `cpu`, `cuda`
            (the same, but there must be one), `cuda:1`, `sim:SIZE`, `sim:SIZE@LINK`.
        backend: what is asked about accelerators; `torch.cuda` by default.

    Raises:
        OptionError: no such card, with what there is.
    """
    spec = spec.strip()
    if spec == "cpu":
        return HostCard()
    if spec.partition(":")[0] == "sim":
        return SimulatedCard(spec)
    kind, colon, index = spec.partition(":")
    if spec != "auto" and (kind != "cuda" or (colon and not index.isdecimal())):
        raise OptionError(f"'{spec}' is not a card: use auto, cpu, cuda or cuda:0 (AMD cards too), sim:16GiB.")
    backend = backend or TorchBackend()
    count = backend.count()
    if spec == "auto" and count == 0:
        card = HostCard()
        card.choice = "torch sees no accelerator"
        return card
    if count == 0:
        raise OptionError(f"--card {spec}: torch sees no accelerator here; use --card cpu, or sim:16GiB to try one.")
    if index and int(index) >= count:
        raise OptionError(f"--card {spec}: there are {count} accelerators, cuda:0 to cuda:{count - 1}.")
    return AcceleratorCard(backend, int(index) if index else None)
