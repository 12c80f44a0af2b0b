"""`--quantize int4`: plain weights rounded to 4 bits as they are loaded, one after another. Knows no file.

rounding = Rounding(parts, torch.bfloat16)
rounding.wants("model.layers.0.mlp.up_proj.weight");  rounding.take(model, name, weight);  rounding.sentence()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmswap.errors import ModelError
from mmswap.llm.packing import drop, place
from mmswap.llm.parts import Parts
from mmswap.llm.quant import QuantLinear, QuantStack, Rounded, packed_bytes, quantise, sqnr_db
from mmswap.llm.quant.choice import Packable, packable, tied_head
from mmswap.units import format_bytes

GROUP = 128


class Rounding:
    """What is rounded, and how far that is from the plain weights.

    Args:
        parts: of the model on meta. head: the output head too.

    Attributes:
        fault: what was wrong with a weight, if anything was.
    """

    def __init__(self, parts: Parts, dtype: torch.dtype, *, head: bool = False) -> None:
        self._wanted = {one.name: one for one in packable(parts, head=head)}
        self._dtype = dtype
        self._tied = list(tied_head(parts)) if head else []
        self._signal = self._noise = 0.0
        self._plain = self._packed = self._count = 0
        self._least = (float("inf"), "")
        self.fault: ModelError | None = None

    @property
    def targets(self) -> frozenset[str]:
        """Names of the parameters that are rounded."""
        return frozenset(self._wanted)

    def nbytes(self) -> int:
        """What they will take."""
        return sum(packed_bytes(one.rows, one.columns, GROUP) for one in (*self._wanted.values(), *self._tied))

    def wants(self, name: str) -> bool:
        """Whether the parameter of that name goes to `take`."""
        return name in self._wanted

    def take(self, model: nn.Module, name: str, weight: Tensor) -> None:
        """Put the rounded weight into `model`, in place of the module or parameter that awaits the plain one."""
        one = self._wanted[name]
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        if one.experts:
            drop(module, attribute)
            place(module, attribute, self._stack(one, weight))
        else:
            model.set_submodule(path, self._linear(name, weight, module.bias))

    def finish(self, model: nn.Module) -> None:
        """What is left once every weight is there: a head that shares the embedding's weight gets its own."""
        for one in self._tied:
            path = one.name.rpartition(".")[0]
            head = model.get_submodule(path)
            assert isinstance(head.weight, Tensor)
            model.set_submodule(path, self._linear(one.name, head.weight.detach(), head.bias))

    def sentence(self) -> str:
        """What came of it, for the log."""
        if not self._count:
            return "--quantize int4 found no weight to round: the decoder has no linear layers."
        least, name = self._least
        return (
            f"{self._count} matrices were rounded to 4 bits in groups of {GROUP}: {format_bytes(self._plain)} became "
            f"{format_bytes(self._packed)}, SQNR {sqnr_db(self._signal, self._noise):.1f} dB, least {least:.1f} dB "
            f"({name})."
        )

    def _linear(self, name: str, weight: Tensor, bias: Any) -> QuantLinear:
        rounded = self._rounded(name, weight)
        made = QuantLinear(rounded.packed, None, self._dtype)
        made.bias = bias  # its own may still be on its way
        vars(made)["_is_hf_initialized"] = True
        return made

    def _stack(self, one: Packable, weight: Tensor) -> QuantStack:
        made = [self._rounded(one.name, part.t() if one.transposed else part).packed for part in weight]
        scales = [piece.scales for piece in made]
        if len({scale.dtype for scale in scales}) > 1:  # one expert alone has scales that float16 would lose
            scales = [scale.to(torch.bfloat16) for scale in scales]
        words, zeros = (torch.stack([getattr(piece, part) for piece in made]) for part in ("words", "zeros"))
        first = made[0]
        return QuantStack(
            words,
            torch.stack(scales),
            zeros,
            None,
            in_features=first.in_features,
            group_size=first.group_size,
            transposed=one.transposed,
            dtype=self._dtype,
        )

    def _rounded(self, name: str, weight: Tensor) -> Rounded:
        try:
            rounded = quantise(weight, group_size=GROUP)
        except ModelError as error:
            self.fault = ModelError(f"{name}: {error}")
            raise self.fault from None
        self._signal += rounded.signal
        self._noise += rounded.noise
        self._plain += weight.nbytes
        self._packed += rounded.packed.nbytes
        self._count += 1
        self._least = min(self._least, (rounded.sqnr_db, name.removesuffix(".weight")))
        return rounded
