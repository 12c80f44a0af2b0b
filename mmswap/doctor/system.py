"""The system, Python, torch and the other packages: what is there, and whether it is enough. Knows no card.

Versions are read from the installed packages' metadata; that a package can be imported, only its import tells.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from mmswap.doctor.check import Check, sentence
from mmswap.hip_ext.surroundings import Surroundings, is_file, numbers

OLDEST_PYTHON = (3, 10)
MODULES = {"pillow": "PIL"}  # where a package is imported by another name
DRIVERS = {"amdgpu": "/sys/module/amdgpu/version", "NVIDIA": "/proc/driver/nvidia/version"}
VARIABLES = (
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "HSA_ENABLE_SDMA",
    "HSA_XNACK",
    "GPU_MAX_HW_QUEUES",
    "AMD_SERIALIZE_KERNEL",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "TRITON_INTERPRET",
    "OMP_NUM_THREADS",
    "HF_HUB_OFFLINE",
)


def operating_system(here: Surroundings) -> Check:
    """Name, release and machine; never the host's name."""
    value = f"{platform.system()} {platform.release()} {platform.machine()}"
    if here.windows:
        value = f"Windows {platform.release()} {platform.version()} {platform.machine()}"
    elif sys.platform.startswith("linux"):
        value = f"{_distribution()}, kernel {platform.release()} {platform.machine()}"
    facts = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    if "microsoft" in platform.release().lower():
        reason = "this is WSL2: the driver's figures count everybody here, and a spill cannot be seen from inside"
        return Check("os", "note", value, reason, facts=facts)
    return Check("os", "ok", value, facts=facts)


def driver(here: Surroundings) -> Check:
    """The version of the kernel's driver for cards, where Linux tells one."""
    found = {}
    for name, file in DRIVERS.items():
        try:
            text = here.place(file).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        found[name] = (text.splitlines() or [""])[0].removeprefix("NVRM version:").strip()
    value = ", ".join(f"{name} {version}".strip() for name, version in found.items())
    return Check("driver", "ok", value or "none that tells its version", facts=found)


def processor() -> Check:
    """Name and cores."""
    name = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
        name = match[1].strip() if match else name
    except OSError:
        pass
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    value = f"{name}, {cores} cores" + (f", {usable} of them for this process" if usable != cores else "")
    return Check("processor", "ok", value, facts={"name": name, "cores": cores, "usable_cores": usable})


def python() -> Check:
    """Version and width; 32 bits and versions before 3.10 cannot run mmswap."""
    bits = 8 * struct.calcsize("P")
    where = "in a virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    version = platform.python_version()
    value = f"{platform.python_implementation()} {version}, {bits} bits, {where}"
    facts = {"version": version, "bits": bits, "file_system_encoding": sys.getfilesystemencoding()}
    if sys.version_info < OLDEST_PYTHON or bits < 64:
        return Check("python", "broken", value, "mmswap needs Python 3.10 or newer, 64 bits", "install one", facts)
    return Check("python", "ok", value, facts=facts)


def torch_build() -> Check:
    """Imports torch: its version, what it was built for, and whether it can be imported at all."""
    version = _version("torch")
    try:
        import torch
    except Exception as error:  # a library that is missing, a damaged wheel, a module of that name in the way
        if version is None:
            return Check("torch", "broken", "not installed", sentence(error), "install torch for your card")
        advice = "reinstall torch for your card; on Windows the Visual C++ runtime may be missing"
        return Check("torch", "broken", f"{version} cannot be imported", sentence(error), advice)
    built, facts = _build_of(torch)
    return Check("torch", "ok", f"{torch.__version__}, {built}", facts=facts)


def _build_of(torch: Any) -> tuple[str, dict[str, Any]]:
    hip, cuda = getattr(torch.version, "hip", None), getattr(torch.version, "cuda", None)
    kind = "hip" if hip else "cuda" if cuda else "cpu"
    built = {"hip": f"built for HIP {hip}", "cuda": f"built for CUDA {cuda}", "cpu": "built for the processor alone"}
    facts = {"version": str(torch.__version__), "build": kind, "hip": hip, "cuda": cuda}
    facts["threads"] = torch.get_num_threads()
    facts["architectures"] = _covered(torch)
    return f"{built[kind]}, {facts['threads']} threads", facts


def _covered(torch: Any) -> list[str]:
    try:
        return [str(name) for name in torch.cuda.get_arch_list()]
    except Exception:  # asked of a driver that is broken: the line of the first kernel will tell
        return []


def distributed() -> Check:
    """Whether this torch has torch.distributed, which ROCm wheels for Windows lack, and which mmswap does without."""
    try:
        import torch

        there = bool(torch.distributed.is_available())
    except Exception as error:
        return Check(
            "torch.distributed", "ok", "not in this torch, and not needed", sentence(error), facts={"there": False}
        )
    value = "there" if there else "not in this torch, and not needed"
    return Check("torch.distributed", "ok", value, facts={"there": there})


def packages() -> list[Check]:
    """Each package that mmswap requires: its version, and whether that is new enough."""
    return [_package(name, least) for name, least in required() if name != "torch"]


def _package(name: str, least: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name, "broken", "not installed", f"mmswap needs {name} {least} or newer", f"pip install {name}")
    facts = {"version": version}
    if numbers(version)[:3] < numbers(least):
        advice = f"pip install -U {name}"
        return Check(name, "broken", version, f"mmswap needs {name} {least} or newer", advice, facts)
    try:
        module = import_module(MODULES.get(name, name))
        if name == "transformers":
            module.AutoConfig  # noqa: B018  (it imports what it needs only when it is asked for a name)
    except Exception as error:  # a library that is missing, or one that another package's version broke
        return Check(name, "broken", f"{version} cannot be imported", sentence(error), f"reinstall {name}", facts)
    return Check(name, "ok", version, facts=facts)


def required() -> list[tuple[str, str]]:
    """Name and least version of what mmswap's own metadata requires; transformers alone where there is none."""
    try:
        lines: Iterable[str] = metadata.requires("mmswap") or ()
    except metadata.PackageNotFoundError:
        lines = ("transformers>=5.24",)
    matches = (re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines if "extra ==" not in line)
    return [(match[1], match[2]) for match in matches if match]


def variables(here: Surroundings) -> list[Check]:
    """The variables that change how a card behaves, as far as they are set."""
    names = [*VARIABLES, *sorted(name for name in here.environ if name.startswith("MMSWAP_"))]
    values = {name: here.variable(name) for name in names if here.is_set(name)}
    text = ", ".join(f"{name}={value}" for name, value in values.items()) or "none of those that matter is set"
    found = [Check("variables", "ok", text, facts=values)]
    if here.windows and here.is_set("HSA_OVERRIDE_GFX_VERSION"):
        reason = "Windows' driver does not read it: the card keeps its own architecture"
        advice = "unset it, and install a torch that was built for the card's own architecture"
        value = here.variable("HSA_OVERRIDE_GFX_VERSION")
        found.append(Check("HSA_OVERRIDE_GFX_VERSION", "note", value, reason, advice))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _distribution() -> str:
    for path in (Path("/etc/os-release"), Path("/usr/lib/os-release")):
        if is_file(path):
            match = re.search(r'^PRETTY_NAME="?([^"\n]+)', path.read_text(encoding="utf-8", errors="replace"), re.M)
            if match:
                return match[1]
    return "Linux"
