"""Which compilers there are: HIP SDK, MSVC, the host's C++ compiler. Each has its override and its reason.

    hip_sdk(Surroundings.real()) -> Found(value="/opt/rocm", source="the default folder", version="6.4.1", ...)

Imports no torch; starts nothing but the compilers that it finds, to hear their versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmswap.hip_ext.surroundings import Found, Surroundings, is_file, is_folder, numbers

HIP_VARIABLES = ("HIP_PATH", "ROCM_PATH", "ROCM_HOME")
COMPILER_FOLDERS = ("bin", "lib/llvm/bin", "llvm/bin")
WHEEL_SDKS = ("_rocm_sdk_devel", "_rocm_sdk_core")
VCVARS = "VC/Auxiliary/Build/vcvars64.bat"
EDITIONS = ("BuildTools", "Community", "Professional", "Enterprise")


def hip_sdk(here: Surroundings) -> Found:
    """The folder of the HIP SDK: HIP_PATH, ROCM_PATH, ROCM_HOME, PATH, Python's packages, then the usual folders."""
    empty = [name for name in HIP_VARIABLES if here.is_set(name) and not here.variable(name)]
    remarks = [f"{name} is set but empty, and ignored" for name in empty]
    for source, folder, asked in _hip_candidates(here):
        compiler = hip_compiler(here, folder)
        if compiler is None and folder.name.lower() == "bin":  # the variable names the folder inside
            folder = folder.parent
            compiler = hip_compiler(here, folder)
        if compiler is not None:
            return _sdk(here, folder, compiler, source, tuple(remarks))
        if asked:
            remarks.append(f"{source} names {folder}, {_lack(here, folder)}")
    looked = "in HIP_PATH, ROCM_PATH, ROCM_HOME, PATH, Python's packages and " + (
        "Program Files/AMD/ROCm" if here.windows else "/opt/rocm*"
    )
    return Found(
        None,
        "",
        f"no hipcc or clang++ {looked}",
        "needed only to build native kernels: install the HIP SDK, or let HIP_PATH name the folder of its bin",
        faults=tuple(remarks),
    )


def hip_compiler(here: Surroundings, folder: Path) -> Path | None:
    """hipcc of an SDK, else its clang++."""
    for name in ("hipcc", "clang++"):
        for inner in COMPILER_FOLDERS:
            found = here.program(folder / inner, name)
            if found is not None:
                return found
    return None


def plain_linker(here: Surroundings, sdk: Path) -> Found:
    """What links a library without adding a HIP runtime: the SDK's own clang++, else the host's C++ compiler."""
    for inner in COMPILER_FOLDERS:
        found = here.program(sdk / inner, "clang++")
        if found is not None:
            return Found(str(found), "the HIP SDK", "it lies in the HIP SDK")
    return host_compiler(here)


def msvc(here: Surroundings) -> Found:
    """vcvars64.bat: VCVARS64, the developer prompt that this is, vswhere, then the usual folders."""
    if not here.windows:
        return Found(None, "", "only Windows needs it")
    faults = []
    asked = here.variable("VCVARS64")
    if asked and is_file(here.place(asked)):
        return Found(str(here.place(asked)), "VCVARS64", "VCVARS64 names it")
    if here.is_set("VCVARS64"):
        faults.append(f"VCVARS64 names {asked}, and there is no such file" if asked else "VCVARS64 is set but empty")
    compiler = here.which("cl")
    if compiler is not None:
        version = here.variable("VCToolsVersion")
        return Found(str(compiler), "PATH", "cl is on PATH: a developer prompt", version=version, faults=tuple(faults))
    found, why = _by_vswhere(here)
    source = "what vswhere knows"
    if found is None:
        found, source = _in_usual_folders(here), "the default folder"
    if found is not None:
        return Found(str(found), source, f"found in {source}", version=_msvc_version(found), faults=tuple(faults))
    return Found(
        None,
        "",
        f"no vcvars64.bat: {why}, none is in the usual folders, and VCVARS64 names none",
        "install the Visual Studio Build Tools with C++, or let VCVARS64 name vcvars64.bat",
        faults=tuple(faults),
    )


def host_compiler(here: Surroundings) -> Found:
    """The C++ compiler of systems other than Windows: CXX, then PATH."""
    if here.windows:
        return Found(None, "", "Windows uses MSVC")
    asked = here.variable("CXX")
    faults = []
    if asked:
        path = here.place(asked) if "/" in asked else here.which(asked)
        if path is not None and is_file(path):
            return _with_version(here, path, "CXX")
        faults.append(f"CXX names {asked}, and there is no such program")
    path = here.which("c++", "g++", "clang++")
    if path is not None:
        return _with_version(here, path, "PATH", tuple(faults))
    return Found(
        None, "", "no c++, g++ or clang++ on PATH", "install a C++ compiler, or let CXX name one", "", tuple(faults)
    )


def _hip_candidates(here: Surroundings) -> Iterator[tuple[str, Path, bool]]:
    """Source, folder, and whether a person asked for it."""
    for name in HIP_VARIABLES:
        value = here.variable(name)
        if value:
            yield name, here.place(value), True
    on_path = here.which("hipcc")
    if on_path is not None:
        for path in dict.fromkeys((_real(on_path), on_path)):
            yield "PATH", path.parent.parent, False
    for folder in here.site:
        for package in WHEEL_SDKS:
            yield f"the Python package {package}", folder / package, False
    for folder in _default_sdks(here):
        yield "the default folder", folder, False


def _default_sdks(here: Surroundings) -> list[Path]:
    """The usual folders, newest version first."""
    if here.windows:
        bases = [here.variable("ProgramFiles"), here.variable("ProgramW6432"), r"C:\Program Files"]
        homes = [here.place(base) / "AMD" / "ROCm" for base in dict.fromkeys(bases) if base]
        found = [folder for home in homes for folder in _folders(home, "*")]
    else:
        found = _folders(here.place("/opt"), "rocm*")
    return sorted(dict.fromkeys(found), key=lambda folder: numbers(folder.name) or (10**6,), reverse=True)


def _sdk(here: Surroundings, folder: Path, compiler: Path, source: str, remarks: tuple[str, ...]) -> Found:
    advice = ""
    version = _written_version(folder)
    try:
        said = here.run([str(compiler), "--version"])
        match = re.search(r"(?:HIP|clang) version:?\s*([\w.+-]+)", said)
        version = match[1] if match else version
    except OSError as error:
        remarks += (f"{compiler.name} is there and does not run: {error}",)
        advice = f"run {compiler.name} --version by hand, and repair or reinstall the HIP SDK"
    how = f"{source} names it" if source in HIP_VARIABLES else f"found in {source}"
    return Found(str(folder), source, f"{how}; its compiler is {compiler.name}", advice, version, remarks)


def _written_version(folder: Path) -> str:
    """As the SDK's own file has it, or its folder's name."""
    try:
        return (folder / ".info" / "version").read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError:
        match = re.search(r"\d+(?:\.\d+)+", folder.name)
        return match[0] if match else ""


def _by_vswhere(here: Surroundings) -> tuple[Path | None, str]:
    """vcvars64.bat as Visual Studio's own finder knows it, or why there is none."""
    base = here.variable("ProgramFiles(x86)") or r"C:\Program Files (x86)"
    finder = here.place(base) / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    if not is_file(finder):
        return None, "there is no vswhere.exe"
    part = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    question = ["-latest", "-products", "*", "-requires", part, "-property", "installationPath", "-utf8", "-nologo"]
    try:
        said = here.run([str(finder), *question])
    except OSError as error:
        return None, f"vswhere failed: {error}"
    for line in said.splitlines():
        path = here.place(line.strip()) / VCVARS
        if line.strip() and is_file(path):
            return path, ""
    return None, "vswhere knows no Visual Studio with C++ tools"


def _in_usual_folders(here: Surroundings) -> Path | None:
    bases = [
        here.variable("ProgramFiles"),
        here.variable("ProgramFiles(x86)"),
        r"C:\Program Files",
        r"C:\Program Files (x86)",
    ]
    for base in dict.fromkeys(base for base in bases if base):
        years = _folders(here.place(base) / "Microsoft Visual Studio", "*")
        for year in sorted(years, key=lambda folder: _release(folder.name), reverse=True):
            for edition in EDITIONS:
                if is_file(year / edition / VCVARS):
                    return year / edition / VCVARS
    return None


def _release(name: str) -> int:
    """2019, 2022 and then 18: since then the folder bears the version and no longer the year."""
    number = (numbers(name) or (0,))[0]
    return number if number > 1000 or number == 0 else 2008 + number


def _msvc_version(vcvars: Path) -> str:
    """From the folder of the newest tools beside vcvars64.bat."""
    tools = _folders(vcvars.parents[2] / "Tools" / "MSVC", "*")
    return max((folder.name for folder in tools), key=numbers, default="")


def _with_version(here: Surroundings, path: Path, source: str, faults: tuple[str, ...] = ()) -> Found:
    version = ""
    try:
        version = (here.run([str(path), "--version"]).splitlines() or [""])[0][:80]
    except OSError as error:
        faults += (f"{path.name} is there and does not run: {error}",)
    return Found(str(path), source, f"found in {source}", version=version, faults=faults)


def _lack(here: Surroundings, folder: Path) -> str:
    if not is_folder(folder):
        return "and there is no such folder"
    return "which has no bin/hipcc" + (".exe or .bat" if here.windows else "")


def _folders(parent: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in parent.glob(pattern) if path.is_dir()]
    except (OSError, ValueError):
        return []


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
