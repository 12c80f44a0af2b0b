"""A card that takes kernels and runs none: Triton's own compile and start, up to the driver, on a machine without one.

    card = pretend("gfx1100");  run(...);  card.started      # what would have been started

For processes of their own: Triton's driver is replaced for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from mmswap.llm.ops.triton import arch
from mmswap.llm.ops.triton.arch import Card


@dataclass
class Pretended:
    """Triton's driver, as far as it is asked.

    Attributes:
        started: (kernel's name, grid, arguments) in their order.
        loaded: names of the kernels that were loaded.
    """

    target: GPUTarget
    started: list[tuple[str, tuple[int, int, int], tuple[Any, ...]]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return self.target

    @property
    def utils(self) -> Pretended:
        return self

    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.loaded.append(name)
        return 1, 2, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        """Nothing is there."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 65536}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def start(x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
            assert (stream, function) == (7, 2)
            self.started.append((metadata.name, (x, y, z), rest[3:]))

        return start


def pretend(name: str) -> Pretended:
    """This process has such a card from now on; tensors of the CPU lie on it."""
    card = Card("cuda", name[3:], 32) if name.startswith("sm_") else Card("hip", name, 32)
    made = Pretended(GPUTarget(card.backend, int(card.arch) if card.backend == "cuda" else card.arch, card.lanes))
    driver.set_active(made)
    arch.card = lambda device: card  # type: ignore[assignment]
    arch.processors = lambda device: 96  # type: ignore[assignment]
    torch.cuda.current_device = lambda: None  # type: ignore[assignment, return-value]
    return made
