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
ON_CARDS = [str(HERE / "test_hip_machine.py")]
"""What only cards compile is judged by machine code."""

TESTS = [str(HERE / f"test_hip_{name}.py") for name in ("numbers", "gptq", "launchers", "bounds")]
FIRST = {
    "gpu.h": "rows or units",
    "rows.h": "rows or rounded or activation or norm", "rotary.h": "rotary", "linear.h": "dense or order or linear",
    "w4.h": "gemv or zero_point or w4a16", "experts.h": "expert", "launch_experts.h": "expert",
    "w4_gemm.h": "gemm", "gptq.h": "checkpoint", "kv.h": "cache or code",
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
    ("rows.h", "0.044715f * g * g * g", "0.044715f * g * g"),
    ("rows.h", "0.5f * g * (1.0f + mms_erf(0.7", "0.5f * g * (1.0f + mms_erf(0.8"),
    ("rows.h", "+ a.eps)", ")"),
    ("rows.h", "(weight + a.offset)", "weight"),
    ("rows.h", "gates = row * a.stride", "gates = row * (a.stride + 1)"),
    ("numbers.h", "sum = mms_fma(sum, t, 1.421413741f)", "sum = mms_fma(sum, t, 1.521413741f)"),
    ("numbers.h", "float*)from + i + 4 * h", "float*)from + i + 4 * h + 1"),
    ("numbers.h", "1] = dtype == MMS_F16 ? mms_high_half", "1] = dtype == MMS_F16 ? mms_low_half"),
    ("numbers.h", "if (x != x) return", "if (x == 1.0f) return"),
    ("rotary.h", "if (!is_q) head -= a.q_heads", "if (!is_q) head -= a.q_heads - 1"),
    ("rotary.h", "b * a.angle_batch", "(b + 1) * a.angle_batch"),
    ("rotary.h", "i = a.turned + lane; i < a.channels", "i = a.turned + lane + 1; i < a.channels"),
    ("rotary.h", "mms_load(from, at + half + i", "mms_load(from, at + half + i - 1"),
    ("linear.h", "mms_load(a.bias, first + r,", "mms_load(a.bias, first + r + 1,"),
    ("linear.h", "m >= a.rows) return", "m >= a.rows - 1) return"),
    ("linear.h", "? ((const int32_t*)a.order)[slot] : slot", "? ((const int32_t*)a.order)[slot] : slot + 1"),
    ("linear.h", "(part * 32 + lane) * 8", "(part * 31 + lane) * 8"),
    ("linear.h", "w < a.split; ++w", "w < a.split - 1; ++w"),
    ("w4.h", "mms_load(a.bias, output,", "mms_load(a.bias, output + 1,"),
    ("w4.h", "part * 32 + mms_tid() % 32; v", "part * 32 + mms_tid() % 31; v"),
    ("w4.h", "row * a.groups * mms_bytes", "row * (a.groups + 1) * mms_bytes"),
    ("w4.h", "a.zeros + row * a.groups", "a.zeros + row * a.groups + 1"),
    ("w4.h", "(part == 0) mms_w4_part", "(part == 1) mms_w4_part"),
    ("w4.h", "m >= a.rows) return", "m > a.rows) return"),
    ("w4_gemm.h", "x + column + 8 * e", "x + column + 8 * e + 1"),
    ("w4_gemm.h", "mms_mul_high(unit, a.magic) : unit", "mms_mul_high(unit, a.magic) : unit + 1"),
    ("experts.h", "mms_expert_of(e, r) * e.outputs", "mms_expert_of(e, r) * (e.outputs + 1)"),
    ("experts.h", "first * (e.padded / 8)", "first * (e.padded / 8 - 1)"),
    ("experts.h", "e.scales + first * e.groups", "e.scales + (first + 1) * e.groups"),
    ("experts.h", "e.zeros + first * e.groups", "e.zeros + (first + 1) * e.groups"),
    ("experts.h", "e.bias + first * mms_bytes", "e.bias + (first + 1) * mms_bytes"),
    ("experts.h", "e.x + r * e.x_stride", "e.x + (r + 1) * e.x_stride"),
    ("experts.h", "(int64_t)r * e.outputs", "(int64_t)r * (e.outputs - 1)"),
    ("experts.h", "((const int64_t*)e.experts)[row]", "((const int64_t*)e.experts)[row + 1]"),
    ("experts.h", "((const int32_t*)e.experts)[row]", "((const int32_t*)e.experts)[0]"),
    ("launch_experts.h", "mms_ceil(waves * e.split, MMS_W4_WAVES)", "(waves * e.split / MMS_W4_WAVES)"),
    ("launch_experts.h", "if (e.x_stride) e.x_stride", "if (!e.x_stride) e.x_stride"),
    ("launch_experts.h", "e.x_stride ? e.rows : 1", "e.x_stride ? e.rows - 1 : 1"),
    ("gptq.h", "a.table ? ((const int32_t*)a.table)[g] : g;\n  const", "g;\n  const"),
    ("gptq.h", "g < a.stored ? ((const uint32_t*)", "g < a.stored - 1 ? ((const uint32_t*)"),
    ("gptq.h", "(column / 8) * a.outputs", "(column / 8) * (a.outputs + 1)"),
    ("gptq.h", "o * a.groups_out + g", "o * (a.groups_out + 1) + g"),
    ("gptq.h", "2 * (y % 16) + j / 4", "2 * (y % 16) + j / 3"),
    ("kv.h", "h * a.k_channels + i, a.offset_dtype", "h * a.k_channels + i + 1, a.offset_dtype"),
    ("kv.h", "h * a.k_channels + i, a.k_scale_dtype", "h * a.k_channels + i + 1, a.k_scale_dtype"),
    ("kv.h", "mms_load(a.v_scale, h * a.scale_head", "mms_load(a.v_scale, (h + 1) * a.scale_head"),
    ("kv.h", "slot * a.scale_slot", "(slot + 1) * a.scale_slot"),
    ("kv.h", "item / kept % a.heads", "item / (kept + 1) % a.heads"),
    ("kv.h", "item >= (int64_t)a.batch * a.heads * kept", "item >= (int64_t)a.batch * a.heads * kept - 1"),
    ("kv.h", "b * a.start_stride", "(b + 1) * a.start_stride"),
    ("kv.h", "i < a.v_channels; i += 32) {", "i < a.v_channels - 1; i += 32) {"),
    ("kv.h", "-127.0f), 127.0f", "-127.0f), 126.0f"),
    ("attention.h", "[i % H] / a.soft_cap)", "[i % H] / (a.soft_cap + 1.0f))"),
    ("attention.h", "a.soft_cap != 0.0f ? 1.0f : MMS_LOG2E", "a.soft_cap == 0.0f ? 1.0f : MMS_LOG2E"),
    ("attention.h", "kh * a.k_channels + c, a.k_scale_dtype", "kh * a.k_channels + c + 1, a.k_scale_dtype"),
    ("attention.h", "kh * a.scale_head + t * a.scale_slot", "kh * a.scale_head + (t + 1) * a.scale_slot"),
    ("attention.h", "mms_load(a.v_scale, kh * a.scale_head, a", "mms_load(a.v_scale, (kh + 1) * a.scale_head, a"),
    ("attention.h", "in_group < a.group", "in_group < a.group - 1"),
    ("attention.h", "kh * a.group + in_group", "kh * (a.group + 1) + in_group"),
    ("attention.h", "b * a.keys_batch + kh * a.keys_head", "b * a.keys_batch + (kh + 1) * a.keys_head"),
    ("attention.h", "b * a.values_batch + kh", "(b + 1) * a.values_batch + kh"),
    ("attention.h", "base += teams * SLOTS", "base += teams * SLOTS + 1"),
    ("attention.h", "base + u * teams + team", "base + u * teams + team + 1"),
    ("attention.h", "s.low = split * each", "s.low = split * each + 1"),
    ("attention.h", "b * a.length_stride", "(b + 1) * a.length_stride"),
    ("attention.h", "mms_load(a.sinks, row % query_heads", "mms_load(a.sinks, (row + 1) % query_heads"),
    ("attention.h", "chunk * H + h < a.group; ++h", "chunk * H + h < a.group - 1; ++h"),
    ("gpu.h", "(lane ^ mask) << 2", "(lane ^ mask) << 1"),
    ("gpu.h", "(int)__builtin_amdgcn_workgroup_id_y()", "(int)__builtin_amdgcn_workgroup_id_x()"),
    ("gpu.h", "__builtin_amdgcn_mbcnt_lo(~0u, 0u)", "__builtin_amdgcn_mbcnt_lo(~1u, 0u)"),
    ("gpu.h", "(uint32_t)(((unsigned long long)a * b) >> 32)", "(uint32_t)(((unsigned long long)a * b) >> 31)"),
    ("gpu.h", "mms_h2, pair)[1]", "mms_h2, pair)[0]"),
    ("gpu.h", "sums[i] = c[i];", "sums[i] = c[7 - i];"),
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
            tests = ON_CARDS if file == "gpu.h" else TESTS
            found = _found(source, FIRST.get(file, "cache or norm"), tests) or _found(source, "", tests)
        survived += not found
        print(f"{file}: {old!r} -> {new!r}: {found or 'SURVIVED'}", flush=True)
    print(f"{survived} survived")
    return int(survived > 0)


def _found(source: Path, words: str, tests: list[str]) -> str:
    """The first test that fails, in a process of its own: a fault may crash or never end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.environ["MMSWAP_TEST_CSRC"] = str(source)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(300)
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", words, *tests], plugins=[_Teller(writing)]))
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading) as told:
        found = told.read() or (f"ended by signal {-status}" if status < 0 else "")
    assert found or status == 0, f"the tests themselves do not run: pytest ended with {status}"
    return found


class _Teller:
    """Writes the name of what fails to a file."""

    def __init__(self, file: int) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.file, report.nodeid.split("::")[-1].encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
