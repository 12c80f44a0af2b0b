"""What a model's forward makes on its way to its decoder: merged embeddings, masks, positions. Found on the twin.

`Way(inputs, features, entry)` is a call that a dry run can make; `to_decoder(twin, way)` walks it, and stops where the
decoder would begin. Nothing is encoded: the features are those of the tower's own dry run, without numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import DynamicCache

from mmswap.errors import told
from mmswap.llm.division import Ahead, look_ahead
from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import cache_argument
from mmswap.swap.intercept import intercepted
from mmswap.vision.tower import find_tower


@dataclass(frozen=True, slots=True)
class Way:
    """A prompt's inputs, the features of its pictures (None without any), and the callable that gives them."""

    inputs: Mapping[str, Any]
    features: Any = None
    entry: str = ""

    def mapped(self, change: Any) -> Way:
        """The same with `change(tensor)` in place of every tensor."""
        inputs, features = pytree.tree_map_only(Tensor, change, (dict(self.inputs), self.features))
        return Way(inputs, features, self.entry)


class _Reached(BaseException):
    """Stops the model's forward where its decoder begins."""

    def __init__(self, ahead: Ahead) -> None:
        super().__init__()
        self.ahead = ahead


def to_decoder(model: nn.Module, way: Way) -> Ahead:
    """What the decoder of `model` is about to be given; its embeddings alone where the way there is not understood."""
    decoder = find_parts(model).decoder

    def stop(*args: Any, **kwargs: Any) -> NoReturn:
        raise _Reached(look_ahead(decoder, args, kwargs, way.features))

    known = inspect.signature(model.forward).parameters
    given = {name: value for name, value in way.inputs.items() if name in known or len(known) <= 2}
    with ExitStack() as stack:
        if way.features is not None:
            tower = find_tower(model)
            tower.entry = way.entry
            stack.enter_context(tower.replay(way.features))
        stack.enter_context(intercepted(decoder, "forward", stop))
        try:
            model(**given, **cache_argument(model, DynamicCache(config=decoder.config)), use_cache=True)
        except _Reached as reached:
            return reached.ahead
        except Exception as error:
            return _embeddings(model, way, told(error))
    return _embeddings(model, way, "its forward ends without its decoder")


def _embeddings(model: Any, way: Way, why: str) -> Ahead:
    """The least that any decoder is given: a vector for each token."""
    table, tokens = model.get_input_embeddings().weight, int(way.inputs["input_ids"].shape[1])
    return Ahead(tokens * table.shape[-1] * table.element_size(), tokens=tokens, unknown=why)
