"""For commands that answer once and end: what they never use of torch and transformers stays unloaded.

transformers decorates a few functions for torch's compiler and its distributed half, and to do so loads a third of what
a process that calculates shapes loads in all; and it reads its thousand files twice to know what is in them.
`travel_light()` before the first model puts a stand-in in the compiler's place, whose decorators return the function as
it is. Whoever asks it for anything else, or calls `torch.compile`, gets the compiler itself.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_MASKING = f"{_COMPILER}._trace_wrapped_higher_order_op"  # transformers' masks take one name from it
_SOURCE = f"{_COMPILER}.source"  # torch's tensors on shapes are given one, which nobody looks at without a compiler


def travel_light() -> bool:
    """Whether this process does so from now on; False where it has the compiler, or transformers, in it already."""
    if _COMPILER in sys.modules or "transformers" in sys.modules:
        return False
    import torch

    torch.distributed.is_available = _no  # as it is in torch's builds for AMD cards on Windows
    folder = str(Path(str(torch.__file__)).with_name("_dynamo"))
    own = {"disable": _as_it_is, "assume_constant_result": _as_it_is, "allow_in_graph": _as_it_is}
    sources = {"ConstantSource": _Source, "AttrSource": _Source, "RandomValueSource": _Drawn}
    masking = sys.modules[_MASKING] = StandIn(_MASKING, {"TransformGetItemToIndex": _getting})
    source = sys.modules[_SOURCE] = StandIn(_SOURCE, sources)
    parts = {"_trace_wrapped_higher_order_op": masking, "source": source}
    sys.modules[_COMPILER] = StandIn(_COMPILER, {"__path__": [folder], **own, **parts})
    compiled = torch.compile

    def compile_after_all(*given: Any, **more: Any) -> Any:
        torch.compile = compiled
        _real(_COMPILER)
        return compiled(*given, **more)

    torch.compile = compile_after_all
    _list_models_once()
    return True


class StandIn(ModuleType):
    """A module of which some names are known. For any other the real one is loaded, and stays.

    Args:
        given: what it has without being loaded.
    """

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        parts = [Path(folder, name) for folder in self.__dict__.get("__path__", ())]
        if name.startswith("__") or any(part.is_dir() or part.with_suffix(".py").is_file() for part in parts):
            raise AttributeError(name)  # what the import system asks every module for; a submodule, which it then loads
        return getattr(_real(self.__name__), name)


def _real(name: str) -> ModuleType:
    """The module itself in place of its stand-in, with the submodules that were loaded beside it."""
    if isinstance(sys.modules.get(name), StandIn):
        del sys.modules[name]
        module = importlib.import_module(name)
        for full, part in list(sys.modules.items()):
            if full.rpartition(".")[0] == name:
                setattr(module, full.rpartition(".")[2], part)
    return sys.modules[name]


def _list_models_once() -> None:
    """transformers lists what is in its models' files for itself, and again for the folder they are in."""
    import transformers
    from transformers.utils import import_utils

    models, found = Path(transformers.__file__).parent / "models", import_utils.define_import_structure

    def listed(path: Any, prefix: str | None = None) -> Any:
        if prefix is not None or Path(path) != models / "__init__.py":
            return found(path, prefix)
        known = found(models, prefix="models")  # it keeps what it was asked before
        return {
            needs: {name.removeprefix("models."): names for name, names in files.items() if name.startswith("models.")}
            for needs, files in known.items()
        }

    import_utils.define_import_structure = listed


class _Source:
    """Where a tensor on shapes comes from, for nobody."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class _Drawn(_Source):
    """A number that was drawn: none is."""


def _no() -> bool:
    return False


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return _as_it_is if function is None else function


def _getting() -> Any:
    return _real(_MASKING).TransformGetItemToIndex()
