"""A plan's questions answered by a blueprint: what its config says, and dry runs on shapes.

facts = traced(Blueprint.of("folder"), room);  facts.cost((1344, 1344, 1)).peak
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor
from torch.utils import _pytree as pytree

from mmswap.blueprint import Blueprint, Picture
from mmswap.llm.quant.section import method_of, section_of
from mmswap.sizing.cache import shortened
from mmswap.sizing.facts import About, Cost, Given, Seen, Size
from mmswap.sizing.groups import weigh
from mmswap.sizing.prompt import Prompt
from mmswap.sizing.room import Room
from mmswap.sizing.weights import Weights
from mmswap.swap import kernels
from mmswap.swap.dry_run import DryRun, calibrate
from mmswap.swap.peak import Peak
from mmswap.swap.replay import ARENA, TORCH, Policy
from mmswap.swap.scratch import ScratchTable
from mmswap.vision.cache import tensor_bytes
from mmswap.vision.tower import Call, run_tower


def traced(blueprint: Blueprint, room: Room) -> Traced:
    """The facts of a model on such a card; kept, for the same model is often asked about several."""
    return _traced(blueprint, TORCH if room.segments else ARENA, not room.kernels)


class Traced:
    """Remembers in this process what it has traced.

    Args:
        policy: how the card's allocator takes memory.
        rules: what kernels take for themselves is known by rules alone, as the card is not here; else by trying.

    Raises:
        ModelError: a part of the model cannot be found out from its config.
    """

    def __init__(self, blueprint: Blueprint, policy: Policy, rules: bool) -> None:
        self.name = blueprint.name
        self._blueprint = blueprint
        scratch = ScratchTable(None, rules=kernels.on_a_card) if rules else calibrate(policy)
        self._dry_run = DryRun(blueprint.model, twin=blueprint.twin, policy=policy, scratch=scratch)
        self._decoder = shortened(blueprint.parts, policy, scratch)
        self._pictures: dict[Size, Picture] = {}
        self._costs: dict[Size, Cost] = {}
        self._prompts: dict[Size, Prompt] = {}

    @property
    def sure(self) -> bool:
        """Whether no dry run has failed, and each was understood to its end."""
        lost = any(prompt.given.unknown for prompt in self._prompts.values())
        return not (lost or self._dry_run.failed or self._decoder.dry_run.failed)

    def about(self) -> About:
        config = self._blueprint.config
        return About(
            dtype=str(self._blueprint.dtype).removeprefix("torch."),
            attention=self._blueprint.attention,
            most=getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or 4096,
            frames=int(getattr(getattr(config, "vision_config", None), "temporal_patch_size", None) or 1),
            quantised=_quantised(config.to_dict()),
        )

    def weights(self, quantize: str | None) -> Weights:
        return weigh(self._blueprint.model, self._blueprint.tower, self._blueprint.parts, quantize)

    def patches(self, size: Size) -> int:
        known = self._costs.get(size)
        return known.picture.patches if known is not None else self._blueprint.patches(*size)

    def cost(self, size: Size) -> Cost:
        if size not in self._costs:
            picture = self._blueprint.picture(*size, encode=lambda call: self._peak(call).result)
            peak, given = self._peak(picture.call), (picture.call.args, picture.call.kwargs)
            tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
            colours = tensor_bytes([tensor for tensor in tensors if tensor.is_floating_point()])
            seen = Seen(picture.patches, picture.tokens)
            self._pictures[size] = picture
            self._costs[size] = Cost(*size, seen, tensor_bytes(tensors), colours, peak.output, peak)
        return self._costs[size]

    def given(self, size: Size) -> Given:
        return self._prompt(size).given

    def together(self, size: Size, chunk: int) -> int:
        return self._prompt(size).together(chunk)

    def step(self, size: Size, chunk: int) -> tuple[int, int]:
        return self._prompt(size).step(chunk)

    def _peak(self, call: Call) -> Peak:
        return self._dry_run.tower_peak(run_tower, call)

    def _prompt(self, size: Size) -> Prompt:
        if size not in self._prompts:
            peak = self.cost(size).peak
            self._prompts[size] = Prompt(
                self._blueprint, self._decoder, self._dry_run, self._pictures[size], size[2], peak.result
            )
        return self._prompts[size]


_traced = lru_cache(maxsize=4)(Traced)


def _quantised(config: dict[str, object]) -> str:
    """How a config says that its checkpoint is quantised, itself or for its language model; empty if it does not."""
    section = section_of(config)
    if section is None:
        return ""
    named = method_of(section)
    method = "by an unnamed method" if named == "unknown" else named
    bits = section.get("bits") or section.get("w_bit")
    return f"{method}, {bits} bits" if bits else method
