"""`/v1/completions`: texts that the model reads as they stand."""

from __future__ import annotations

from typing import Any

import pytest
from serving import asks, chunks_of, content_of, error_of, strictly

HERE = "/v1/completions"
CHAT_AS_TEXT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_text_is_read_as_it_stands(client: Any) -> None:
    chat = content_of(client.post("/v1/chat/completions", json=asks("hi", max_tokens=8)))
    answer = strictly(client.post(HERE, json={"prompt": CHAT_AS_TEXT, "temperature": 0, "max_tokens": 8}).text)
    assert answer["choices"][0]["text"] == chat
    assert answer["object"] == "text_completion"


def test_answers_come_in_the_order_of_the_prompts(client: Any) -> None:
    body = {"prompt": [CHAT_AS_TEXT, "a b c"], "temperature": 9.0, "seed": 3, "n": 2, "max_tokens": 4}
    body |= {"logit_bias": {"2": -100, "0": -100}}
    whole = client.post(HERE, json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    alone = [client.post(HERE, json={**body, "prompt": prompt, "n": 1}).json() for prompt in body["prompt"]]
    assert [whole["choices"][at]["text"] for at in (0, 2)] == [one["choices"][0]["text"] for one in alone]
    assert whole["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)
    assert whole["usage"]["completion_tokens"] == 16
    chunks = chunks_of(client.post(HERE, json={**body, "stream": True}).text)
    texts = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == at) for at in range(4)]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_logprobs_in_the_older_shape(client: Any) -> None:
    body = {"prompt": CHAT_AS_TEXT, "temperature": 0, "max_tokens": 5, "logprobs": 2}
    choice = strictly(client.post(HERE, json=body).text)["choices"][0]
    listed = choice["logprobs"]
    assert "".join(listed["tokens"]) == choice["text"]
    assert [choice["text"][at:][: len(word)] for at, word in zip(listed["text_offset"], listed["tokens"])] == listed[
        "tokens"
    ]
    assert all(len(top) == 2 and top[word] == value for top, word, value in zip(
        listed["top_logprobs"], listed["tokens"], listed["token_logprobs"]
    ))  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": ""}, {"prompt": []}, {"prompt": ["a", ""]}, {"prompt": [1, 2]}, {}, {"echo": True}, {"best_of": 3}],
)
def test_what_is_not_served(client: Any, wrong: dict[str, Any]) -> None:
    error_of(client.post(HERE, json={"prompt": "x", **wrong} if wrong else {}), 400)
