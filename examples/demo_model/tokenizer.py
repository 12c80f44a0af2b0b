"""A byte-level BPE of about 600 tokens for the demo model, in which every answer word is one token.

Trained on the wordings and answers of `questions`; any other text still encodes, byte by byte if need be.
"""

import itertools
from collections.abc import Iterator

from draw import COLOURS, DIGITS, SHAPES, WORDS, ZONES
from questions import CAPABILITY, NUMBERS, PLURALS, WORDINGS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
SYSTEMS = [
    "You are a helpful assistant.",
    "Answer briefly.",
    "You look at pictures and answer questions about them.",
    "Be short and exact.",
]
ANSWER_WORDS = sorted({*COLOURS, *SHAPES, *PLURALS.values(), *DIGITS, *WORDS, *NUMBERS, *" ".join(ZONES).split()})
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' or 'image' in c or 'image_url' in c %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' or 'video' in c %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(vocabulary: int = 704) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    bpe.train_from_iterator(_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
    )
    tokenizer.chat_template = TEMPLATE
    for word in ANSWER_WORDS:  # a word in pieces is learnt badly: "gurple"
        assert len(tokenizer.encode(word)) == len(tokenizer.encode(" " + word)) == 1, word
    return tokenizer


def _corpus() -> Iterator[str]:
    for word in ANSWER_WORDS:
        for _ in range(400):
            yield word
            yield " " + word
    names = {"noun": "object", "nouns": "objects", "shape": "thing", "shapes": "things", "colour": "color"}
    for wording in itertools.chain.from_iterable(WORDINGS.values()):
        text = wording.format(**names)
        for variant in (text, text.replace("colour", "color"), text.lower(), text.lower().rstrip("?.!")):
            yield from [variant] * 3
    for _ in range(100):
        yield CAPABILITY
        yield "user\nassistant\nsystem\n the digit in on a background and an the word in on an background"
        yield " gray color colour Please tell me: Question: Look at the picture. And what And how And where "
    for text in SYSTEMS:
        yield from [text] * 10
