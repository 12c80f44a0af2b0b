"""A training forward of Qwen3-VL on the weights of the transformers model: dense batches, matmuls in bfloat16.

All pictures of a batch have one grid, so vision attention is a plain batched product. In float32 it equals
the transformers forward to rounding (tests/demo_model holds it to that).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration


class FastForward:
    def __init__(
        self, model: Qwen3VLForConditionalGeneration, dtype: torch.dtype = torch.bfloat16, compiled: bool = False
    ):
        self.visual, self.text = model.model.visual, model.model.language_model
        self.vision_config, self.text_config = model.config.vision_config, model.config.text_config
        self.dtype = dtype
        self._text_block = torch.compile(_text_block, dynamic=True) if compiled else _text_block
        self._rotary: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def look(self, patches: Tensor, grid: tuple[int, int], frozen: bool = False) -> tuple[Tensor, list[Tensor]]:
        """patches [B, N, 3*p*p] of one frame, grid in cells -> tokens [B, N/4, H], DeepStack tokens.

        `frozen` keeps gradients out of all but the DeepStack mergers.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            x, taps = self._blocks(patches, grid)
            tokens = self._merge(x, self.visual.merger)
        deep = [self._merge(tap, merger) for tap, merger in zip(taps, self.visual.deepstack_merger_list, strict=True)]
        return tokens, deep

    def _blocks(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
        proj = self.visual.patch_embed.proj
        weight = proj.weight.sum(2).flatten(1)  # both frames are the same picture
        x = F.linear(patches.to(self.dtype), weight.to(self.dtype), proj.bias.to(self.dtype)).float() + self._places(
            *grid
        )
        cos, sin = self._vision_rotary(*grid)
        taps = []
        for index, block in enumerate(self.visual.blocks):
            x = _vision_block(x, block, cos, sin, self.dtype)
            if index in self.vision_config.deepstack_visual_indexes:
                taps.append(x)
        return x, taps

    def read(
        self, ids: Tensor, positions: Tensor, mask: Tensor, slots: Tensor, seen: Tensor, deep: list[Tensor]
    ) -> Tensor:
        """ids [B, L], positions [3, B, L], additive mask [B, 1, L, L] -> hidden [B, L, H].

        `slots` are the places of the picture tokens in the flattened ids.
        """
        batch, length = ids.shape
        x = self.text.embed_tokens(ids).reshape(batch * length, -1)
        x = x.index_copy(0, slots, seen.reshape(-1, seen.shape[-1])).view(batch, length, -1)
        cos, sin = (t.to(self.dtype).unsqueeze(1) for t in self.text.rotary_emb(x, positions))
        mask = mask.to(self.dtype)
        for index, layer in enumerate(self.text.layers):
            x = self._text_block(x, layer, cos, sin, mask, self.dtype)
            if index < len(deep):
                x = (
                    x.view(batch * length, -1)
                    .index_add(0, slots, deep[index].reshape(-1, x.shape[-1]))
                    .view(batch, length, -1)
                )
        return _rms_norm(x, self.text.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self.dtype), self.text.embed_tokens.weight.to(self.dtype)).float()

    def _merge(self, x: Tensor, merger: nn.Module) -> Tensor:
        batch, count, width = x.shape
        if merger.use_postshuffle_norm:
            x = _layer_norm(x.reshape(batch, count // 4, 4 * width), merger.norm)
        else:
            x = _layer_norm(x, merger.norm).view(batch, count // 4, 4 * width)
        return _linear(F.gelu(_linear(x, merger.linear_fc1, self.dtype)), merger.linear_fc2, self.dtype).float()

    def _places(self, rows: int, columns: int) -> Tensor:
        """The learnt position table, interpolated to the grid, in merge order [4*rows*columns, D]."""
        side, width = self.visual.num_grid_per_side, self.vision_config.hidden_size
        table = self.visual.pos_embed.weight.t().reshape(1, width, side, side)
        table = F.interpolate(table, size=(rows * 2, columns * 2), mode="bilinear", align_corners=True)[0]
        return table.reshape(width, rows, 2, columns, 2).permute(1, 3, 2, 4, 0).reshape(-1, width)

    def _vision_rotary(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        if (rows, columns) not in self._rotary:
            y, x = torch.meshgrid(torch.arange(rows * 2), torch.arange(columns * 2), indexing="ij")
            y, x = (t.reshape(rows, 2, columns, 2).transpose(1, 2).reshape(-1, 1) for t in (y, x))
            half = self.vision_config.hidden_size // self.vision_config.num_heads // 2
            speed = 1 / (10000.0 ** (torch.arange(0, half, 2).float() / half))
            angle = torch.cat((y * speed, x * speed) * 2, -1)
            self._rotary[rows, columns] = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        return self._rotary[rows, columns]


def _vision_block(x: Tensor, block: nn.Module, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """x [B, N, D] -> [B, N, D]."""
    batch, count, width = x.shape
    heads = block.attn.num_heads
    qkv = _linear(_layer_norm(x, block.norm1), block.attn.qkv, dtype)
    q, k, v = qkv.view(batch, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = _attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
    x = x + _linear(mixed.transpose(1, 2).reshape(batch, count, width), block.attn.proj, dtype)
    return x + _linear(
        F.gelu(_linear(_layer_norm(x, block.norm2), block.mlp.linear_fc1, dtype)), block.mlp.linear_fc2, dtype
    )


def _text_block(x: Tensor, layer: nn.Module, cos: Tensor, sin: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """x [B, L, H], additive mask [B, 1, L, L] -> [B, L, H]."""
    batch, length, _ = x.shape
    attention = layer.self_attn
    size, groups = attention.head_dim, attention.num_key_value_groups
    y = _rms_norm(x, layer.input_layernorm)
    q = _rms_norm(_linear(y, attention.q_proj, dtype).view(batch, length, -1, size), attention.q_norm).transpose(1, 2)
    k = _rms_norm(_linear(y, attention.k_proj, dtype).view(batch, length, -1, size), attention.k_norm).transpose(1, 2)
    v = _linear(y, attention.v_proj, dtype).view(batch, length, -1, size).transpose(1, 2)
    q, k = _rotate(q.to(dtype), cos, sin), _rotate(k.to(dtype), cos, sin)
    q = q.reshape(batch, -1, groups, length, size)  # query heads by the key head they share
    mixed = _attend(q, k.unsqueeze(2), v.unsqueeze(2), mask.unsqueeze(2))
    x = x + _linear(
        mixed.reshape(batch, -1, length, size).transpose(1, 2).reshape(batch, length, -1), attention.o_proj, dtype
    )
    y = _rms_norm(x, layer.post_attention_layernorm)
    return x + _linear(
        F.silu(_linear(y, layer.mlp.gate_proj, dtype)) * _linear(y, layer.mlp.up_proj, dtype),
        layer.mlp.down_proj,
        dtype,
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Written out: on a CPU this is several times as fast, there and back, as the fused call in bfloat16."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return (scores if mask is None else scores + mask).softmax(-1) @ v


def _linear(x: Tensor, layer: nn.Linear, dtype: torch.dtype) -> Tensor:
    return F.linear(x.to(dtype), layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype))


def _layer_norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def _rms_norm(x: Tensor, layer: nn.Module) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), layer.weight, layer.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
