"""No kernel reads or writes past what the header says: exact buffers are clean, one cut by a byte is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bounds import CASES, ERROR
from native import ADDRESSES, on_processor, shared_folder


def test_kernels_stay_within_their_buffers(tmp_path_factory: pytest.TempPathFactory) -> None:
    library = on_processor(shared_folder(tmp_path_factory), *ADDRESSES)
    sanitizer = subprocess.check_output(["g++", "-print-file-name=libasan.so"], text=True).strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("g++ has no address sanitizer here")
    options = f"symbolize=0:detect_leaks=0:exitcode={ERROR}:detect_stack_use_after_return=0"
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bounds.py")), str(library)],
        env={**os.environ, "LD_PRELOAD": sanitizer, "ASAN_OPTIONS": options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = [line.rsplit(" ", 2) for line in ended.stdout.splitlines()]
    assert {case.rsplit(" ", 1)[0] for case, _, _ in lines} == set(CASES)
    assert not [line for line in lines if int(line[2]) != (0 if line[1] == "clean" else ERROR)]
