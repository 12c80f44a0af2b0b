"""Attention backends are called, compared and metered; what fails or asks for score matrices changes a line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from mmswap.card.host import HostCard
from mmswap.doctor import attention
from mmswap.doctor.attention import AOTRITON, BACKENDS, DEFAULT, SelfTest, Shape, plain, verdict
from mmswap.doctor.check import Check

SMALL, LARGE = Shape("small", 2, 5, 8), Shape("large", 2, 130, 16)
HALF_MATRIX = LARGE.matrix(4) // 2


def forced() -> str:
    """Which backend torch is told to take."""
    flags = {name: attention.enabled(name) for name in ("math", "flash", "efficient", "cudnn")}
    on = [name for name, flag in flags.items() if flag]
    return on[0] if len(on) == 1 else DEFAULT


def self_test(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = sdpa,
    scratch: int | None = 0,
    dtype: torch.dtype = torch.float32,
) -> SelfTest:
    return SelfTest(torch.device("cpu"), dtype, (SMALL, LARGE), lambda *call: scratch, attend)


def test_plain_math_is_torchs_attention() -> None:
    q, k, v = torch.randn(3, 1, 2, 7, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(plain(q, k, v), sdpa(q, k, v), atol=1e-6)


def test_a_right_backend_is_right_and_called_on_both_shapes() -> None:
    sizes: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes.append(q.shape[-2])
        return plain(q, k, v)

    check = self_test(attend).check(DEFAULT)
    assert check.state == "ok"
    assert set(sizes) == {5, 130}
    assert check.facts["small"]["works"]
    assert check.facts["large"]["works"]
    assert check.facts["large"]["off"] < 1e-5


@pytest.mark.parametrize("backend", ["math", "flash", "efficient", "cudnn"])
def test_the_backend_is_the_one_that_torch_may_take(backend: str) -> None:
    seen: set[str] = set()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.add(forced())
        return plain(q, k, v)

    before = [attention.enabled(name) for name in ("math", "flash", "efficient", "cudnn")]
    self_test(attend).check(backend)
    assert seen == {backend}
    assert [attention.enabled(name) for name in ("math", "flash", "efficient", "cudnn")] == before


def nan_beyond_100_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q, k, v) * (math.nan if q.shape[-2] > 100 else 1)


def last_key_is_forgotten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q, k[..., :-1, :], v[..., :-1, :])


def scale_is_forgotten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q * math.sqrt(q.shape[-1]), k, v)


@pytest.mark.parametrize("attend", [nan_beyond_100_tokens, last_key_is_forgotten, scale_is_forgotten])
def test_wrong_results_are_broken_where_they_run_and_a_note_elsewhere(attend: Any) -> None:
    assert self_test(attend).check(DEFAULT).state == "broken"
    assert self_test(attend).check("flash").state == "note"
    check = self_test(attend).check(DEFAULT)
    assert check.value == "wrong results"
    assert not check.facts["large"]["works"]


def test_half_precision_is_no_wrong_result() -> None:
    check = self_test(lambda q, k, v: sdpa(q, k, v), dtype=torch.bfloat16).check("math")
    assert check.state == "ok"


def test_a_backend_that_fails_on_the_large_shape_alone_says_so() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[-2] > 100:
            raise RuntimeError("HIP out of memory. Tried to allocate 40.00 GiB")
        return plain(q, k, v)

    check = self_test(attend).check("math")
    assert (check.state, check.value) == ("broken", "fails on the large shape")
    assert "40.00 GiB" in check.reason
    assert check.facts["small"]["works"]
    assert self_test(attend).check("flash").state == "ok"


def test_the_reason_that_torch_only_warns_of_is_told() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        warnings.warn("Flash attention kernel not used because: (Triggered internally at x.cpp:7.)", stacklevel=1)
        warnings.warn("Flash attention was not compiled for current AMD GPU architecture.", stacklevel=1)
        raise RuntimeError("No viable backend for scaled_dot_product_attention was found.")

    check = self_test(attend).check("flash")
    assert check.value == "not there"
    assert "not compiled for current AMD GPU" in check.facts["small"]["error"]


def test_devices_that_somebody_put_over_a_torch_without_kernels_are_not_broken() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise AssertionError("Torch not compiled with CUDA enabled")

    assert self_test(attend).check(DEFAULT).state == "unknown"


@pytest.mark.parametrize(("scratch", "quadratic"), [(0, False), (HALF_MATRIX - 1, False), (HALF_MATRIX, True)])
def test_how_the_memory_behaves_is_told(scratch: int, quadratic: bool) -> None:
    check = self_test(scratch=scratch).check(DEFAULT)
    assert check.facts["large"]["score_matrix"] is quadratic
    assert ("no score matrix" in check.value) is not quadratic
    assert "not known" in self_test(scratch=None).check(DEFAULT).value


def test_torchs_own_math_takes_a_score_matrix_on_this_host_and_its_flash_does_not() -> None:
    test = attention.self_test(HostCard())
    assert test.check("math").facts["large"]["score_matrix"] is True
    assert test.check("flash").facts["large"]["score_matrix"] is False
    assert set(attention.backends()) <= set(BACKENDS)
    assert attention.backends()[-1] == DEFAULT


def works(quadratic: bool = False) -> Check:
    return Check("", "ok", "", facts={"large": {"works": True, "score_matrix": quadratic}})


def fails() -> Check:
    return Check("", "ok", "", facts={"large": {"works": False, "score_matrix": False}})


ALL_FAIL: Mapping[str, Check] = {"math": works(True), "flash": fails(), "efficient": fails(), DEFAULT: works(True)}


def test_on_rdna_the_switch_is_shown_and_advised_when_nothing_but_math_works() -> None:
    check = verdict(ALL_FAIL, "gfx1100", {})
    assert check.state == "note"
    assert f"{AOTRITON} is not set" in check.reason
    assert f"{AOTRITON}=1" in check.advice


def test_a_switch_that_is_set_is_not_advised_again() -> None:
    check = verdict(ALL_FAIL, "gfx1201", {AOTRITON: "1"})
    assert check.state == "note"
    assert "newer torch" in check.advice
    assert check.facts[AOTRITON] == "1"
    assert f"{AOTRITON}=1" in verdict(ALL_FAIL, "gfx1201", {AOTRITON: "0"}).advice


@pytest.mark.parametrize("arch", ["gfx942", "sm_90", ""])
def test_the_switch_is_no_business_of_other_cards(arch: str) -> None:
    check = verdict(ALL_FAIL, arch, {})
    assert check.state == "note"
    assert AOTRITON not in check.reason + check.advice


def test_nothing_is_said_of_a_default_that_could_not_be_called() -> None:
    for default in ({}, {DEFAULT: Check("", "unknown", "not tried")}):
        assert verdict({"math": works(True), **default}, "gfx1100", {}).state == "unknown"


def test_one_backend_that_works_is_enough_unless_the_default_takes_another() -> None:
    good = {**ALL_FAIL, "efficient": works(), DEFAULT: works()}
    assert verdict(good, "gfx1100", {}).state == "ok"
    assert verdict(good, "gfx1100", {}).facts["fused"] == ["efficient"]
    assert verdict({**good, DEFAULT: works(True)}, "gfx1100", {}).state == "note"
