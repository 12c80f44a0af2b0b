"""Faults of one number, planted in each kernel: each must fail a test. Run by hand, some minutes:

    python tests/hip_ext/planted.py [WORD]      # only those whose file or text has WORD; ends with 1 if one survives

The sources are copied, never changed in place; the tests are those of this folder, on the processor.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch  # noqa: F401  once, for all forks

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "hip_ext" / "csrc"
TESTS = [str(HERE / f"test_hip_{name}.py") for name in ("numbers", "gptq", "launchers", "bounds")]
FIRST = {
    "rows.h": "rows or rounded or activation or norm", "rotary.h": "rotary", "linear.h": "dense or order or linear",
    "w4.h": "gemv or zero_point or w4a16", "w4_gemm.h": "gemm", "gptq.h": "checkpoint", "kv.h": "cache or code",
    "attention.h": "attention", "launch.h": "gemm or gemv or rotary or rows or cache or attention",
}  # fmt: skip
"""Tests that are asked first, which is quicker; then all."""

PLANTED = [
    ("rows.h", "mms_block_y() * MMS_ACT_PIECE", "mms_block_y() * (MMS_ACT_PIECE + 1)"),
    ("rows.h", "gates + a.features, out", "gates + a.features + 1, out"),
    ("rows.h", "(end - first) / 8 * 8", "(end - first + 7) / 8 * 8"),
    ("rows.h", "whole + mms_tid(); i < end", "whole + mms_tid(); i < end - 1"),
    ("rows.h", "if (act == 1)", "if (act == 2)"),
    ("rows.h", "a.features / 8 * 8 : 0", "a.features / 8 * 8 - 8 : 0"),
    ("rows.h", "i < a.features; i += MMS_NORM_THREADS) {\n    f", "i < a.features - 1; i += 256) {\n    f"),
    ("rows.h", "w < MMS_NORM_THREADS / 32; ++w) sum", "w < MMS_NORM_THREADS / 32 - 1; ++w) sum"),
    ("rows.h", "sum / (float)a.features", "sum / (float)(a.features + 1)"),
    ("rows.h", "more = row * a.residual_stride", "more = row * (a.residual_stride + 1)"),
    ("rows.h", "mms_store(a.total, out + i", "mms_store(a.total, out + i + 1"),
    ("rows.h", "a.late ? mms_rounded(x, a.dtype) : x", "x"),
    ("numbers.h", "((bits >> 16) & 1)", "((bits >> 17) & 1)"),
    ("numbers.h", "int m = 16; m; m >>= 1) x += mms_xor", "int m = 8; m; m >>= 1) x += mms_xor"),
    ("numbers.h", "int m = 16; m; m >>= 1) x = mms_max", "int m = 8; m; m >>= 1) x = mms_max"),
    ("rotary.h", "i < a.channels; i += 32", "i < a.channels - 1; i += 32"),
    ("rotary.h", "i < half; i += 32", "i < half - 1; i += 32"),
    ("rotary.h", "if (i < end) break", "if (i <= end) break"),
    ("rotary.h", "run < a.sections - 1", "run < a.sections - 2"),
    ("rotary.h", "run % a.axes", "(run + 1) % a.axes"),
    ("rotary.h", "+ t * a.angle_token", "+ (t + 1) * a.angle_token"),
    ("rotary.h", "+ t * a.k_token", "+ (t + 1) * a.k_token"),
    ("rotary.h", "sin_1 = mms_load(a.sin, angle + half", "sin_1 = mms_load(a.sin, angle + half - 1"),
    ("linear.h", "a.columns - 7 : 0", "a.columns : 0"),
    ("linear.h", "k < a.columns; k += step", "k < a.columns - 1; k += step"),
    ("linear.h", "2 * c + 1 < there", "2 * c + 1 <= there"),
    ("linear.h", "first + r : a.outputs - 1", "first + r : a.outputs"),
    ("linear.h", "m : a.rows - 1", "m : a.rows"),
    ("linear.h", "if (slot < a.slots)", "if (slot < a.slots - 1)"),
    ("linear.h", "if (slot >= a.padded) return", "if (slot > a.padded) return"),
    ("w4.h", "v < vectors;", "v + 1 < vectors;"),
    ("w4.h", "v % 4 * 8;", "v % 4 * 8 + 8;"),
    ("w4.h", "x[m] + 32 * i", "x[m] + 31 * i"),
    ("w4.h", "(column + 32 * part) / 16", "(column + 32 * part) / 16 + 1"),
    ("w4.h", "zero * 0x00010001u + 0xE400E400u", "zero * 0x00010001u + 0xE401E401u"),
    ("w4.h", "zero * 0x00100010u", "zero * 0x00100011u"),
    ("w4.h", "-128.0f - (float)zeros[r]", "-129.0f - (float)zeros[r]"),
    ("w4.h", "return (high & 0x00F000F0u) | 0x54005400u", "return (high & 0x00F000F0u) | 0x54105410u"),
    ("w4.h", "input + m : a.rows - 1", "input + m : a.rows"),
    ("w4.h", "first + r : a.outputs - 1", "first + r : a.outputs"),
    ("w4.h", "w < a.split; ++w", "w < a.split - 1; ++w"),
    ("w4.h", "first + r >= a.outputs", "first + r >= a.outputs - 1"),
    ("w4_gemm.h", "2 * i + half : i + 8 * half", "2 * i + half : i + 7 * half"),
    ("w4_gemm.h", "2 * i + half : i + 8 * half", "2 * i + 1 - half : i + 8 * half"),
    ("w4_gemm.h", "block < a.padded / MMS_W4_BLOCK", "block + 1 < a.padded / MMS_W4_BLOCK"),
    ("w4_gemm.h", "block * MMS_W4_BLOCK + 16 * j", "block * MMS_W4_BLOCK + 16 * j + 8"),
    ("w4_gemm.h", "w + j % 2 * EACH", "w + (j + 1) % 2 * EACH"),
    ("w4_gemm.h", "words[block * 4 + h * 2 + e]", "words[block * 4 + h * 2 + e + 1]"),
    ("w4_gemm.h", "c < (W == 11 ? 8 : 4); ++c) b.v[c] = z", "c < (W == 11 ? 7 : 3); ++c) b.v[c] = z"),
    ("w4_gemm.h", "w < MMS_W4_WAVES; ++w) y", "w < MMS_W4_WAVES - 1; ++w) y"),
    ("w4_gemm.h", "row < a.rows && output < a.outputs", "row < a.rows && output < a.outputs - 1"),
    ("w4_gemm.h", "row < a.rows && output < a.outputs", "row < a.rows - 1 && output < a.outputs"),
    ("w4_gemm.h", "step < 4 / R", "step < 4 / R - 1"),
    ("w4_gemm.h", "input < mms_block_y() * 16 + 16", "input < mms_block_y() * 16 + 12"),
    ("w4_gemm.h", "input + m < a.rows)", "input + m < a.rows - 1)"),
    ("gptq.h", "(zero + 1) & 15", "zero & 15"),
    ("gptq.h", "(a.outputs + 7) / 8", "a.outputs / 8"),
    ("gptq.h", "o % 8 * 4", "o % 7 * 4"),
    ("gptq.h", "column >= a.columns", "column > a.columns"),
    ("gptq.h", "s / a.group_size", "(s + 1) / a.group_size"),
    ("gptq.h", "32 * (j % 4)", "32 * (j % 3)"),
    ("gptq.h", "if (o >= a.outputs) return", "if (o >= a.outputs - 1) return"),
    ("gptq.h", "g < a.stored ? ((const uint16_t*)", "g < a.stored - 1 ? ((const uint16_t*)"),
    ("gptq.h", "if (g >= a.stored) return 0", "if (g > a.stored) return 0"),
    ("kv.h", "i < a.k_channels; i += 32", "i < a.k_channels - 1; i += 32"),
    ("kv.h", "i < a.v_channels; i += 32)\n      largest", "i < a.v_channels - 1; i += 32)\n      largest"),
    ("kv.h", "a.tokens - kept + (int)", "(int)"),
    ("kv.h", "+ t) % a.slots", "+ t + 1) % a.slots"),
    ("kv.h", "place + a.slots", "place + a.slots - 1"),
    ("kv.h", "/ 127.0f", "/ 128.0f"),
    ("kv.h", "wide ? 57344.0f : 448.0f", "wide ? 57344.0f : 416.0f"),
    ("kv.h", "0x7FFFF + ((bits >> 20) & 1)", "0x7FFFF + ((bits >> 21) & 1)"),
    ("kv.h", "0xFFFFF + ((bits >> 21) & 1)", "0xFFFFF"),
    ("kv.h", "size + 16384.0f", "size + 8192.0f"),
    ("kv.h", "size < 0.00006103515625f", "size < 0.00003f"),
    ("kv.h", "(two & 0x007F007Fu) << 7", "(two & 0x003F003Fu) << 7"),
    ("kv.h", "codes >> (8 * j)", "codes >> (8 * (j & 2))"),
    ("kv.h", "x[odd + 2] =", "x[odd + 1] ="),
    ("attention.h", "length < a.slots ? length : a.slots", "length < a.slots ? length + 1 : a.slots"),
    ("attention.h", "length < a.slots ? length : a.slots", "length < a.slots ? length - 1 : a.slots"),
    ("attention.h", "(s.filled + unit - 1) / unit", "s.filled / unit"),
    ("attention.h", "s.low + each < s.filled", "s.low + each <= s.filled + 1"),
    ("attention.h", "c < a.k_channels && in_group", "c < a.k_channels - 1 && in_group"),
    ("attention.h", "c < a.v_channels);", "c < a.v_channels - 8);"),
    ("attention.h", "if (m < a.lanes)", "if (m <= a.lanes)"),
    ("attention.h", "seen[u] = t < share.high", "seen[u] = t + 1 < share.high"),
    ("attention.h", "mms_fma(total[h], shrunk, weight)", "mms_fma(total[h], 1.0f, weight)"),
    ("attention.h", "mms_fma(acc[h][n][j], shrunk,", "mms_fma(acc[h][n][j], 1.0f,"),
    ("attention.h", "t < teams; ++t) y +=", "t < teams - 1; ++t) y +="),
    ("attention.h", "t < teams; ++t) sum +=", "t < teams - 1; ++t) sum +="),
    ("attention.h", "i < a.v_channels; i += MMS_ATTENTION_THREADS", "i < a.v_channels - 1; i += MMS_ATTENTION_THREADS"),
    ("attention.h", "s < used; ++s) total", "s < used - 1; ++s) total"),
    ("attention.h", "s < used; ++s)\n      y", "s < used - 1; ++s)\n      y"),
    ("attention.h", "if (a.sinks) total", "if (!a.sinks) total"),
    ("attention.h", "i < a.v_channels; i += MMS_JOIN_THREADS", "i < a.v_channels - 1; i += MMS_JOIN_THREADS"),
    ("attention.h", "b * a.mask_batch + t]", "b * a.mask_batch + t + 1]"),
    ("launch.h", "mms_ceil(a.features, MMS_ACT_PIECE)", "a.features / MMS_ACT_PIECE"),
    ("launch.h", "x = (uint32_t)mms_ceil(a.outputs, 16)", "x = (uint32_t)(a.outputs / 16)"),
    ("launch.h", "(uint32_t)mms_ceil(a.rows, 16)", "(uint32_t)(a.rows / 16)"),
    ("launch.h", "(1ull << 32) / (group / 16)) + 1", "(1ull << 32) / (group / 16))"),
    ("launch.h", "mms_ceil(items, MMS_ROTARY_WAVES)", "items / MMS_ROTARY_WAVES"),
    ("launch.h", "mms_ceil(items, MMS_KV_WAVES)", "items / MMS_KV_WAVES"),
    ("launch.h", "a.lanes * 8 < widest", "a.lanes * 8 < widest - 8"),
]  # fmt: skip


def main(word: str) -> int:
    """Plants one after another."""
    survived = 0
    for file, old, new in PLANTED:
        if word not in file and word not in old:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "csrc"
            shutil.copytree(CSRC, source)
            text = (source / file).read_text()
            assert text.count(old) >= 1, f"{file} has no {old!r}"
            (source / file).write_text(text.replace(old, new, 1))
            found = _found(source, FIRST.get(file, "cache or norm")) or _found(source, "")
        survived += not found
        print(f"{file}: {old!r} -> {new!r}: {found or 'SURVIVED'}", flush=True)
    print(f"{survived} survived")
    return int(survived > 0)


def _found(source: Path, words: str) -> str:
    """The first test that fails, in a process of its own: a fault may crash or never end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.environ["MMSWAP_TEST_CSRC"] = str(source)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(300)
        pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", words, *TESTS], plugins=[_Teller(writing)])
        os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading) as told:
        return told.read() or (f"ended by signal {-status}" if status < 0 else "")


class _Teller:
    """Writes the name of what fails to a file."""

    def __init__(self, file: int) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.file, report.nodeid.split("::")[-1].encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
