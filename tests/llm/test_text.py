"""Text comes out piece by piece exactly as it would in one go; stop texts never show (cases C1 and C3)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmswap.llm.text import Detokenizer, Spelling, StopFilter

BAD = "\ufffd"


def cut(text: str, *places: int) -> list[bytes]:
    raw = text.encode()
    return [raw[a:b] for a, b in zip((0, *places), (*places, len(raw)))]


STREAMS: dict[str, tuple[list[bytes], str]] = {
    "emoji_2_2": (cut("ok 😊!", 5), "ok 😊!"),
    "emoji_1_1_1_1": (cut("😊", 1, 2, 3), "😊"),
    "cjk_every_byte": ([bytes([byte]) for byte in "平台适配".encode()], "平台适配"),
    "zwj_family": (cut("👨‍👩‍👧‍👦", 2, 5, 9, 13, 20), "👨‍👩‍👧‍👦"),
    "flag_skin": (cut("🇯🇵👍🏽", 3, 6, 10, 13), "🇯🇵👍🏽"),
    "accent_joined_with_next_token": ([b"\xc3", b"\xa9 x"], "é x"),
    "leading_space_kept": ([b"Hello", b" world"], "Hello world"),
    "newlines": ([b"a", b"\n", b"\n", b"b"], "a\n\nb"),
    "invalid_then_text": ([b"\xff", b"abc"], BAD + "abc"),
    "lone_lead_then_ascii": ([b"\xf0\x9f", b"A"], BAD + "A"),
    "real_replacement_char": ([BAD.encode(), b"."], BAD + "."),
}


def spell_byte_level(raw: bytes) -> str:
    """Bytes in the alphabet of byte-level BPE, taken from tokenizers and not from what is tested."""
    piece = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    table = {bytes([byte]): chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [byte for byte in range(256) if bytes([byte]) not in table]
    table |= {bytes([byte]): chr(256 + place) for place, byte in enumerate(others)}
    assert set(table.values()) == set(piece.alphabet())
    return "".join(table[bytes([byte])] for byte in raw)


def byte_level(pieces: list[bytes]) -> tuple[Any, list[int]]:
    spelled = [spell_byte_level(piece) for piece in pieces]
    return build(spelled, decoders.ByteLevel())


def build(spelled: list[str], decoder: Any) -> tuple[Any, list[int]]:
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(["<unk>", *spelled]))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.decoder = decoder
    inner.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<|end|>")
    return tokenizer, [vocabulary[piece] for piece in spelled]


def stream(tokenizer: Any, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", STREAMS)
def test_byte_level_streams(name: str) -> None:
    pieces, wanted = STREAMS[name]
    tokenizer, ids = byte_level(pieces)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == wanted
    if BAD not in wanted:
        assert not [delta for delta in deltas if BAD in delta]


def test_bad_bytes_hold_nothing_back() -> None:
    for name in ("invalid_then_text", "lone_lead_then_ascii", "real_replacement_char"):
        pieces, wanted = STREAMS[name]
        tokenizer, ids = byte_level(pieces)
        assert "".join(stream(tokenizer, ids)[:-1]) == wanted  # all of it before the flush


MARKED: dict[str, Any] = {
    "llama": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace_first": lambda: decoders.Metaspace(prepend_scheme="first"),
    "metaspace_never": lambda: decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": lambda: decoders.WordPiece(cleanup=False),
    "words": lambda: None,
}
WORDS = ["▁Hello", "▁", "wor", "ld", "▁naïve", "##ing", "平", "▁▁x", ".", "\n", "<0xF0>", "<0x9F>", "<0x98>", "<0x8A>"]


@pytest.mark.parametrize("kind", MARKED)
def test_every_kind_of_decoder_gives_what_decoding_at_once_gives(kind: str) -> None:
    tokenizer, ids = build(WORDS, MARKED[kind]())
    plain = ids[:10]
    smile = ids[10:]
    chooser = random.Random(0)
    for _ in range(40):
        answer = [chooser.choice(plain) for _ in range(chooser.randint(1, 9))]
        if kind in ("llama", "gemma"):
            answer += smile + [chooser.choice(plain)]
        deltas = stream(tokenizer, [*answer, tokenizer.eos_token_id])
        assert "".join(deltas) == tokenizer.decode(answer, skip_special_tokens=True), (kind, answer)
        assert not [delta for delta in deltas if BAD in delta]


def test_special_tokens_give_no_text_and_do_not_break_a_character() -> None:
    tokenizer, (first, second) = byte_level(cut("é", 1))
    end = tokenizer.eos_token_id
    assert stream(tokenizer, [first, end, second, end]) == ["", "", "é", "", ""]


def test_unfinished_character_appears_at_the_end_and_the_detokenizer_is_as_new() -> None:
    tokenizer, ids = byte_level([b"a", b"\xf0\x9f"])
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in ids] == ["a", ""]
    assert detokenizer.flush() == BAD
    assert detokenizer.push(ids[0]) + detokenizer.flush() == "a"


def test_work_per_token_does_not_grow() -> None:
    """Neither way decodes the whole answer again: calls and their lengths stay small."""
    tokenizer, ids = build(["▁a", "b"], decoders.WordPiece(cleanup=False))
    lengths: list[int] = []
    plain = tokenizer.decode
    tokenizer.decode = lambda given, **more: (lengths.append(len(given)), plain(given, **more))[1]
    detokenizer = Detokenizer(tokenizer)
    for step in range(300):
        detokenizer.push(ids[step % 2])
    assert max(lengths) <= 8
    assert len(lengths) <= 600


STOPS: dict[str, tuple[list[str], list[str], str, bool]] = {
    "whole": (["a ", "STOP", " b"], ["STOP"], "a ", True),
    "over_two": (["The quick br", "own", " fox", " jumps"], ["own fox"], "The quick br", True),
    "over_four": (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC", True),
    "inside_token": (["x", "yENDz"], ["END"], "xy", True),
    "near_miss_released": (["ab", "EN", "X", "c"], ["END"], "abENXc", False),
    "overlap": (["aa", "ab", "z"], ["aab"], "a", True),
    "earliest_of_two": (["1 two", " 3"], ["3", "two"], "1 ", True),
    "newline_stop": (["line", "\n", "\n", "next"], ["\n\n"], "line", True),
    "not_in_prompt": (["ok"], ["hello"], "ok", False),
    "emoji_stop": (["a", "👍", "b"], ["👍"], "a", True),
    "none": (["a", "b"], [], "ab", False),
}


@pytest.mark.parametrize("name", STOPS)
def test_stop_texts(name: str) -> None:
    pieces, stops, wanted, stopped = STOPS[name]
    filter_ = StopFilter(stops)
    shown = ""
    longest = max((len(stop) for stop in stops), default=1)
    pushed = ""
    for piece in pieces:
        shown += filter_.push(piece)
        pushed += piece
        assert wanted.startswith(shown), "something was shown that is later taken back"
        assert filter_.stopped or len(pushed) - len(shown) <= longest - 1, "more was held back than can matter"
    assert shown + filter_.flush() == wanted
    assert filter_.stopped == stopped


def test_single_tokens_are_spelled_in_bytes() -> None:
    tokenizer, ids = byte_level([b"\xc3", b"\xa9 x"])
    spelling = Spelling(tokenizer)
    assert [spelling.bytes_of(token) for token in ids] == [b"\xc3", b"\xa9 x"]
    assert spelling.bytes_of(tokenizer.eos_token_id) == b"<|end|>"
    assert spelling.bytes_of(10**6) == b""
