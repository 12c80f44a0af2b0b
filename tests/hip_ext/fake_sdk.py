"""Compilers that only record: every call's words go to a file beside them, and what `-o` names is written.

sdk = fake_sdk(tmp_path / "Program Files" / "ROCm");  sdk.environ |= {"HIP_PATH": ...};  sdk.calls("hipcc")
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_RECORDER = """import json, os, re, sys
folder = os.path.dirname(os.path.abspath(__file__))
path = os.path.join(folder, sys.argv[1] + ".json")
old = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else []
inputs = sorted(name for name in os.listdir(".")) if "-o" in sys.argv else []
json.dump([*old, {"words": sys.argv[2:], "folder": os.getcwd(), "files": inputs}], open(path, "w", encoding="utf-8"))
if "--version" in sys.argv:
    print("HIP version: 7.2.0-fake" if sys.argv[1] == "hipcc" else "clang version 22.1.8")
elif "--print-targets" in sys.argv:
    print("  amdgcn - AMD GCN GPUs")
elif os.path.exists(os.path.join(folder, sys.argv[1] + ".fails")):
    print("note: 1 thing")
    print("mmswap_hip.cpp:7:1: error: no such card", file=sys.stderr)
    print("1 error generated", file=sys.stderr)
    sys.exit(1)
elif "-o" in sys.argv and not os.path.exists(os.path.join(folder, sys.argv[1] + ".writes nothing")):
    header = open("mmswap_hip.h", encoding="utf-8").read()
    if os.path.exists(os.path.join(folder, sys.argv[1] + ".forgets")):
        header = header.replace("mms_rms_norm", "")
    launchers = " ".join(re.findall(r"mms_\\w+", header))
    open(sys.argv[sys.argv.index("-o") + 1], "wb").write(f"made by {sys.argv[1]}: {launchers}".encode())
"""


@dataclass(frozen=True)
class FakeSdk:
    """An SDK's folder with its programs below `bin`."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def add(self, name: str) -> Path:
        """One more program that records."""
        self.bin.mkdir(parents=True, exist_ok=True)
        (self.bin / "rec.py").write_text(_RECORDER, encoding="utf-8")
        windows = sys.platform == "win32"
        path = self.bin / (f"{name}.bat" if windows else name)
        start = f'"{sys.executable}" "{self.bin / "rec.py"}" {name}'
        path.write_text(f"@{start} %*\n" if windows else f'#!/bin/sh\nexec {start} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
        return path

    def breaks(self, name: str, how: str = "fails") -> None:
        (self.bin / f"{name}.{how}").touch()

    def calls(self, name: str) -> list[dict[str, list[str]]]:
        """Words, folder and the files there, of each call."""
        path = self.bin / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []  # type: ignore[no-any-return]

    def compiled(self, name: str) -> dict[str, list[str]]:
        """The one call that wrote something."""
        (call,) = [call for call in self.calls(name) if "-o" in call["words"]]
        return call


def bare_environ(**more: str) -> dict[str, str]:
    """Variables without any that a probe listens to, and a PATH on which nothing is."""
    kept = {name: value for name, value in os.environ.items() if name.upper() in ("SYSTEMROOT", "TEMP", "TMP", "LANG")}
    return {**kept, "PATH": "", **more}
