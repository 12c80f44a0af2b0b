"""The 4-bit modules of a checkpoint, read one by one into a model. Knows files and modules, no format.

packing = Packing(found, checkpoint.tensors, names, torch.float16)
packing.clear(model)          # on meta: what is packed takes no plain weight
packing.fill(model)           # after the plain weights: layers in 4 bits, in place
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mmswap.errors import KernelError, ModelError, told
from mmswap.llm.quant import Packed4, QuantLinear, QuantStack, Stored, Which, packed_bytes, read, rows_of
from mmswap.llm.quant.choice import computes_linearly
from mmswap.llm.quant.experts import pack_experts
from mmswap.llm.renaming import Names, Rows
from mmswap.llm.tensors import Later

_LOG = logging.getLogger("mmswap")


class Packing:
    """What a checkpoint holds in 4 bits, and where it goes.

    Attributes:
        taken: names of the file's tensors that are read here, and by nobody else.
        targets: names of the model's parameters that they stand for.

    Args:
        card: where GPTQ's tensors are brought into the layout, one weight at a time; None: on the host.

    Raises:
        ModelError: modules for which the model has no place.
    """

    def __init__(
        self,
        found: Which,
        tensors: Mapping[str, Tensor | Later],
        names: Names,
        dtype: torch.dtype,
        card: torch.device | None = None,
    ) -> None:
        self._stored, self._tensors, self._dtype, self._card = found.packed, tensors, dtype, card
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._rows = names.rows({name: rows_of(stored, shapes) for name, stored in found.packed.items()})
        every = {name for stored in found.packed.values() for name in stored.tensors}
        self.taken = {name for name in every if not name.endswith(".bias")}  # a bias is plain, and loaded as such
        self._biased = {name.removesuffix(".bias") for name in every - self.taken}
        self.targets = frozenset(rows.target for rows in self._rows)

    def clear(self, model: nn.Module) -> None:
        """Take the plain weights out of a model on meta.

        Raises:
            ModelError: a module that is no linear layer.
        """
        for rows in self._rows:
            path, attribute = _address(model, rows)
            module = model.get_submodule(path)
            if attribute is not None:
                drop(module, attribute)
                continue
            if not isinstance(module, nn.Linear) or not computes_linearly(module):
                raise ModelError(
                    f"{rows.sources[0]} is stored in 4 bits, and the model has a {type(module).__name__} there: take "
                    "the plain checkpoint."
                )
            bias: nn.Parameter | None = module.bias
            if bias is None and rows.whole and rows.sources[0] in self._biased:
                bias = nn.Parameter(torch.empty(len(rows.ids), dtype=self._dtype, device="meta"), requires_grad=False)
            model.set_submodule(path, Awaited(bias))

    def fill(self, model: nn.Module, advance: Callable[[], None] = lambda: None) -> None:
        """Read what was left out, module by module; `advance` is called after each.

        Raises:
            ModelError: tensors that are missing or do not belong together.
        """
        for rows in self._rows:
            path, attribute = _address(model, rows)
            module = model.get_submodule(path)
            if attribute is None:
                assert isinstance(module, Awaited)
                packed = self._piece(rows.sources[0]) if rows.whole else self._assembled(rows)
                self._check(rows, packed.in_features)
                model.set_submodule(path, QuantLinear(packed, module.bias, self._dtype))
            else:
                stack = self._stack(rows)
                self._check(rows, stack.in_features)
                place(module, attribute, stack)
            advance()
        if self._card is not None and self._card.type == "cuda":
            torch.cuda.empty_cache()  # what the layout was made in

    def nbytes(self) -> int:
        """What they will take, by the shapes of what the file holds."""
        total = 0
        for rows in self._rows:
            stored = self._stored[rows.sources[0]]
            groups, kind = self._scales(stored)
            for source in rows.sources:
                kind = torch.promote_types(kind, self._scales(self._stored[source])[1])
            group = stored.scheme.group_size or -(-rows.columns // groups)
            experts = len(rows.ids) if rows.ids.dim() > 1 else 1
            ordered = stored.scheme.act_order and groups > 1
            each = packed_bytes(
                rows.ids.numel() // experts, rows.columns, group, scale_bytes=kind.itemsize, reordered=ordered
            )
            total += experts * each
        return total

    def _scales(self, stored: Stored) -> tuple[int, torch.dtype]:
        """Scales of a row, and their dtype."""
        scales = next(self._tensors[name] for name in stored.tensors if name.endswith(("scales", "weight_scale")))
        shape = tuple(scales.shape) or (1,)
        return shape[0] if stored.scheme.method != "compressed-tensors" else shape[-1], scales.dtype

    def __len__(self) -> int:
        return len(self._rows)

    @staticmethod
    def _check(rows: Rows, found: int) -> None:
        if found != rows.columns:
            raise ModelError(
                f"{rows.target} takes {rows.columns} inputs and the file holds {found}: is config.json that of these "
                "weights?"
            )

    def _piece(self, source: str) -> Packed4:
        """On the host; by way of the card where a kernel of it brings this format into the layout."""
        stored = self._stored[source]
        tensors = {name: self._tensors[name][...] for name in stored.tensors if name in self.taken}
        if self._card is not None and stored.scheme.method == "gptq":
            try:
                there = {name: tensor.to(self._card) for name, tensor in tensors.items()}
                return read(stored, there)[0].to("cpu")
            except (KernelError, torch.OutOfMemoryError) as error:
                _LOG.warning("GPTQ's weights are laid out on the host, because the card cannot: %s", told(error))
                self._card = None
        return read(stored, tensors)[0]

    def _assembled(self, rows: Rows) -> Packed4:
        words, scales, zeros, (order,), like = self._gathered(rows)
        return Packed4(words[0], scales[0], zeros[0], like.in_features, like.group_size, order)

    def _stack(self, rows: Rows) -> QuantStack:
        words, scales, zeros, orders, like = self._gathered(rows)
        given = [order for order in orders if order is not None]
        if given and (len(given) < len(orders) or len({len(order) for order in given}) > 1):
            raise _unlike(rows)
        order = torch.stack(given) if given else None
        shape = {"in_features": like.in_features, "group_size": like.group_size}
        return QuantStack(words, scales, zeros, order, **shape, transposed=rows.transposed, dtype=self._dtype)

    def _gathered(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None], Packed4]:
        """words, scales, zeros [E, rows, ...], the order of each expert's columns, and one of the pieces."""
        source, row = (part.reshape(-1) for part in rows.split())
        shape = rows.ids.shape if rows.ids.dim() > 1 else (1, *rows.ids.shape)
        held: dict[str, Tensor] = {}
        orders: dict[int, Tensor | None] = {}
        like: Packed4 | None = None
        for index, at in enumerate(torch.split(torch.argsort(source, stable=True), torch.bincount(source).tolist())):
            if not len(at):
                continue
            piece = self._piece(rows.sources[index])
            like = like or piece
            if (piece.in_features, piece.group_size, piece.padded) != (like.in_features, like.group_size, like.padded):
                raise _unlike(rows)
            for name, tensor in piece.tensors():
                if name == "order":
                    continue
                into = held.setdefault(name, tensor.new_empty(source.numel(), tensor.shape[1]))
                if into.dtype != tensor.dtype:  # scales of pieces that were stored in different dtypes
                    into = held[name] = into.to(torch.promote_types(into.dtype, tensor.dtype))
                into[at] = tensor[row[at]].to(into.dtype)
            for expert in torch.unique(at // shape[-1]).tolist():
                if not _equal(orders.setdefault(expert, piece.order), piece.order):
                    raise _unlike(rows)
        assert like is not None
        words, scales, zeros = (held[name].view(*shape, -1) for name in ("words", "scales", "zeros"))
        return words, scales, zeros, [orders[expert] for expert in range(shape[0])], like


class Awaited(nn.Module):
    """Stands for a linear layer until its weight comes; the bias is loaded as of any other module."""

    def __init__(self, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.bias = bias


def drop(module: nn.Module, attribute: str) -> None:
    """Take a stack's plain weight out of its module, until `place` puts another there."""
    del module._parameters[attribute]
    setattr(module, attribute, nn.Module())
    vars(module)["_is_hf_initialized"] = True  # transformers would fill what it thinks is there with random numbers


def place(module: nn.Module, attribute: str, stack: QuantStack) -> None:
    """Put a stack where `drop` took one out, and let the module compute with it."""
    delattr(module, attribute)
    setattr(module, attribute, stack)
    pack_experts(module)


def _address(model: nn.Module, rows: Rows) -> tuple[str, str | None]:
    """The module, and its parameter where that is a stack of experts."""
    path, _, attribute = rows.target.rpartition(".")
    return path, attribute if rows.ids.dim() > 1 else None


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _unlike(rows: Rows) -> ModelError:
    parts = ", ".join(rows.sources[:3])
    return ModelError(
        f"{rows.target} is made of {parts}, which are stored in 4 bits in different ways (groups, order of columns). "
        "Take a checkpoint without desc_act, or the plain one with --quantize int4."
    )
