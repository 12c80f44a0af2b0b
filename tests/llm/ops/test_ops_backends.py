"""Which backend is chosen: the first that is there and takes the call; forced ones; and what is remembered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmswap.config import BACKENDS
from mmswap.errors import OptionError
from mmswap.llm.ops import backends, forced, reference, resolve, use, using
from mmswap.llm.ops.backends import Implementation

CPU = torch.device("cpu")
CARD = torch.device("cuda", 0)
ROW = (torch.ones(1, 8), torch.ones(8), 1e-6, 0.0, True)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    use("auto")


def fast(monkeypatch: pytest.MonkeyPatch, *, why: str | None = None, refuses: Any = lambda *_: None) -> None:
    """A backend in the place of `hip` that answers 7, and stands first on the processor too."""
    run = Implementation(lambda x, *_: torch.full_like(x, 7), refuses)
    module = SimpleNamespace(NAME="hip", available=lambda device: why, IMPLEMENTATIONS={"rms_norm": run})
    monkeypatch.setitem(backends._backends, "hip", module)
    monkeypatch.setattr(backends, "_availability", {})
    monkeypatch.setattr(backends, "ON_HOST", ("hip", "cpu", "reference"))
    use("auto")  # nothing is remembered


def test_the_options_names_are_those_of_the_table() -> None:
    assert set(BACKENDS) == {"auto", *backends.HOMES}


def test_the_order_is_the_fastest_first() -> None:
    assert backends.order(CARD) == ("triton", "hip", "cpu", "reference")
    assert backends.order(CPU) == ("cpu", "reference")


def test_the_first_that_is_there_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    assert resolve("rms_norm", *ROW).name == "hip"
    assert torch.ops.mmswap.rms_norm(*ROW)[0, 0] == 7


def test_a_missing_one_is_passed_over_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, why="no compiler")
    found = resolve("rms_norm", *ROW)
    assert (found.name, found.refused) == ("cpu", (("hip", "no compiler"),))


def test_a_shape_that_it_refuses_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, refuses=lambda x, *_: "8 features" if x.shape[-1] == 8 else None)
    assert resolve("rms_norm", *ROW).refused == (("hip", "8 features"),)
    assert torch.ops.mmswap.rms_norm(*ROW)[0, 0] == pytest.approx(1)
    assert torch.ops.mmswap.rms_norm(torch.ones(1, 4), None, 1e-6, 0.0, True)[0, 0] == 7


def test_an_op_that_it_lacks_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    found = resolve("silu_and_mul", torch.ones(1, 8))
    assert (found.name, found.refused) == ("cpu", (("hip", "it does not have this op"),))


def test_a_stride_is_part_of_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice for a dense tensor must not serve a strided one of the same shape."""
    fast(monkeypatch, refuses=lambda x, *_: None if x.is_contiguous() else "strided")
    assert torch.ops.mmswap.rms_norm(*ROW)[0, 0] == 7
    strided = torch.ones(1, 16)[:, ::2].expand(3, 8)
    dense = strided.contiguous()
    for x, want in ((dense, 7), (strided, 1), (dense, 7)):
        assert torch.ops.mmswap.rms_norm(x, *ROW[1:])[0, 0] == pytest.approx(want)


def test_forced_ones_compute_and_the_reference_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    with using("cpu"):
        assert forced() == "cpu"
        assert resolve("rms_norm", *ROW).name == "cpu"
    with using("hip"):
        assert resolve("silu_and_mul", torch.ones(1, 8)).name == "reference"
    with using("reference"):
        assert resolve("rms_norm", *ROW) == (reference.rms_norm, "reference", ())
    assert forced() == "auto"


def test_forcing_forgets_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    assert torch.ops.mmswap.rms_norm(*ROW)[0, 0] == 7
    use("reference")
    assert torch.ops.mmswap.rms_norm(*ROW)[0, 0] == pytest.approx(1)


def test_an_unknown_one_is_an_error_and_nothing_changes() -> None:
    with pytest.raises(OptionError, match="no backend 'cuda': use auto, triton, hip, cpu, reference"):
        use("cuda")
    assert forced() == "auto"


def test_a_forced_one_that_is_missing_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, why="no compiler")
    with pytest.raises(OptionError, match="--backend hip cannot compute on cpu: no compiler"):
        use("hip", "cpu")
    assert forced() == "auto"
    use("hip")
    with pytest.raises(OptionError, match="no compiler"):
        resolve("rms_norm", *ROW)


def test_the_processors_backend_cannot_be_forced_on_a_card() -> None:
    with pytest.raises(OptionError, match="--backend cpu cannot compute on cuda:0: it computes on the processor"):
        use("cpu", CARD)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModuleNotFoundError("No module named 'mmswap.hip_ext.backend'", name="mmswap.hip_ext.backend"), "not part"),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "needs the package numba"),
        (OSError("libamdhip64.so: cannot open\nmore"), "cannot be imported: OSError: libamdhip64.so: cannot open"),
    ],
)
def test_a_backend_that_cannot_be_imported_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def import_module(name: str) -> None:
        raise error

    monkeypatch.setattr(backends, "import_module", import_module)
    monkeypatch.setattr(backends, "_backends", {})
    monkeypatch.setattr(backends, "_availability", {})
    assert why in str(backends.missing("hip", CPU))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_REMEMBERED", 5)
    for rows in range(20):
        torch.ops.mmswap.silu_and_mul(torch.ones(rows, 2))
    assert 0 < len(backends._chosen["silu_and_mul"]) <= 5


def test_importing_the_ops_imports_no_kernel() -> None:
    code = (
        "import sys, mmswap.llm.ops, torch; torch.ops.mmswap.silu_and_mul(torch.ones(1, 2));"
        "sys.exit('triton' in sys.modules or 'mmswap.llm.ops.triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


def test_a_backend_that_is_asked_for_by_name_builds_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, why="not built")
    module: Any = backends._backends["hip"]
    built: list[torch.device] = []
    module.prepare = built.append
    module.available = lambda device: None if built else "not built"
    assert resolve("rms_norm", *ROW).name == "cpu"
    assert built == []
    use("hip", CPU)
    assert built == [CPU]
    assert resolve("rms_norm", *ROW).name == "hip"
    use("hip", CPU)
    assert built == [CPU]


def test_what_cannot_be_built_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, why="no hipcc")
    module: Any = backends._backends["hip"]
    module.prepare = lambda device: None
    with pytest.raises(OptionError, match="no hipcc"):
        use("hip", CPU)
