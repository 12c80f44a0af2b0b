"""Lends the memory of any model's layers to any other code, and gets every bit back.

    python examples/window_on_any_module.py [--card sim:24MiB@2GB/s]

A stack of layers and an encoder that do not fit on the card together: with a window around the encoder they do.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from mmswap.swap import SwapPool
from mmswap.units import format_bytes


def build() -> tuple[nn.ModuleList, nn.Module]:
    """Four layers that are always needed (16 MiB), and an encoder that is needed now and then."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(4))
    encoder = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512))
    return layers.eval(), encoder.eval()


def run_layers(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = x + layer(x)
    return x


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="sim:24MiB@2GB/s")
    card = parser.parse_args().card

    layers, encoder = build()
    pool = SwapPool([(f"layer {index}", layer) for index, layer in enumerate(layers)], card=card)
    device = pool.card.device
    encoder.to(device)
    pixels = torch.randn(256, 512).to(device)
    before = run_layers(layers, pixels)

    need = 3 * 256 * 4096 * 4  # bytes: two activations of the encoder at once, and some more
    with pool.window(need=need, overlap=True) as window:
        features = window.keep(encoder(pixels))  # `keep`: outlives the window
    after = run_layers(layers, pixels)  # each layer waits for its own weights only
    pool.settle()

    report = window.report
    print(report.reason)
    print(f"evicted: {', '.join(report.evicted) or 'nothing'}; peak inside {format_bytes(report.peak_measured)}")
    print(f"restored {format_bytes(report.restored_bytes)} in {report.restore_ms:.1f} ms, ", end="")
    print(f"{report.restore_hidden_ms:.1f} ms of it behind the layers; spilled {report.spilled_bytes} bytes")
    print(f"features {tuple(features.shape)}; the layers compute the same: {torch.equal(before, after)}")


if __name__ == "__main__":
    main()
