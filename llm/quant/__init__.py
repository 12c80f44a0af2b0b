"""Quantised weights: every 4-bit format that mmswap reads, in one layout. Knows names and tensors, no model.

`which(config, names)` says which modules are packed, `read(stored, tensors)` brings one into the layout, `quantise`
makes one of a plain weight, `QuantLinear` computes with it. `place(stored, modules)` finds the modules of a model by
the names of a file.
"""

from mmswap.llm.quant.layout import Packed4, pack, packed_bytes
from mmswap.llm.quant.module import QuantLinear
from mmswap.llm.quant.names import place
from mmswap.llm.quant.rtn import Rounded, quantise, sqnr_db
from mmswap.llm.quant.scheme import Scheme
from mmswap.llm.quant.which import Stored, Which, read, which

__all__ = [
    "Packed4",
    "QuantLinear",
    "Rounded",
    "Scheme",
    "Stored",
    "Which",
    "pack",
    "packed_bytes",
    "place",
    "quantise",
    "read",
    "sqnr_db",
    "which",
]
