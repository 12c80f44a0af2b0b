"""What a probe may look at: variables, files, programs. All of it can be replaced: Windows can be played anywhere.

    here = Surroundings.real();  here.variable("HIP_PATH");  here.which("hipcc");  here.run([path, "--version"])

Imports no torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Runner = Callable[[Sequence[str], float, Mapping[str, str], "Path | None"], str]


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe came to.

    Attributes:
        value: the path or name; None: not found.
        source: the variable, `PATH`, or the place that it came from.
        reason: how it was found, or where it was looked for in vain.
        advice: what to do when it is missing or wrong.
        version: as it calls itself, or empty.
        faults: what is wrong with it although it is there.
    """

    value: str | None
    source: str
    reason: str
    advice: str = ""
    version: str = ""
    faults: tuple[str, ...] = ()


class ProgramFailed(OSError):
    """A program ended with an error; `said` is all that it printed."""

    def __init__(self, sentence: str, said: str) -> None:
        super().__init__(sentence)
        self.said = said


def run_program(words: Sequence[str], limit: float, environ: Mapping[str, str], folder: Path | None = None) -> str:
    """Standard output and standard error of a program; each word reaches it whole. `folder`: where it works.

    Raises:
        OSError: it cannot be started; `ProgramFailed`: it ended with an error.
        TimeoutExpired: it took longer than `limit` seconds, and was ended.
    """
    done = subprocess.run(  # no shell: a path with a space stays one word
        list(words),
        capture_output=True,
        timeout=limit,
        stdin=subprocess.DEVNULL,
        env=dict(environ),
        check=False,
        cwd=folder,
    )
    said = f"{_text(done.stdout)}\n{_text(done.stderr)}".strip()
    if done.returncode != 0:
        lines = said.splitlines()
        last = f": {lines[-1][:160]}" if lines else ""
        raise ProgramFailed(f"it ended with code {done.returncode}{last}", said)
    return said


def _text(raw: bytes) -> str:
    """`cmd /u` writes UTF-16, everything else is taken for UTF-8."""
    return raw.decode("utf-16-le" if b"\0" in raw[:2048] else "utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A machine as the probes see it.

    Attributes:
        environ: the environment variables.
        windows: whether paths, names and places are those of Windows.
        root: a folder that stands for the root (and for every drive) of the file system; None for the real one.
        site: folders in which Python packages lie.
        run: starts a program and returns what it printed.
    """

    environ: Mapping[str, str]
    windows: bool = sys.platform == "win32"
    root: Path | None = None
    site: tuple[Path, ...] = ()
    runner: Runner = field(default=run_program)

    @classmethod
    def real(cls) -> Surroundings:
        return cls(os.environ, site=tuple(Path(folder) for folder in sys.path if folder))

    def is_set(self, name: str) -> bool:
        """Whether the variable exists, if only as an empty text."""
        return self._raw(name) is not None

    def variable(self, name: str) -> str:
        """The variable without blanks and quotation marks around it; empty when it is not set."""
        return (self._raw(name) or "").strip().strip("\"'").strip()

    def place(self, text: str) -> Path:
        """Where a path leads to."""
        if self.root is None or text.startswith(str(self.root)):
            return Path(text)
        return self.root.joinpath(*[part for part in re.split(r"[\\/]+", text) if part and not part.endswith(":")])

    def which(self, *names: str) -> Path | None:
        """The first of the programs that a folder of PATH holds; names without ending."""
        for folder in self.variable("PATH").split(";" if self.windows else ":"):
            if folder.strip():
                found = self.program(self.place(folder.strip().strip('"')), *names)
                if found is not None:
                    return found
        return None

    def program(self, folder: Path, *names: str) -> Path | None:
        """The first of the programs in one folder."""
        endings = (".exe", ".bat", ".cmd") if self.windows else ("",)
        for name in names:
            for ending in endings:
                path = folder / (name + ending)
                if is_file(path) and (self.windows or os.access(path, os.X_OK)):
                    return path
        return None

    def run(self, words: Sequence[str], limit: float = 5, folder: Path | None = None) -> str:
        """What a program printed. `folder`: where it works.

        Raises:
            OSError: it could not be started, failed, or took longer than `limit` seconds.
        """
        try:
            environ = {**self.environ, "HIP_PLATFORM": "amd"}  # else hipcc may choose nvcc
            return self.runner(words, limit, environ, folder)
        except subprocess.TimeoutExpired:
            raise OSError(f"it did not end within {limit:g} s") from None

    def _raw(self, name: str) -> str | None:
        if name in self.environ or not self.windows:
            return self.environ.get(name)
        return next((value for key, value in self.environ.items() if key.lower() == name.lower()), None)


def is_file(path: Path) -> bool:
    """As `Path.is_file`, and False where the path cannot even be asked about (too long, no permission)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """As `Path.is_dir`, and False where the path cannot even be asked about."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def numbers(text: str) -> tuple[int, ...]:
    """`'rocm-6.10.1' -> (6, 10, 1)`: by which versions are put in order."""
    return tuple(int(number) for number in re.findall(r"\d+", text))
