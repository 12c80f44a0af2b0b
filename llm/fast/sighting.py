"""What was seen while a model decoded one token: which modules ran, in which order, on which tensors.

`with seen(decoder, layers) as sighting: model(...)` watches one forward and changes nothing. Knows transformers'
attention interface, and no architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module: what it was given and what it gave."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None

    @property
    def given(self) -> Any:
        """The tensor that it worked on: the first argument, else the first one by name."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    @property
    def result(self) -> Any:
        """The tensor that came out; of a tuple the first."""
        return self.output[0] if isinstance(self.output, tuple) else self.output


@dataclass(slots=True, eq=False)
class Looked:
    """One call of the attention function: by whom, `q [B,Hq,T,D]`, `k, v [B,Hk,L,D]`, and all that was said besides."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    more: dict[str, Any]
    output: Tensor


@dataclass(slots=True)
class Sighting:
    """One forward of a decoder, in order of time.

    Attributes:
        layers: the calls of its layers.
        inside: for each module the calls of its children that it made.
        ropes: calls of modules beside the layers that returned a pair of tensors.
        norms: calls of norms beside the layers.
        looks: calls of the attention function.
    """

    layers: list[Call] = field(default_factory=list)
    inside: dict[nn.Module, list[Call]] = field(default_factory=dict)
    ropes: list[Call] = field(default_factory=list)
    norms: list[Call] = field(default_factory=list)
    looks: list[Looked] = field(default_factory=list)

    def children(self, module: nn.Module) -> list[Call]:
        """The calls that `module` made of its own children."""
        return self.inside.get(module, [])


@contextmanager
def seen(decoder: nn.Module, layers: list[nn.Module]) -> Iterator[Sighting]:
    """Watch what runs inside the block: the layers, all that is in them, and what stands beside them."""
    sighting = Sighting()
    with ExitStack() as stack:
        for layer in layers:
            _listen(stack, layer, sighting.layers)
            for parent in layer.modules():
                for child in parent.children():
                    _listen(stack, child, sighting.inside.setdefault(parent, []))
        inner = {part for layer in layers for part in layer.modules()}
        for part in decoder.modules():
            if part not in inner and part is not decoder:
                _listen(stack, part, sighting.ropes, keep=_pair)
                if is_norm(part):
                    _listen(stack, part, sighting.norms)
        stack.enter_context(_looking(sighting.looks))
        yield sighting


def is_norm(module: nn.Module) -> bool:
    """Whether it looks like one: nothing inside, and no weight but a vector."""
    weight = getattr(module, "weight", None)
    plain = not any(True for _ in module.children()) and "norm" in type(module).__name__.lower()
    return plain and (weight is None or (isinstance(weight, Tensor) and weight.dim() == 1))


def _pair(output: Any) -> bool:
    return isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output)


def _listen(stack: ExitStack, module: nn.Module, calls: list[Call], keep: Callable[[Any], bool] | None = None) -> None:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if keep is None or keep(output):
            calls.append(Call(module, args, dict(kwargs), output))

    stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)


@contextmanager
def _looking(looks: list[Looked]) -> Iterator[None]:
    """Note the calls of whatever attention function a module looks up: SDPA's, or its own file's eager one."""
    own = AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, *args: Any, **kwargs: Any) -> Any:
        run = own(self, *args, **kwargs)

        def look(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **more: Any
        ) -> Any:
            output = run(module, query, key, value, attention_mask, **more)
            looks.append(Looked(module, query, key, value, attention_mask, more, output[0]))
            return output

        return look

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own
