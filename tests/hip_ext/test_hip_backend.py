"""The backend as the op table sees it, from a tensor down to the kernel: by launchers, and by kernels alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native import COMPUTED
from stand_in import Both
from torch import Tensor
from torch.library import opcheck

from mmswap.errors import KernelError, OptionError
from mmswap.hip_ext import backend, launching, supply
from mmswap.hip_ext.interface import STATUS, STRUCTS
from mmswap.hip_ext.library import Library, Missing, load
from mmswap.llm.ops import backends, reference, resolve, trial, use, using

import truths  # isort: skip
from cases import draw  # isort: skip
from tolerance import assert_close  # isort: skip

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
HALVES = (torch.float16, torch.bfloat16)
WAYS = ("launchers", "code")
OPS = tuple(backend.IMPLEMENTATIONS)


@pytest.fixture(params=WAYS)
def held(request: pytest.FixtureRequest, both: Both, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The processor has native kernels while a test runs."""
    found: Library = getattr(both, request.param)
    monkeypatch.setitem(supply._held, CPU, found)
    monkeypatch.setattr(backends, "_availability", {})
    use("auto")
    yield found
    use("auto")


def ran(both: Both) -> list[str]:
    """The kernels since the last question."""
    return [start[0] for start in both.told()]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", COMPUTED)
def test_every_op_is_right_by_launchers_and_by_kernels_alone(
    both: Both, held: Library, op: str, dtype: torch.dtype
) -> None:
    both.told()
    taken = 0
    for seed in range(16):
        arguments = draw(op, dtype, Random(f"backend {op} {dtype} {seed}"))
        if backend.IMPLEMENTATIONS[op].refuses(*arguments) is None:
            result = backend.IMPLEMENTATIONS[op].run(*arguments)
            truth = getattr(truths, op)(*arguments)
            results = result if isinstance(result, tuple) else (result,)
            for one, true in zip(results, truth if isinstance(truth, tuple) else (truth,), strict=True):
                assert_close(op, one, true)
            taken += any(one.numel() for one in results)
    assert taken > 2
    assert len(ran(both)) >= taken


def test_what_is_stored_is_what_the_reference_stores(both: Both, held: Library) -> None:
    both.told()
    for seed in range(24):
        arguments = draw("kv_store", torch.float16, Random(f"backend store {seed}"))
        own, others = ([a.clone() if isinstance(a, Tensor) else a for a in arguments] for _ in range(2))
        if backend.IMPLEMENTATIONS["kv_store"].refuses(*own) is None:
            backend.IMPLEMENTATIONS["kv_store"].run(*own)
            reference.IMPLEMENTATIONS["kv_store"].run(*others)
            for at in (2, 3, 7):
                assert own[at] is None or torch.equal(_bits(own[at]), _bits(others[at])), (seed, at)
    assert ran(both).count("mms_k_kv") > 8


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("held", ["launchers"], indirect=True)
@pytest.mark.parametrize("op", OPS)
def test_torch_finds_nothing_wrong(held: Library, op: str) -> None:
    with using("hip"):
        opcheck(getattr(torch.ops.mmswap, op).default, comparable(op, 0))


def comparable(op: str, seed: int) -> tuple[Any, ...]:
    """Arguments without float8, which torch's own checks cannot compare."""
    drawn = (draw(op, torch.float16, Random(f"opcheck {op} {seed} {number}")) for number in range(100))
    float8 = (torch.float8_e4m3fn, torch.float8_e5m2)
    return next(a for a in drawn if all(t.dtype not in float8 for t in a if isinstance(t, Tensor)))


def test_the_trial_at_load_finds_every_op_right(both: Both, held: Library) -> None:
    for dtype in HALVES:
        with using("hip"):
            both.told()
            assert trial.verify(CPU, dtype) == []
            for op in OPS:
                assert trial.trial(op, CPU, dtype)[0].backend == "hip"
        assert len(set(ran(both))) >= len(OPS) - 2  # of activations and norms, two ops each have one kernel


def test_auto_takes_it_where_triton_is_not(held: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on gfx1030, which Triton does not compile for."""
    monkeypatch.setattr(backends, "ON_HOST", backends.ON_CARDS)
    use("auto")
    for op in OPS:
        found = resolve(op, *trial.sample(op, CPU, torch.float16))
        assert found.name == "hip", found
        assert [name for name, _ in found.refused] == ["triton"]


def test_without_kernels_auto_goes_on_and_a_wish_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    why = Missing("no native kernels are built for gfx1030 yet", "--backend hip builds them once")
    monkeypatch.setitem(supply._held, CPU, why)
    monkeypatch.setattr(supply, "_tried", {CPU})
    monkeypatch.setattr(backends, "_availability", {})
    monkeypatch.setattr(backends, "ON_HOST", backends.ON_CARDS)
    use("auto")
    found = resolve("rms_norm", *trial.sample("rms_norm", CPU, torch.float16))
    assert found.name == "cpu"
    assert dict(found.refused)["hip"] == str(why)
    with pytest.raises(OptionError, match="hip cannot compute on cpu: no native kernels are built for gfx1030 yet"):
        use("hip", CPU)
    use("auto")


REFUSED: tuple[tuple[str, dict[int, Any], str], ...] = (
    ("linear", {0: torch.zeros(5, 256).half()}, "5 rows: it takes 4"),
    ("linear", {0: torch.zeros(1, 256)}, "float32"),
    ("linear", {1: torch.zeros(64, 512).half()[:, ::2]}, "weight is strided"),
    ("w4a16", {0: torch.zeros(65, 256).half()}, "65 rows: it takes 64"),
    ("w4a16", {1: torch.zeros(33, 64, dtype=torch.int32)[:, 1:33]}, "16 bytes"),
    ("w4a16", {7: 40}, "groups of 40"),
    ("w4a16", {2: torch.zeros(64, 4).half()[:, ::2]}, "scales is not contiguous"),
    ("rotary", {4: [4, 4, 4, 4, 4, 4, 4, 2, 2]}, "9 sections: it takes 8"),
    ("rotary", {2: torch.zeros(1, 1, 64)}, "differ in dtype"),
    ("kv_store", {2: torch.zeros(1, 2, 256, 128).half()[..., ::2]}, "keys is strided"),
    ("kv_store", {2: torch.zeros(1, 2, 256, 520).half()}, "520 channels"),
    ("decode_attention", {1: torch.zeros(1, 2, 256, 64)}, "float32"),
    ("decode_attention", {1: torch.zeros(1, 2, 256, 66).half()[..., 2:]}, "multiples of eight"),
    ("rms_norm", {0: torch.zeros(1).half().expand(9_000_000, 1)}, "items: it takes"),
    ("silu_and_mul", {0: torch.zeros(1).half().expand(9_000_000, 2)}, "items: it takes"),
)


@pytest.mark.parametrize(("op", "changed", "reason"), REFUSED, ids=[f"{op}-{why}" for op, _, why in REFUSED])
def test_what_a_kernel_cannot_do_is_refused_with_a_reason(op: str, changed: dict[int, Any], reason: str) -> None:
    arguments = list(trial.sample(op, CPU, torch.float16))
    assert backend.IMPLEMENTATIONS[op].refuses(*arguments) is None
    for at, value in changed.items():
        arguments[at] = value
    assert reason in str(backend.IMPLEMENTATIONS[op].refuses(*arguments))


def test_a_launcher_that_refuses_says_why_in_words(both: Both) -> None:
    norm = STRUCTS["mms_norm"]
    with pytest.raises(
        KernelError, match=r"mms_rms_norm was not started: a tensor that is needed is missing \(status 1\)"
    ):
        both.launchers.mms_rms_norm(norm(rows=1, features=8), None)
    with pytest.raises(KernelError, match=rf"sizes.*\(status {STATUS['SIZE']}\); use --backend reference"):
        both.launchers.mms_rms_norm(norm(rows=-1), None)


class Recorder:
    """A library that writes down where and on which stream its launchers were called."""

    def __init__(self, current: list[int]) -> None:
        self.current, self.calls = current, []  # type: tuple[list[int], list[tuple[int, int | None]]]

    def mms_rms_norm(self, arguments: Any, stream: int | None) -> None:
        self.calls.append((self.current[-1], stream))


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Two cards behind torch.cuda; the first is current."""
    current = [0]

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen.index)
        yield
        current.pop()

    recorder = Recorder(current)
    streams = lambda chosen: SimpleNamespace(cuda_stream=100 + chosen.index)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", streams)
    monkeypatch.setattr(launching, "kernels", lambda chosen: recorder)
    return recorder


def test_the_current_stream_of_the_tensors_own_card_is_passed(cards: Recorder) -> None:
    for index in (0, 1):
        launching.start("mms_rms_norm", STRUCTS["mms_norm"](), torch.device("cuda", index))
    assert cards.calls == [(0, 100), (1, 101)]
    assert cards.current == [0]


def test_a_missing_library_raises_with_advice_when_it_is_called() -> None:
    missing = Missing("no hipcc", "install the HIP SDK")
    with pytest.raises(KernelError, match="There is no native kernel mms_rms_norm here: no hipcc; install the HIP SDK"):
        missing.mms_rms_norm(None, None)
    assert not hasattr(missing, "__wrapped__")


def test_damaged_libraries_are_a_reason_and_no_crash(both: Both, tmp_path: Path) -> None:
    for name, text in (("empty.so", b""), ("text.so", b"nothing"), ("cut.so", None)):
        path = tmp_path / name
        path.write_bytes(Path(both.opened._name).read_bytes()[:5000] if text is None else text)
        found = load(path, "cpu")
        assert isinstance(found, Missing)
        assert str(path) in found.reason
        assert "built again" in found.advice


def test_a_library_of_another_version_is_refused(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmswap.hip_ext import library

    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    assert "of another version of mmswap (interface" in str(load(Path(both.opened._name), "cpu"))
    monkeypatch.undo()
    monkeypatch.setattr(library, "STRUCTS", {"mms_act": STRUCTS["mms_norm"]})
    assert "of another version of mmswap (mms_act has" in str(load(Path(both.opened._name), "cpu"))


def test_importing_it_never_fails_whatever_the_surroundings(tmp_path: Path) -> None:
    """An empty ROCM_HOME, a home outside ASCII, an amdsmi that raises, no compiler, nowhere to write."""
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")
    home = tmp_path / "Žluťoučký 用户"
    home.write_text("no folder")
    code = (
        "import torch; from mmswap.hip_ext import backend; print(backend.available(torch.device('cuda')));"
        "print(backend.available(torch.device('cpu')))"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "ROCM_HOME": "", "HOME": str(home), "PATH": "",
               "MMSWAP_HIP_ARCH": "nonsense", "OMP_NUM_THREADS": "1"}  # fmt: skip
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environ, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    card, processor = done.stdout.splitlines()
    assert processor == "it computes on cards, not on cpu"
    assert card
