"""transformers' own place to change a model between its skeleton and its weights, for the loader. Knows no format.

    hook = Hook(rules=..., prepare=..., wants=..., take=...)
    kind.from_pretrained(None, state_dict=..., quantization_config=hook.config())

It is registered as a quantiser, because that is how transformers calls it; nothing of that stays on the model. Weights
are read one after another, so that no more than one lies beside those that were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

_NAME = "mmswap"


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """What is done while a model is loaded.

    Attributes:
        rules: by which tensors of the file become parameters, in place of transformers' own list.
        prepare: called with the model on meta, before any weight is there.
        wants: whether a parameter, by its name, goes to `take` and not into the model.
        take: called with the model, the name and the weight in the dtype in which it is stored.
    """

    rules: Sequence[Any]
    prepare: Callable[[Any], None]
    wants: Callable[[str], bool]
    take: Callable[[Any, str, Tensor], None]

    def config(self) -> QuantizationConfigMixin:
        """What `from_pretrained` takes as its `quantization_config`."""
        return _Config(self)


@register_quantization_config(_NAME)
class _Config(QuantizationConfigMixin):  # type: ignore[misc]
    """Carries the hook; a copy of it is itself."""

    def __init__(self, hook: Hook) -> None:
        self.quant_method = _NAME
        self.hook = hook

    def __deepcopy__(self, _: Any) -> _Config:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": _NAME}


@register_quantizer(_NAME)
class _Quantizer(HfQuantizer):  # type: ignore[misc]
    @property
    def hook(self) -> Hook:
        found: Hook = self.quantization_config.hook
        return found

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        self.hook.prepare(model)

    def update_weight_conversions(self, weight_conversions: Any, model: Any) -> list[Any]:
        return list(self.hook.rules)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return self.hook.wants(param_name)

    def get_quantize_ops(self) -> ConversionOps:
        return _Taking(self.hook)

    def postprocess_model(self, model: Any, **_: Any) -> None:
        """Leaves no trace: the model is an ordinary one, some of whose layers are ours."""
        self.remove_quantization_config(model)

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _Taking(ConversionOps):  # type: ignore[misc]
    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def convert(self, input_dict: dict[str, Any], model: Any = None, missing_keys: Any = None, **_: Any) -> Any:
        for name, value in input_dict.items():
            self._hook.take(model, name, value[0] if isinstance(value, list) else value)
            if missing_keys is not None:
                missing_keys.discard(name)
        input_dict.clear()
        return {}
