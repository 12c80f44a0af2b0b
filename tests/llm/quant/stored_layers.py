"""Quantised layers written as other tools write them, element by element, with the weight they stand for in float64.

The layouts are restated from the formats' own descriptions and share no code with what is tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAME = "model.layers.0.mlp.down_proj"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Layer:
    section: dict[str, Any]
    tensors: dict[str, Tensor]
    weight: np.ndarray
    codes: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def named(self) -> dict[str, Tensor]:
        return {f"{NAME}.{suffix}": tensor for suffix, tensor in self.tensors.items()}

    @property
    def config(self) -> dict[str, Any]:
        return {"model_type": "toy", "quantization_config": self.section}


def words(nibbles: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """int32 words along `axis`: nibble j of word w is element 8w + order[j]; what is missing at the end is 0."""
    rows = np.moveaxis(nibbles, axis, -1)
    found = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // 8)), np.uint32)
    for place in np.ndindex(found.shape):
        for j, element in enumerate(order):
            column = 8 * place[-1] + element
            if column < rows.shape[-1]:
                found[place] |= np.uint32(int(rows[(*place[:-1], column)]) << (4 * j))
    return torch.tensor(np.moveaxis(found.view(np.int32), -1, axis).tolist(), dtype=torch.int32)  # strides of a file's


def drawn(seed: int, inputs: int, outputs: int, group: int, symmetric: bool, dtype: torch.dtype, magnitude: float):
    """(generator, codes [in, out], zeros [g, out], scales [g, out], the same in float64, group of each input)."""
    random = np.random.default_rng(seed)
    whole = group if group > 0 else inputs
    groups = -(-inputs // whole)
    codes = random.integers(0, 16, (inputs, outputs))
    zeros = np.full((groups, outputs), 8) if symmetric else random.integers(0, 16, (groups, outputs))
    scales = torch.from_numpy(random.uniform(0.5, 2.0, (groups, outputs)) * magnitude).to(dtype)
    return random, codes, zeros, scales, scales.double().numpy(), np.arange(inputs) // whole


def gptq(
    inputs: int = 64,
    outputs: int = 32,
    group: int = 16,
    *,
    symmetric: bool = False,
    form: str | None = "gptq",
    act: bool = False,
    index: bool = True,
    bias: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 3,
) -> Layer:
    random, codes, zeros, scales, exact, groups = drawn(seed, inputs, outputs, group, symmetric, dtype, 0.01)
    groups = random.permutation(groups) if act else groups
    weight = (exact[groups] * (codes - zeros[groups])).T
    stored = zeros if form == "gptq_v2" else (zeros - 1) & 15
    tensors = {"qweight": words(codes, 0), "qzeros": words(stored, 1), "scales": scales}
    if index:
        tensors["g_idx"] = torch.from_numpy(groups.astype(np.int32))
    if bias:
        tensors["bias"] = torch.from_numpy(random.normal(size=outputs)).to(dtype)
    section = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": act, "sym": symmetric}
    return Layer(section | ({"checkpoint_format": form} if form else {}), tensors, weight, codes)


def awq(
    inputs: int = 64, outputs: int = 32, group: int = 16, *, dtype: torch.dtype = torch.float16, seed: int = 5
) -> Layer:
    _, codes, zeros, scales, exact, groups = drawn(seed, inputs, outputs, group, False, dtype, 0.01)
    weight = (exact[groups] * (codes - zeros[groups])).T
    tensors = {"qweight": words(codes, 1, AWQ_ORDER), "qzeros": words(zeros, 1, AWQ_ORDER), "scales": scales}
    section = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Layer(section | {"modules_to_not_convert": ["visual"]}, tensors, weight, codes)


def compressed(
    inputs: int = 64,
    outputs: int = 32,
    group: int = 16,
    *,
    symmetric: bool = True,
    act: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    magnitude: float = 0.01,
    unpacked_zeros: bool = False,
    seed: int = 9,
) -> Layer:
    random, codes, zeros, scales, exact, groups = drawn(seed, inputs, outputs, group, symmetric, dtype, magnitude)
    groups = random.permutation(groups) if act else groups
    weight = (exact[groups] * (codes - zeros[groups])).T
    tensors = {"weight_packed": words(codes.T, 1), "weight_scale": scales.t().contiguous()}
    tensors["weight_shape"] = torch.tensor([outputs, inputs])
    if not symmetric:
        plain = torch.from_numpy((zeros.T - 8).astype(np.int8)).contiguous()
        tensors["weight_zero_point"] = plain if unpacked_zeros else words(zeros.T, 0)
    if act:
        tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group" if group > 0 else "channel"}
    weights |= {"group_size": group if group > 0 else None, "actorder": "group" if act else None}
    section = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*visual.*"]}
    section["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return Layer(section, tensors, weight, codes)
