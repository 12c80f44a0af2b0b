"""Which backend computes an op: the first of the list that is there and takes the arguments. Knows no op's mathematics.

    run, name, refused = resolve("rms_norm", x, weight, 1e-6, 0.0, True);  y = run(x, weight, 1e-6, 0.0, True)

A backend is a module with `NAME`, `available(device)` (None: it is there; else why not; never raises) and
`IMPLEMENTATIONS` (op -> `Implementation`). `use("reference")` forces one; what it does not take, `reference` computes.
It may have `prepare(device)`, which builds what is missing, and is called only where it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from mmswap.errors import OptionError

AUTO = "auto"
REFERENCE = "reference"
HOMES = {
    "triton": "mmswap.llm.ops.triton",
    "hip": "mmswap.hip_ext.backend",
    "cpu": "mmswap.llm.ops.cpu",
    REFERENCE: "mmswap.llm.ops.reference",
}
"""Backend -> the module that is it, fastest first."""

ON_CARDS = tuple(HOMES)
ON_HOST = ("cpu", REFERENCE)
_REMEMBERED = 4096  # choices of an op; a prompt of every length is one


@dataclass(frozen=True, slots=True)
class Implementation:
    """One op of one backend. Both take the op's arguments.

    Attributes:
        run: computes.
        refuses: None when `run` is right for these arguments, else the reason. It may look at shapes, strides, dtypes,
            devices and numbers, never at what tensors hold: the answer is remembered for the next call like it.
    """

    run: Callable[..., Any]
    refuses: Callable[..., str | None]


class Backend(Protocol):
    """What a backend's module has."""

    NAME: str
    IMPLEMENTATIONS: Mapping[str, Implementation]

    def available(self, device: torch.device) -> str | None: ...


class Resolved(NamedTuple):
    """What will run, of which backend, and why no faster one: (backend, reason), fastest first."""

    run: Callable[..., Any]
    name: str
    refused: tuple[tuple[str, str], ...]


_forced = AUTO
_backends: dict[str, Backend | str] = {}
_availability: dict[tuple[str, torch.device], str | None] = {}
_withdrawn: dict[tuple[str, str], str] = {}
_chosen: dict[str, dict[Any, Callable[..., Any]]] = {}


def use(name: str, device: torch.device | str | None = None) -> None:
    """Force a backend for this process, or `auto` again.

    Args:
        device: where it will compute; None: where it computes is not checked until an op is called.

    Raises:
        OptionError: there is no such backend, or it is missing here; the sentence says why.
    """
    global _forced
    check(name, device)
    _forced = name
    _forget()


def check(name: str, device: torch.device | str | None = None) -> None:
    """As `use`, and forces nothing."""
    if name != AUTO and name not in HOMES:
        raise OptionError(f"There is no backend '{name}': use {AUTO}, {', '.join(HOMES)}.")
    why = None if name == AUTO or device is None else _missing_though_wanted(name, torch.device(device))
    if why is not None:
        raise OptionError(f"--backend {name} cannot compute on {device}: {why}. Use --backend {AUTO}.")


def forced() -> str:
    """The backend in force, or `auto`."""
    return _forced


@contextmanager
def using(name: str) -> Iterator[None]:
    """`use` for the block."""
    before = _forced
    use(name)
    try:
        yield
    finally:
        use(before)


def order(device: torch.device) -> tuple[str, ...]:
    """Backends that are asked on this device, in their order."""
    if _forced != AUTO:
        return (_forced,) if _forced == REFERENCE else (_forced, REFERENCE)
    return ON_HOST if device.type == "cpu" else ON_CARDS


def missing(name: str, device: torch.device) -> str | None:
    """Why a backend cannot compute on a device; None when it can. Asked once."""
    if (name, device) not in _availability:
        backend = _load(name)
        _availability[name, device] = backend if isinstance(backend, str) else backend.available(device)
    return _availability[name, device]


def _missing_though_wanted(name: str, device: torch.device) -> str | None:
    """As `missing`, after the backend has built what it can build."""
    prepare = getattr(_load(name), "prepare", None)
    if prepare is not None and missing(name, device) is not None:
        prepare(device)
        del _availability[name, device]
    return missing(name, device)


def withdraw(name: str, op: str, why: str) -> None:
    """Ask this backend for this op no more in this process: it failed here, or was wrong."""
    _withdrawn[name, op] = why
    _forget()


def resolve(op: str, *arguments: Any) -> Resolved:
    """The implementation for these arguments. `run` serves every later call whose shapes, strides and dtypes are equal.

    Raises:
        OptionError: the forced backend is missing on the device of the arguments.
    """
    device = _device(arguments)
    if _forced != AUTO:
        check(_forced, device)
    refused: list[tuple[str, str]] = []
    for name in order(device):
        found, why = _asked(name, op, device, arguments)
        if found is not None:
            return Resolved(found.run, name, tuple(refused))
        refused.append((name, why))
    raise AssertionError(f"no backend takes {op}: {refused}")


def chooser(op: str, check: Callable[..., None]) -> Callable[[tuple[Any, ...]], Callable[..., Any]]:
    """As `resolve`, for arguments in a tuple, from memory where a call like this one was made before.

    `check` sees what is new. Tensors lie on one device, so the first one's stands for all.
    """
    memory = _chosen.setdefault(op, {})

    def choose(arguments: tuple[Any, ...]) -> Callable[..., Any]:
        key: list[Any] = [arguments[0].device]
        add = key.append  # written out: this stands in every call
        for argument in arguments:
            if argument is None:
                add(None)
            elif isinstance(argument, Tensor):
                add(argument.shape)
                add(argument.dtype)
                add(argument.is_contiguous() or argument.stride())
            else:
                add(tuple(argument) if argument.__class__ is list else argument)
        known = tuple(key)
        run = memory.get(known)
        if run is None:
            check(*arguments)
            if len(memory) >= _REMEMBERED:
                memory.clear()
            run = memory[known] = resolve(op, *arguments).run
        return run

    return choose


def _asked(name: str, op: str, device: torch.device, arguments: tuple[Any, ...]) -> tuple[Implementation | None, str]:
    """One backend's implementation if it takes the call, or why it does not."""
    why = missing(name, device) or _withdrawn.get((name, op))
    if why is not None:
        return None, why
    found = cast(Backend, _load(name)).IMPLEMENTATIONS.get(op)
    if found is None:
        return None, "it does not have this op"
    why = found.refuses(*arguments)
    return (found, "") if why is None else (None, why)


def _forget() -> None:
    for memory in _chosen.values():
        memory.clear()


def _load(name: str) -> Backend | str:
    """The backend's module, or why there is none."""
    if name not in _backends:
        home = HOMES[name]
        try:
            _backends[name] = cast(Backend, import_module(home))
        except ModuleNotFoundError as error:
            known = error.name is not None and home.startswith(error.name)
            _backends[name] = "it is not part of this installation" if known else f"it needs the package {error.name}"
        except Exception as error:  # a broken library must not end the program: the next backend computes
            lines = str(error).splitlines() or [""]
            _backends[name] = f"it cannot be imported: {type(error).__name__}: {lines[0]}"
    return _backends[name]


def _device(arguments: tuple[Any, ...]) -> torch.device:
    return next(argument.device for argument in arguments if isinstance(argument, Tensor))
