"""Live bytes: which storages a piece of code makes, when each one dies, and how much is alive at once.

Works on real and on fake tensors alike, knows no allocator and no card, and never keeps a tensor alive:

    with LiveTracker() as tracker:
        features = tower(pixels)
    tracker.peak, tracker.live, tracker.events
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from mmswap.swap import interrupts
from mmswap.swap.between import is_aside
from mmswap.swap.event import SCRATCH, Event

Scratch = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], int]
"""`scratch(op, args, kwargs, result) -> bytes` that the kernel takes and gives back inside the op."""

_TrackerT = TypeVar("_TrackerT", bound="LiveTracker")


class LiveTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are made inside the `with` block and are alive.

    What existed before (weights, inputs) is not counted. Tensors that die after the block still produce their event.
    `made` counts the idents given so far. Autograd must be off; `no_grad` and `inference_mode` give the same events.

    Args:
        root: names for `Event.module` are taken from here; None leaves them empty.
        scratch: what kernels take inside an op; its events are added, `live` and `peak` leave it out.
    """

    def __init__(self, root: nn.Module | None = None, scratch: Scratch | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.live = 0
        self.peak = 0
        self.peak_with_scratch = 0
        self.made = 0
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._root = root
        self._scratch = scratch
        self._path: list[str] = [""]
        self._hooks: list[Any] = []
        self._depth = 0

    def __enter__(self: _TrackerT) -> _TrackerT:
        if self._root is not None and self._depth == 0:
            self._hooks = list(_name_modules(self._root, self._path))
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @property
    def entered(self) -> bool:
        """Whether the calling thread's ops go through it now."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        self._depth -= 1
        if self._depth == 0:
            for hook in self._hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_aside():  # somebody else's, between two layers
            return func(*args, **kwargs)
        if func.namespace == "prim":  # a question about a tensor (its device, its layout), and it makes none
            return self.told(func, args, kwargs)
        if _is_composite(func):  # only seen in inference mode, where nothing above has taken it apart
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = self.call(func, args, kwargs)
        self._count(func, args, kwargs, result)
        return result

    def told(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answers a question about a tensor."""
        return func(*args, **kwargs)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the op. What a subclass overrides to run it on stand-ins."""
        return func(*args, **kwargs)

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        fresh = [tensor for tensor in tensors_of(result) if tensor.untyped_storage()._cdata not in self._alive]
        if fresh:
            given: set[int] = set()
            if func is not _LIFT:  # `torch.tensor(...)`: its bytes are made outside every op and shown here
                given = {tensor.untyped_storage()._cdata for tensor in tensors_of((args, kwargs))}
            for tensor in fresh:
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self.born(storage, str(func))
        self.peak = max(self.peak, self.live)
        scratch = self._scratch(func, args, kwargs, result) if self._scratch is not None else 0
        if scratch > 0:
            self.made += 1
            self.events.append(Event(scratch, self.made, SCRATCH + str(func), self._path[-1]))
            self.events.append(Event(-scratch, self.made, "", ""))
        self.peak_with_scratch = max(self.peak_with_scratch, self.live + scratch)

    def ident_of(self, tensor: torch.Tensor) -> int | None:
        """The `Event.ident` of the bytes behind `tensor`; None if they were not made here."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry is not None else None

    def note(self, event: Event, ident: int | None) -> int:
        """Writes `event` down once more, as new bytes (`ident` None) or as the death of `ident`; returns the ident."""
        if ident is None:
            self.made += 1
            ident = self.made
        self.events.append(Event(event.delta, ident, event.op, event.module))
        return ident

    def born(self, storage: torch.UntypedStorage, op: str) -> None:
        """Counts a storage that was just made, until it dies."""
        nbytes = storage.nbytes()
        if nbytes == 0:
            return
        self.made += 1
        key, ident = storage._cdata, self.made

        @interrupts.guarded  # an exception in a weakref's callback is lost, and Ctrl-C with it
        def died(_: object) -> None:
            del self._alive[key]
            self.live -= nbytes
            self.events.append(Event(-nbytes, ident, "", ""))

        self._alive[key] = weakref.ref(storage, died), ident
        self.live += nbytes
        self.events.append(Event(nbytes, ident, op, self._path[-1]))


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts: what the arguments and results of an op are made of."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_of(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_of(item)


_LIFT = torch.ops.aten.lift_fresh.default
_COMPOSITE: dict[Any, bool] = {}


def _is_composite(func: Any) -> bool:
    if func not in _COMPOSITE:
        key = torch._C.DispatchKey.CompositeImplicitAutograd
        _COMPOSITE[func] = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return _COMPOSITE[func]


def _name_modules(root: nn.Module, path: list[str]) -> Iterator[Any]:
    for name, module in root.named_modules():

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
            path.append(name)

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            path.pop()

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave, always_call=True)
