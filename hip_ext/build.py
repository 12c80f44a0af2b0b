"""Builds the native kernels: sources are copied into a fresh folder and compiled there, the product goes to its place.

    path = build(Target("hip", ("gfx1100",), "7.2"), Surroundings.real(), folder)      # or KernelError
    python -m mmswap.hip_ext.build --arch gfx1100                        # by hand

Building imports no torch. MMSWAP_BUILD_CLEAN=0 keeps the folder with sources, commands and what the compilers said.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mmswap.errors import KernelError, told
from mmswap.hip_ext import compiler, folders
from mmswap.hip_ext.arch import hip_arch, names, unfit
from mmswap.hip_ext.compiler import PRODUCT, Plan
from mmswap.hip_ext.interface import FUNCTIONS
from mmswap.hip_ext.recipe import Target, source_files
from mmswap.hip_ext.surroundings import ProgramFailed, Surroundings

if TYPE_CHECKING:
    from mmswap.hip_ext.live import Live

LIMIT = 1800.0  # seconds for a compiler
LOG = "build.log"


def build(target: Target, here: Surroundings, into: Path) -> Path:
    """Compiles a product into the folder `into`, which is made; whoever builds the same at the same time does no harm.

    Raises:
        KernelError: an architecture is not one of the kernels', a compiler is missing or fails, or the folder cannot be
            written to.
    """
    for why in map(unfit, target.archs if target.kind == "hip" else ()):
        if why is not None:
            raise KernelError(why)
    plan = compiler.plan(here, target.kind, target.archs)
    if not isinstance(plan, Plan):
        raise KernelError("; ".join(part for part in (plan.reason, *plan.faults, plan.advice) if part))
    product = into / target.file(windows=here.windows)
    try:
        into.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="b-", dir=scratch_parent(here, into)))
    except OSError as error:
        raise KernelError(_unwritable(into, error)) from error
    try:
        _compile(plan, here, scratch)
        made = scratch / PRODUCT
        binary = made.read_bytes() if made.is_file() else b""
        lacking = [name for name in FUNCTIONS if name.encode("ascii") not in binary]
        if lacking:
            what = f"a library without {lacking[0]}" if binary else "nothing"
            raise KernelError(f"the compiler ended well and wrote {what}; {_kept(here, scratch)}")
        keep(binary, product)
    finally:
        if here.variable(folders.BUILD_CLEAN) != "0":
            shutil.rmtree(scratch, ignore_errors=True)
    return product


def scratch_parent(here: Surroundings, into: Path) -> Path:
    """Where compilers work: `into`, unless its path is one that Windows' tools do not bear and another's is."""
    temporary = Path(tempfile.gettempdir())
    return temporary if folders.faults_of(here, into) and not folders.faults_of(here, temporary) else into


def _compile(plan: Plan, here: Surroundings, scratch: Path) -> None:
    for source in source_files():
        shutil.copyfile(source, scratch / source.name)
    with (scratch / LOG).open("w", encoding="utf-8") as log:
        try:
            if plan.msvc is not None:
                environ = {**{name.upper(): value for name, value in here.environ.items()}}
                here = replace(here, environ={**environ, **compiler.variables(here, plan.msvc, scratch)})
            for words in plan.commands:
                log.write(f"{list(words)}\n")
                log.flush()
                log.write(here.run(words, LIMIT, scratch) + "\n")
        except OSError as error:
            log.write(getattr(error, "said", str(error)) + "\n")
            raise KernelError(_sentence(here, error, scratch)) from error


def _sentence(here: Surroundings, error: OSError, scratch: Path) -> str:
    said = error.said if isinstance(error, ProgramFailed) else ""
    first = next((line.strip() for line in said.splitlines() if "error" in line.lower()), told(error))
    return f"the compiler failed: {first[:300]}; {_kept(here, scratch)}"


def _kept(here: Surroundings, scratch: Path) -> str:
    if here.variable(folders.BUILD_CLEAN) == "0":
        return f"all that it said is in {scratch / LOG}"
    return f"{folders.BUILD_CLEAN}=0 keeps what it said"


def keep(product: bytes, place: Path) -> None:
    """Puts a product into its place in one step: who looks sees all of it or nothing.

    Raises:
        KernelError: the folder cannot be written to.
    """
    near = place.with_name(f"{uuid4().hex[:16]}.part")  # containers that share a cache have processes of equal numbers
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        near.write_bytes(product)
        near.replace(place)
    except OSError as error:
        with suppress(OSError):
            near.unlink(missing_ok=True)
        raise KernelError(_unwritable(place.parent, error)) from error


def _unwritable(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be written to ({told(error)}): let {folders.BUILD_ROOT} name a folder that can"


def main(arguments: list[str] | None = None) -> int:
    """Builds one library and says where it is; 1 and a sentence when that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m mmswap.hip_ext.build", description="Builds mmswap's native kernels."
    )
    parser.add_argument("--kind", choices=("hip", "cuda"), help="default: what the first card is, else hip")
    parser.add_argument(
        "--arch", help="gfx1100 or sm_90, several with ';'; default: MMSWAP_HIP_ARCH, or the card's own"
    )
    parser.add_argument("--into", type=Path, help="folder of the product; default: the build root")
    chosen = parser.parse_args(arguments)
    here = Surroundings.real()
    card = _card()
    kind = chosen.kind or (card.kind if card else "hip")
    own = card if card is not None and card.kind == kind else None
    asked = chosen.arch or (own.arch if own and kind == "cuda" else "")
    archs = asked or hip_arch(here, own.arch if own else None).value or ""
    into = chosen.into or Path(str(folders.build_root(here).value))
    try:
        if not archs:
            raise KernelError("no card is here and no architecture is named: name one with --arch")
        target = Target(kind, names(archs), own.runtime if own else "")
        print(build(target, here, into))
    except KernelError as error:
        print(f"mmswap: {error}.", file=sys.stderr)
        return 1
    if own is None or chosen.into:
        print("let MMSWAP_HIP_LIBRARY name it where it is to be used", file=sys.stderr)
    return 0


def _card() -> Live | None:
    """The first card, if torch is there and sees one: for it the cache is filled, under the name that is looked for."""
    try:
        import torch

        from mmswap.hip_ext.live import live

        found = live(torch.device("cuda", 0))
    except Exception:  # a torch that is missing or broken keeps nobody from building
        return None
    return None if isinstance(found, str) else found


if __name__ == "__main__":
    sys.exit(main())
