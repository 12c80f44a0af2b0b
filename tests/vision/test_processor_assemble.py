"""Putting processors together: what is missing is named, and nothing is left behind in transformers."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from processor_folders import make_folder

from mmswap.errors import ModelError
from mmswap.vision.processor import load_processor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", "qwen2_vl")


def edit(folder: Path, name: str, **values: Any) -> None:
    """Change entries of a JSON file; None deletes one."""
    content = {**json.loads((folder / name).read_text()), **values}
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def refusal(folder: Path | str) -> str:
    with pytest.raises(ModelError) as caught:
        load_processor(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(folder) in sentence
    return sentence


@pytest.mark.parametrize("name", ["Nope", None])
def test_an_unknown_or_missing_tokenizer_class_is_read_from_tokenizer_json(name: str | None, folder: Path) -> None:
    edit(folder, "tokenizer_config.json", tokenizer_class=name)
    with pytest.warns(UserWarning, match=r"the tokenizer was read from tokenizer\.json"):
        processor = load_processor(folder)
    assert processor.tokenizer("hello world")["input_ids"]


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2TokenizerFast"])
def test_a_known_tokenizer_class_gives_no_warning(name: str, folder: Path) -> None:
    edit(folder, "tokenizer_config.json", tokenizer_class=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        load_processor(folder)


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    def without(name: str, text: str | None) -> str:
        kept = (folder / name).read_text()
        (folder / name).unlink() if text is None else (folder / name).write_text(text)
        sentence = refusal(folder)
        (folder / name).write_text(kept)
        return sentence

    assert "no tokenizer.json" in without("tokenizer.json", None)
    assert "tokenizer cannot be read" in without("tokenizer.json", "{")
    assert "preprocessor_config.json is missing" in without("preprocessor_config.json", None)
    assert "preprocessor_config.json cannot be read" in without("preprocessor_config.json", "{")
    assert "config.json does not hold a JSON object" in without("config.json", "[]")
    assert "processor_config.json cannot be read" in without("processor_config.json", "{")
    load_processor(folder)


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer.model", None])
def test_a_model_of_text_alone_is_not_blamed_for_files_that_it_need_not_have(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    if tokenizer:
        (tmp_path / tokenizer).write_text("{")
    assert refusal(tmp_path).endswith(
        "is a llama model, which takes no pictures: mmswap needs an image-text-to-text model."
    )


def test_a_tokenizer_of_another_kind_is_not_said_to_be_missing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_text("x")
    assert "tokenizer.json, and tokenizer.model cannot be read" in refusal(folder)


def test_unknown_classes_are_named(folder: Path) -> None:
    edit(folder, "processor_config.json", processor_class="NopeProcessor")
    assert "no usable NopeProcessor" in refusal(folder)
    edit(folder, "processor_config.json", processor_class=None)
    load_processor(folder)  # the model type says which
    edit(folder, "config.json", model_type="llama")
    assert "model type 'llama' has none" in refusal(folder)


def test_what_exists_for_torchvision_only_says_so(folder: Path) -> None:
    edit(folder, "preprocessor_config.json", image_processor_type="Llama4ImageProcessor")
    assert "Llama4ImageProcessor exists for torchvision only" in refusal(folder)


def test_what_is_neither_a_folder_nor_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refusal(tmp_path / "file")
    assert "neither a folder that exists nor" in refusal(tmp_path / "none")
    assert "neither a folder that exists nor" in refusal("./models/none at all")


def test_settings_that_old_llava_folders_keep_in_config_json(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llava", "llava")
    edit(folder, "processor_config.json", patch_size=None, vision_feature_select_strategy=None,
         num_additional_image_tokens=None)  # fmt: skip
    edit(folder, "config.json", vision_config={"patch_size": 14, "model_type": "clip_vision_model"})
    processor = load_processor(folder)
    text = processor.render([{"role": "user", "content": [{"type": "image"}]}])
    assert processor.prepare(text, [Image.new("RGB", (60, 60))]).images[0].tokens == 16


def test_smolvlm_needs_num2words_only_while_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    monkeypatch.setattr(module, "num2words", None)
    load_processor(make_folder(tmp_path / "smolvlm", "smolvlm"))
    assert module.num2words is None


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    from transformers.processing_utils import ProcessorMixin

    before = ProcessorMixin.check_argument_for_proper_class
    processor = load_processor(make_folder(tmp_path / "pixtral", "pixtral"))
    assert ProcessorMixin.check_argument_for_proper_class is before
    assert "check_argument_for_proper_class" in type(processor._hf).__dict__  # on a subclass of its own
    if importlib.util.find_spec("torchvision") is None:
        assert "transformers.models.pixtral.image_processing_pixtral" not in sys.modules
        assert "torchvision" not in sys.modules


OWN_CODE = """
from transformers import Qwen2VLProcessor
class MyProcessor(Qwen2VLProcessor):
    mine = True
"""


def test_a_processor_that_comes_as_code_runs_only_when_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "my_code.py").write_text(OWN_CODE)
    auto_map = {"AutoProcessor": "my_code.MyProcessor"}
    edit(folder, "processor_config.json", processor_class="MyProcessor", auto_map=auto_map)
    assert "--trust-remote-code" in refusal(folder)
    assert load_processor(folder, trust_remote_code=True)._hf.mine
