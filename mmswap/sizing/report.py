"""The sentences of a plan, and what the card holds at its two moments. Knows figures, no models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.config import SMALLEST_CHUNK
from mmswap.sizing import bounds
from mmswap.sizing.answer import HOST, NOT, NOTICE, ONE_BY_ONE, Sizing
from mmswap.sizing.packing import GROUP
from mmswap.sizing.weights import HEAD, LAYERS
from mmswap.swap.plan import Plan
from mmswap.units import format_apart, format_bytes

if TYPE_CHECKING:
    from mmswap.sizing.planner import Planner
    from mmswap.sizing.search import Found

KV, LENT, ENCODER, FEATURES = "KV cache", "encoder in lent bytes", "encoder", "features"
STEP, FREE = "prefill step", "free"
PICTURE, PROMPT = "while the pictures are encoded", "while the prompt is read"


def moments(sizing: Sizing, decided: Plan) -> dict[str, dict[str, int]]:
    """Bytes by group at the two moments that decide, adding up to the card; `free` below 0 is missing."""
    rest = dict(sizing.groups)
    lent = sizing.lent
    for name in (HEAD, LAYERS):
        given = min(lent, rest[name]) if name == LAYERS or _gives(sizing) else 0
        rest[name], lent = rest[name] - given, lent - given
    need = 0 if sizing.fits == HOST else decided.need
    inside = min(need, sizing.lent)
    picture = {**rest, LENT: inside, ENCODER: need - inside}
    prompt = {**sizing.groups, FEATURES: sizing.encoding.features, STEP: sizing.scratch}
    return {
        PICTURE: {**picture, FREE: sizing.total - sum(picture.values())},
        PROMPT: {**prompt, FREE: sizing.total - sum(prompt.values())},
    }


def _gives(sizing: Sizing) -> bool:
    """Whether the first evicted unit is the output head."""
    return bool(sizing.evict) and bool(sizing.groups[HEAD]) and not sizing.evict[0].rpartition(".")[2].isdecimal()


def reasons(planner: Planner, sizing: Sizing, decided: Plan, found: Found) -> tuple[str, ...]:
    """Every decision with its figures, in the order in which it was taken."""
    return (
        f"{NOTICE} Nothing was run; no weights were read.",
        *planner.room.reasons,
        *_weights(planner, sizing),
        _cache(planner, sizing),
        *_pictures(planner, sizing),
        _verdict(sizing, decided),
        *_window(sizing),
        *_unknown(planner),
        _prompt(planner, sizing),
        *bounds.sentences(sizing, found, planner.most),
    )


def _weights(planner: Planner, sizing: Sizing) -> list[str]:
    kinds = f"{sizing.dtype} and {sizing.quantize}" if sizing.quantize else sizing.dtype
    said = [f"The weights take {format_bytes(planner.weights.total)} in {kinds}, each tensor counted once."]
    stored = planner.about.quantised
    if stored:
        said.append(
            f"The checkpoint's weights are quantised already ({stored}). They are counted in {sizing.dtype} here"
            + (", but for the decoder." if sizing.quantize else ": --quantize int4 is near the size of 4-bit ones.")
        )
    if planner.weights.tied:
        said.append("The output head is the embeddings' own tensor: it counts there, and is never evicted.")
    if sizing.quantize:
        said.append(
            f"{sizing.quantize}: 4 bits a weight, and a 16-bit scale and an 8-bit zero for every {GROUP} of them, in "
            "the linear layers of the decoder; tower, embeddings, norms and output head stay as they are."
        )
        said.append(
            f"A prefill step unpacks one matrix at a time, {format_bytes(planner.weights.unpacked)} at the most."
        )
    return said


def _cache(planner: Planner, sizing: Sizing) -> str:
    size = format_bytes(sizing.groups[KV])
    said = (
        f"The KV cache is counted full, at {sizing.context} tokens in {sizing.kv}: {size} "
        f"({planner.prompt.layout.sentence()}). At run time it grows with the conversation."
    )
    if planner.kv.float8:
        said += " Where keys have a bias, chat takes it only after `mmswap profile --kv MODEL`."
    return said


def _pictures(planner: Planner, sizing: Sizing) -> list[str]:
    e, peak = sizing.encoding, planner.cost.peak
    live, counted, reserved, pixels, features = map(format_bytes, (e.live, e.peak, e.reserved, e.pixels, e.features))
    what = "the picture becomes" if e.images == 1 else f"the {e.images} pictures become"
    said = [f"{e.width}x{e.height}: {what} {e.patches} patches and {e.tokens} tokens by the model's own processor."]
    if not peak.events:
        return [*said, f"The encoder's peak is taken as {peak.how}."]
    taken = f"torch's allocator takes {reserved} of the card for them"
    if e.peak != e.reserved:
        taken += f", and {counted} must be there, what kernels take aside inside one op included"
    if not planner.room.segments:
        taken = (
            f"{counted} must be there on this card, what the host's kernels take aside inside one op included, for "
            f"they compute here. On a real card, with its own kernels, torch's allocator takes {reserved}"
        )
    return [
        *said,
        f"The encoder has {live} of tensors alive at once; {taken}. "
        f"Beside it {pixels} of pixels and {features} of features.",
    ]


def _verdict(sizing: Sizing, decided: Plan) -> str:
    if sizing.free < 0:
        return "It does not fit: weights and KV cache alone are larger than the card."
    if sizing.fits == ONE_BY_ONE:
        return f"All pictures at once do not fit, so they are encoded one at a time. {decided.reason}"
    if decided.deficit and not sizing.evict:
        return f"{decided.reason} The encoder would run on the CPU."
    return decided.reason


def _window(sizing: Sizing) -> list[str]:
    if not sizing.evict:
        return []
    cost = f"{sizing.window_ms:.1f} ms: {format_bytes(sizing.lent)} over {sizing.link_rate / 1e9:.1f} GB/s"
    return [f"Bringing them back costs {cost}, behind the prefill where that takes longer. Evicting copies nothing."]


def _unknown(planner: Planner) -> list[str]:
    why = planner.prompt.given.unknown
    said = "What the model makes of a prompt before its decoder could not be followed, and its embeddings are counted"
    return [f"{said}: {why}. Expect it to take somewhat more."] if why else []


def _prompt(planner: Planner, sizing: Sizing) -> str:
    need, free = format_apart(sizing.scratch + sizing.encoding.features, max(0, sizing.free))
    step = f"A prompt that fills the context is read in steps of {sizing.step} tokens{_least(planner, sizing)}"
    missing = f"{format_bytes(sizing.shortfall)} are missing"
    if sizing.free < 0:
        return f"{step}: {need} with its features, for which there is no room; with it {missing}."
    if sizing.fits == NOT:
        return f"{step}: {need} with its features, and {free} are free: the prompt does not fit, {missing}."
    return f"{step}: {need} with its features, and {free} are free."


def _least(planner: Planner, sizing: Sizing) -> str:
    """Why the steps are no smaller, where they are the smallest."""
    if sizing.step > planner.prompt.largest(sizing.context, SMALLEST_CHUNK) or sizing.step == sizing.context:
        one_pass = planner.prompt.whole
        return ", as its decoder takes a prompt in one pass only" if one_pass else ""
    if sizing.step > SMALLEST_CHUNK:
        return ", the fewest here, for the tokens of a picture look at each other and stay in one step"
    return ", the fewest that are tried"
