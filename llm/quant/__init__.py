"""Quantised weights: every 4-bit format that mmswap reads, in one layout. Knows names and tensors, no model.

`which(config, names)` says which modules are packed, `read(stored, tensors)` brings one into the layout, `quantise`
makes one of a plain weight, `QuantLinear` computes with it, and `QuantStack` with those of many experts.
"""

from mmswap.llm.quant.layout import Packed4, pack, packed_bytes
from mmswap.llm.quant.module import QuantLinear, merged
from mmswap.llm.quant.rtn import Rounded, quantise, sqnr_db
from mmswap.llm.quant.scheme import Scheme
from mmswap.llm.quant.stack import QuantStack
from mmswap.llm.quant.which import Stored, Which, read, rows_of, which

__all__ = [
    "Packed4",
    "QuantLinear",
    "QuantStack",
    "Rounded",
    "Scheme",
    "Stored",
    "Which",
    "merged",
    "pack",
    "packed_bytes",
    "quantise",
    "read",
    "rows_of",
    "sqnr_db",
    "which",
]
