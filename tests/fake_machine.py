"""Machines to be examined that are not there: files below a folder, variables, and programs that only answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mmswap.hip_ext.surroundings import Surroundings


class Machine:
    """`windows` or not; `says` maps the name of a program to what it prints, or to the error of starting it."""

    def __init__(self, root: Path, *, windows: bool) -> None:
        self.root = root
        self.windows = windows
        self.environ: dict[str, str] = {}
        self.site: list[Path] = []
        self.says: dict[str, str | OSError | subprocess.TimeoutExpired] = {}
        self.started: list[list[str]] = []
        self.given: list[Mapping[str, str]] = []

    def file(self, path: str, text: str = "", *, program: bool = False) -> Path:
        """Creates a file at a path as this machine writes it."""
        place = self.here.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        if program:
            place.chmod(0o755)
        return place

    def program(self, path: str) -> Path:
        return self.file(path, program=True)

    @property
    def here(self) -> Surroundings:
        return Surroundings(self.environ, self.windows, self.root, tuple(self.site), self._run)

    def _run(self, words: Sequence[str], limit: float, environ: Mapping[str, str], folder: Path | None) -> str:
        self.started.append(list(words))
        self.given.append(environ)
        answer = self.says.get(Path(words[0]).name, "")
        if isinstance(answer, str):
            return answer
        raise answer


@pytest.fixture
def windows(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "windows root", windows=True)
    machine.environ |= {"ProgramFiles": r"C:\Program Files", "ProgramFiles(x86)": r"C:\Program Files (x86)"}
    return machine


@pytest.fixture
def linux(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "linux root", windows=False)
