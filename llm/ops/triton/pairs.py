"""Four-bit codes times activations, two at a time: the arithmetic that all int4 kernels share, by kind of card.

    d = decoded(w, w >> 8, z, 0, MATH);  sums = accumulated(sums, d, x, z, MATH)

A pair is an int32 that holds two 16-bit numbers. (code - zero) is exact in every kind, and its product with an
activation is summed in float32. MATH is one of:

    dot2_f16, dot2_bf16      AMD: two products and a sum in one instruction, v_dot2_f32_*
    ptx_f16, ptx_bf16        NVIDIA: the subtraction in pairs, the products one by one
    plain_f16, plain_bf16    any other card, and the interpreter: Triton alone, no assembly

The assembly has no form for the interpreter: the tests give it one (`emulated.py` beside them).
"""

import triton
import triton.language as tl


@triton.jit
def pair_ptr(pointer):
    """A pointer to 16-bit numbers as one to pairs of them."""
    return pointer.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def low_half(pair, BF16: tl.constexpr):
    """The first number of each pair, float32."""
    if BF16:
        return (pair << 16).to(tl.float32, bitcast=True)
    else:
        return (pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(pair, BF16: tl.constexpr):
    """The second number of each pair, float32."""
    if BF16:
        return (pair & -65536).to(tl.float32, bitcast=True)
    else:
        return ((pair >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def pair_dot(a, b, sums, MATH: tl.constexpr):
    """sums + a0 * b0 + a1 * b1 of two pairs of float16, or of bfloat16, by the kind's name."""
    if MATH == "dot2_f16":
        return tl.inline_asm_elementwise(
            "v_dot2_f32_f16 $0, $1, $2, $3", "=v,v,v,v", [a, b, sums], dtype=tl.float32, is_pure=True, pack=1
        )
    elif MATH == "dot2_bf16":
        return tl.inline_asm_elementwise(
            "v_dot2_f32_bf16 $0, $1, $2, $3", "=v,v,v,v", [a, b, sums], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        BF16: tl.constexpr = MATH == "ptx_bf16" or MATH == "plain_bf16"
        sums += low_half(a, BF16) * low_half(b, BF16)
        return sums + high_half(a, BF16) * high_half(b, BF16)


@triton.jit
def _plus(a, b, MATH: tl.constexpr):
    if MATH == "dot2_f16":
        return tl.inline_asm_elementwise(
            "v_pk_add_f16 $0, $1, $2", "=v,v,v", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    elif MATH == "ptx_f16":
        return tl.inline_asm_elementwise(
            "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    else:  # 1.0 * a + b: there is no sum of bfloat16 before sm_90
        return tl.inline_asm_elementwise(
            "fma.rn.bf16x2 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, tl.full(a.shape, 0x3F803F80, tl.int32), b],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _minus_zero(z, EVEN: tl.constexpr, MATH: tl.constexpr):
    """The pair that takes `_raised` down to code - zero: -(1024 + z), -(64 + z), or -(128 + z) for bfloat16."""
    if MATH == "dot2_bf16" or MATH == "ptx_bf16":
        return (z * 0x00010001) + -1023360256  # 0xC300C300
    elif EVEN:
        return (z * 0x00010001) + -469703680  # 0xE400E400
    else:
        return (z * 0x00100010) + -738143232  # 0xD400D400


@triton.jit
def _raised(w, high, PAIR: tl.constexpr, MATH: tl.constexpr):
    """Codes of nibbles PAIR and PAIR + 4 as the last bits of a float: 1024 + code, 64 + code, or 128 + code."""
    if MATH == "dot2_bf16" or MATH == "ptx_bf16":
        return ((w >> (4 * PAIR)) & 0x000F000F) | 0x43004300
    elif PAIR % 2 == 0:
        return ((high if PAIR >= 2 else w) & 0x000F000F) | 0x64006400
    else:
        return ((high if PAIR >= 2 else w) & 0x00F000F0) | 0x54005400


@triton.jit
def decoded(w, high, z, PAIR: tl.constexpr, MATH: tl.constexpr):
    """Pair PAIR (0..3) of the words `w`, ready for `accumulated`. `high` is w >> 8; z the zero points, int32."""
    if MATH == "plain_f16" or MATH == "plain_bf16":
        first = ((w >> (4 * PAIR)) & 15) - z
        second = ((w >> (4 * PAIR + 16)) & 15) - z
        return (first & 0xFFFF) | (second << 16)  # two int16
    elif MATH == "dot2_bf16":
        return _raised(w, high, PAIR, MATH)
    else:
        return _plus(_raised(w, high, PAIR, MATH), _minus_zero(z, PAIR % 2 == 0, MATH), MATH)


@triton.jit
def accumulated(sums, d, x, z, MATH: tl.constexpr):
    """sums + the two products of `decoded` codes and a pair of activations."""
    if MATH == "plain_f16" or MATH == "plain_bf16":
        sums += ((d << 16) >> 16).to(tl.float32) * low_half(x, MATH == "plain_bf16")
        return sums + (d >> 16).to(tl.float32) * high_half(x, MATH == "plain_bf16")
    elif MATH == "dot2_bf16":  # no sum of bfloat16 pairs there: 128 + zero is taken away from the products
        return pair_dot(d, x, pair_dot(_minus_zero(z, True, MATH), x, sums, MATH), MATH)
    else:
        return pair_dot(d, x, sums, MATH)
