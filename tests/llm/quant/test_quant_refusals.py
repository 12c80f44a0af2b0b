"""What cannot be read is refused in one sentence that names the field or the tensor and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stored_layers import NAME, Layer, awq, compressed, gptq

from mmswap.errors import ModelError
from mmswap.llm.quant import read, which


def refused(layer: Layer) -> str:
    with pytest.raises(ModelError) as error:
        read(which(layer.config, layer.named).packed[NAME], layer.named)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert any(advice in text for advice in ("take ", "download ", "mend ")), text
    return text


@pytest.mark.parametrize(
    ("layer", "told", "field"),
    [
        (gptq(), {"quant_method": "bitsandbytes"}, "quant_method is bitsandbytes"),
        (gptq(), {"quant_method": "fp8"}, "quant_method is fp8"),
        (gptq(), {"bits": 8}, "bits 8"),
        (gptq(), {"bits": "4"}, "bits is '4'"),
        (gptq(), {"bits": None}, "bits None"),
        (gptq(), {"checkpoint_format": "marlin"}, "checkpoint_format is marlin"),
        (gptq(), {"is_marlin_format": True}, "checkpoint_format is marlin"),
        (gptq(), {"group_size": 32}, "group_size is 32"),
        (gptq(), {"group_size": -2}, "group_size is -2"),
        (gptq(), {"group_size": -1}, "group_size is -1"),
        (gptq(index=False), {"desc_act": True}, "desc_act"),
        (awq(), {"bits": 3}, "bits 3"),
        (awq(), {"version": "gemv"}, "version is gemv"),
        (awq(), {"group_size": 128}, "group_size is 128"),
        (awq(), {"quant_method": "compressed-tensors"}, "quant_method"),
        (compressed(), {"format": "int-quantized"}, "format is int-quantized"),
        (compressed(), {"format": "marlin-24"}, "format is marlin-24"),
        (compressed(), {"config_groups": {}}, "config_groups"),
        (compressed(), {"quant_method": "gptq", "bits": 4}, "quant_method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_config_that_cannot_be_read(layer: Layer, told: dict[str, Any], field: str) -> None:
    layer.section = layer.section | told
    assert field in refused(layer)


@pytest.mark.parametrize(
    ("weights", "field"),
    [
        ({"num_bits": 8}, "num_bits 8"),
        ({"type": "float"}, "type float"),
        ({"strategy": "block"}, "strategy block"),
        ({"group_size": 64}, "group_size is 64"),
        ({"actorder": "group"}, "actorder"),
        ({"actorder": "dynamic"}, "actorder"),
    ],
)
def test_group_of_a_config_that_cannot_be_read(weights: dict[str, Any], field: str) -> None:
    layer = compressed()
    layer.section["config_groups"]["group_0"]["weights"].update(weights)
    assert field in refused(layer)


def test_quantised_activations() -> None:
    layer = compressed()
    layer.section["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    assert "input_activations" in refused(layer)


@pytest.mark.parametrize("location", ["input", "weight_input"])
def test_rotations_at_every_token(location: str) -> None:
    """QuIP turns activations too; read without that, every layer would be nonsense. Fused ones need nothing."""
    layer = compressed()
    turned = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": location}]}
    layer.section["transform_config"] = {"config_groups": {"v": turned}}
    if location == "input":
        assert "transform_config turns each layer's input" in refused(layer)
    else:
        which(layer.config, layer.named)


def test_symmetric_weight_with_zero_points() -> None:
    layer = compressed(symmetric=False)
    layer.section["config_groups"]["group_0"]["weights"]["symmetric"] = True
    assert "weight_zero_point" in refused(layer)


@pytest.mark.parametrize(
    ("make", "suffix"),
    [(gptq, "scales"), (gptq, "qzeros"), (awq, "scales"), (awq, "qzeros"), (compressed, "weight_scale")],
)
def test_missing_tensor(make: Any, suffix: str) -> None:
    layer = make()
    del layer.tensors[suffix]
    assert f"its {suffix} is missing" in refused(layer)


def test_missing_zero_points_of_an_asymmetric_weight() -> None:
    layer = compressed(symmetric=False)
    del layer.tensors["weight_zero_point"]
    assert "its weight_zero_point is missing" in refused(layer)


@pytest.mark.parametrize(
    ("make", "suffix"),
    [
        (gptq, "qweight"),
        (gptq, "qzeros"),
        (gptq, "scales"),
        (gptq, "g_idx"),
        (awq, "qweight"),
        (awq, "qzeros"),
        (awq, "scales"),
        (compressed, "weight_packed"),
        (compressed, "weight_scale"),
    ],
)
def test_tensor_of_another_shape_or_kind(make: Any, suffix: str) -> None:
    layer = make()
    whole = layer.tensors[suffix]
    layer.tensors[suffix] = whole[: len(whole) // 2]
    refused(layer)
    if suffix != "g_idx":
        layer.tensors[suffix] = whole.to(torch.int64)
        assert f"{NAME}.{suffix} is torch.int64" in refused(layer)


@pytest.mark.parametrize("number", [-3, 4])
def test_index_of_a_group_that_is_not_there(number: int) -> None:
    layer = gptq()
    layer.tensors["g_idx"][5] = number
    assert "g_idx does not give each of 64 inputs one of 4 groups" in refused(layer)


def test_scales_that_are_not_finite() -> None:
    layer = awq()
    layer.tensors["scales"][0, 0] = float("nan")
    assert "not finite" in refused(layer)


def test_bias_of_another_length() -> None:
    layer = gptq(bias=True)
    layer.tensors["bias"] = torch.zeros(31)
    assert "bias is [31] and must be [32]" in refused(layer)


def test_shape_that_is_none() -> None:
    layer = compressed()
    layer.tensors["weight_shape"] = torch.tensor([32])
    assert "weight_shape" in refused(layer)


def test_weight_that_is_there_twice() -> None:
    layer = gptq()
    layer.tensors["weight"] = torch.zeros(32, 64)
    assert "twice" in refused(layer)


def test_packed_weights_without_a_config() -> None:
    with pytest.raises(ModelError, match=r"down_proj is packed and config\.json has no quantization_config"):
        which({}, gptq().named)


def test_parts_of_a_weight_without_the_weight() -> None:
    layer = gptq()
    del layer.tensors["qweight"]
    with pytest.raises(ModelError, match=r"down_proj\.g_idx, .*down_proj\.qzeros and no weight"):
        which(layer.config, layer.named)


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_scale_inv"])
def test_weights_in_eight_bits(suffix: str) -> None:
    """They keep their numbers in `weight`: taken as plain they would be nonsense."""
    names = ["model.layers.0.up.weight", f"model.layers.0.up.{suffix}"]
    section = compressed().section | {"format": "float-quantized"}
    with pytest.raises(ModelError, match=r"layers\.0\.up is quantised in a format"):
        which({"quantization_config": section}, names)
