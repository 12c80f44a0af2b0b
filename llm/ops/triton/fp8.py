"""8-bit floats by integer arithmetic, the same on every card: compilers emulate e4m3 at 28 instructions a number.

    half = decoded8(codes, E5M2);  codes = encoded8(x, E5M2)      # E5M2: False is e4m3fn

Codes are uint8. `decoded8` gives float16: the value for e5m2, the value / 256 for e4m3 (exact for every code that is a
number; infinities and NaN of e5m2 are kept, the NaN codes of e4m3 become 480). `encoded8` rounds to nearest even and
saturates.
"""

import triton
import triton.language as tl


@triton.jit
def decoded8(codes, E5M2: tl.constexpr):
    """float16 of uint8 codes."""
    wide = codes.to(tl.int16) << 8
    if E5M2:
        return wide.to(tl.float16, bitcast=True)
    else:  # the sign stays, the other seven bits move down by one, and what the shift copied of the sign is cleared
        return ((wide >> 1) & -16385).to(tl.float16, bitcast=True)


@triton.jit
def encoded8(x, E5M2: tl.constexpr):
    """uint8 codes of float32 numbers; NaN must be gone."""
    size = tl.minimum(tl.abs(x), 57344.0 if E5M2 else 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    if E5M2:
        code = ((bits + 0xFFFFF + ((bits >> 21) & 1)) >> 21) - 448  # 112 << 2: bias 127 to bias 15
        small = (size + 128.0).to(tl.uint32, bitcast=True) & 0x7F  # steps of 2^-16, rounded by the sum
        code = tl.where(size < 0.00006103515625, small, code)
    else:
        code = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960  # 120 << 3: bias 127 to bias 7
        small = (size + 16384.0).to(tl.uint32, bitcast=True) & 0x7F  # steps of 2^-9
        code = tl.where(size < 0.015625, small, code)
    return (code | sign).to(tl.uint8)
