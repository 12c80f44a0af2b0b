"""KV caches: preallocated, in several kinds, a drop-in for transformers' own. Each knows what it takes.

    cache = open_cache(model, capacity=4096, kind=kv_kind("int8"))
    model(**inputs, cache=cache, use_cache=True);  cache.nbytes

kinds (names and bytes)   store (numbers in and out)   ranges (offsets and scales)   layer, ring (one layer each)
cache (all layers)   opening (which layers, which refusals)   calibration, measuring (offsets found beforehand)
given (scales that a checkpoint brings)   layout, shapes (bytes at any length)   prefix (what two prompts share)
"""

from mmswap.late import late

__all__ = ["BLOCK", "Kind", "KvCache", "KvLayout", "kv_kind", "open_cache"]

__getattr__ = late(
    __name__,
    {
        "BLOCK": "kinds",
        "Kind": "kinds",
        "kv_kind": "kinds",
        "KvLayout": "layout",
        "KvCache": "cache",
        "open_cache": "opening",
    },
)
