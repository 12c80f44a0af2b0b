// y = W x with W in 4 bits (`Packed4`) and 1 to 4 input rows: the product on which decoding waits.
//
// A wave takes R weight rows. A lane loads 16 bytes of each (four words, 32 codes), decodes two codes at a time,
// exactly, to code - zero, and multiplies them by pairs of x that its rows share. Scales come after the sum of their
// group. What moves along the rows is one number in a lane; where rows begin, the whole wave knows.
#pragma once
#include "numbers.h"

constexpr int MMS_W4_WAVES = 4;
constexpr int MMS_W4_BLOCK = 128;  // columns whose nibbles are shuffled among one another

// R: weight rows of a wave for M input rows.
template <int M>
constexpr int MMS_W4_ROWS = M == 1 ? 4 : 2;

// Codes in nibbles I and I + 4 of w as the last bits of two floats: 1024 + code, 64 + code (odd I), 128 + code (BF16).
template <int T, int I>
MMS_FN uint32_t mms_raised(uint32_t w) {
  if constexpr (T == MMS_BF16) return ((w >> (4 * I)) & 0x000F000Fu) | 0x43004300u;
  const uint32_t high = I >= 2 ? w >> 8 : w;
  if constexpr (I % 2 == 0) return (high & 0x000F000Fu) | 0x64006400u;
  return (high & 0x00F000F0u) | 0x54005400u;
}

// What takes mms_raised down to code - zero, twice: -(1024 + zero), -(64 + zero) or -(128 + zero).
template <int T, int I>
MMS_FN uint32_t mms_lowering(uint32_t zero) {
  if constexpr (T == MMS_BF16) return zero * 0x00010001u + 0xC300C300u;
  if constexpr (I % 2 == 0) return zero * 0x00010001u + 0xE400E400u;
  return zero * 0x00100010u + 0xD400D400u;
}

#if defined(MMS_DOT2_BF16)
constexpr bool MMS_BF16_PAIRS = true;
#else
constexpr bool MMS_BF16_PAIRS = false;
#endif

// bfloat16 has no sum of pairs on these cards. Where it has a product of them, 128 + zero times the sum of a pair's
// columns is taken away first, for eight columns at a time; where it has none, codes go by float16 and x by float32.
template <int T>
constexpr bool MMS_W4_SUMS_X = T == MMS_BF16 && MMS_BF16_PAIRS;

// sums + (code - zero) x for pair I of word w. `z`: by mms_lowering.
template <int T, int I>
MMS_FN float mms_w4_pair(uint32_t w, uint32_t z, uint32_t x, float sum) {
  if constexpr (T == MMS_F16) return mms_dot2<MMS_F16>(mms_add_halves(mms_raised<T, I>(w), z), x, sum);
  if constexpr (MMS_W4_SUMS_X<T>) return mms_dot2<MMS_BF16>(mms_raised<T, I>(w), x, sum);
  const uint32_t d = mms_add_halves(mms_raised<MMS_F16, I>(w), z);
  return mms_fma(mms_high_half(d), mms_high_bfloat(x), mms_fma(mms_low_half(d), mms_low_bfloat(x), sum));
}

// The products of pair I for every row: `x` of M rows, 8 columns each.
template <int T, int R, int M, int I>
MMS_FN void mms_w4_part(float (&sums)[R][M], const mms_u4 (&words)[R], const uint32_t (&zeros)[R],
                        const mms_u4 (&x)[M]) {
  float all[M];
  if constexpr (MMS_W4_SUMS_X<T>) {
    MMS_UNROLL for (int m = 0; m < M; ++m) {
      all[m] = 0.0f;
      MMS_UNROLL for (int c = 0; c < 4; ++c) all[m] = mms_dot2<T>(0x3F803F80u, x[m].v[c], all[m]);
    }
  }
  MMS_UNROLL for (int r = 0; r < R; ++r) {
    const uint32_t z = mms_lowering<MMS_F16, I>(zeros[r]);
    if constexpr (MMS_W4_SUMS_X<T>) {
      MMS_UNROLL for (int m = 0; m < M; ++m) sums[r][m] = mms_fma(-128.0f - (float)zeros[r], all[m], sums[r][m]);
    }
    MMS_UNROLL for (int c = 0; c < 4; ++c)
      MMS_UNROLL for (int m = 0; m < M; ++m) sums[r][m] = mms_w4_pair<T, I>(words[r].v[c], z, x[m].v[c], sums[r][m]);
  }
}

// What lies `bytes` after a place that the whole wave knows.
template <typename X>
MMS_FN X mms_after(const void* base, uint32_t bytes) {
  return *(const X*)((const uint8_t*)base + bytes);
}

// S: the dtype, or -1: `dtype` says it.
template <int S>
MMS_FN float mms_scale(const void* from, uint32_t i, int dtype) {
  if constexpr (S == MMS_F32) return mms_after<float>(from, i * 4);
  if constexpr (S == MMS_F16) return mms_from_half(mms_after<uint16_t>(from, i * 2));
  if constexpr (S == MMS_BF16) return mms_from_bfloat(mms_after<uint16_t>(from, i * 2));
  return mms_load(from, i, dtype);
}

// acc += one step: the lane's 32 columns, at u4 `v` of the rows. SPAN: pairs of a word that share a scale.
template <int T, int S, int R, int M, int SPAN>
MMS_FN void mms_w4_step(float (&acc)[R][M], const mms_u4* const (&words)[R], const void* const (&scales)[R],
                        const uint8_t* const (&zeros)[R], const uint16_t* const (&x)[M], uint32_t v, uint32_t magic,
                        int dtype) {
  const uint32_t column = v / 4 * 128 + v % 4 * 8;
  mms_u4 w[R], xs[4][M];
  MMS_UNROLL for (int r = 0; r < R; ++r) w[r] = mms_after<mms_u4>(words[r], v * 16);
  MMS_UNROLL for (int i = 0; i < 4; ++i)
    MMS_UNROLL for (int m = 0; m < M; ++m) xs[i][m] = mms_after<mms_u4>(x[m] + 32 * i, column * 2);
  MMS_UNROLL for (int part = 0; part < 4; part += SPAN) {
    const uint32_t unit = (column + 32 * part) / 16, group = magic ? mms_mul_high(unit, magic) : unit;
    float scale[R], sums[R][M];
    uint32_t zero[R];
    MMS_UNROLL for (int r = 0; r < R; ++r) {
      scale[r] = mms_scale<S>(scales[r], group, dtype);
      zero[r] = mms_after<uint8_t>(zeros[r], group);
      MMS_UNROLL for (int m = 0; m < M; ++m) sums[r][m] = 0.0f;
    }
    if (part == 0) mms_w4_part<T, R, M, 0>(sums, w, zero, xs[0]);
    if (part / SPAN == 1 / SPAN) mms_w4_part<T, R, M, 1>(sums, w, zero, xs[1]);
    if (part / SPAN == 2 / SPAN) mms_w4_part<T, R, M, 2>(sums, w, zero, xs[2]);
    if (part / SPAN == 3 / SPAN) mms_w4_part<T, R, M, 3>(sums, w, zero, xs[3]);
    MMS_UNROLL for (int r = 0; r < R; ++r)
      MMS_UNROLL for (int m = 0; m < M; ++m) acc[r][m] = mms_fma(sums[r][m], scale[r], acc[r][m]);
  }
}

// acc: the lane's share of weight rows `first` to first + R times input rows `input` to input + M, of the steps that
// fall to `part` of `parts` waves. Rows past the last are taken for the last.
template <int T, int S, int R, int M, int SPAN>
MMS_FN void mms_w4_sums(float (&acc)[R][M], const mms_w4& a, int first, int input, int part, int parts) {
  const mms_u4* words[R];
  const void* scales[R];
  const uint8_t* zeros[R];
  const uint16_t* x[M];
  const uint32_t vectors = a.padded / 32;
  MMS_UNROLL for (int r = 0; r < R; ++r) {
    const int64_t row = first + r < a.outputs ? first + r : a.outputs - 1;
    words[r] = (const mms_u4*)a.words + row * vectors;
    scales[r] = (const uint8_t*)a.scales + row * a.groups * mms_bytes(S < 0 ? a.scale_dtype : S);
    zeros[r] = (const uint8_t*)a.zeros + row * a.groups;
    MMS_UNROLL for (int m = 0; m < M; ++m) acc[r][m] = 0.0f;
  }
  MMS_UNROLL for (int m = 0; m < M; ++m) {
    const int64_t row = input + m < a.rows ? input + m : a.rows - 1;
    x[m] = (const uint16_t*)a.x + row * a.x_stride;
  }
  MMS_LOOP for (uint32_t v = part * 32 + mms_tid() % 32; v < vectors; v += parts * 32)
    mms_w4_step<T, S, R, M, SPAN>(acc, words, scales, zeros, x, v, a.magic, a.scale_dtype);
}

MMS_FN void mms_w4_write(const mms_w4& a, int row, int output, int dtype, float y) {
  if (a.bias) y += mms_load(a.bias, output, a.bias_dtype);
  mms_store(a.out, (int64_t)row * a.outputs + output, dtype, y);
}

// A block's four waves share a row group's columns by `split` (1, 2, 4); block (i): row groups 4 i / split and on.
template <int T, int S, int M, int SPAN>
MMS_FN void mms_w4_gemv_body(const mms_w4& a) {
  constexpr int R = MMS_W4_ROWS<M>;
  __shared__ float shared[MMS_W4_WAVES][R * M];
  const int wave = mms_uniform(mms_tid() / 32), lane = mms_tid() % 32;
  const int part = wave & (a.split - 1), first = (mms_block_x() * MMS_W4_WAVES + wave) / a.split * R;
  float acc[R][M];
  mms_w4_sums<T, S, R, M, SPAN>(acc, a, first, 0, part, a.split);
  MMS_UNROLL for (int r = 0; r < R; ++r)
    MMS_UNROLL for (int m = 0; m < M; ++m) {
      const float sum = mms_wave_sum(acc[r][m]);
      if (lane == 0) shared[wave][r * M + m] = sum;
    }
  mms_sync();
  const int r = lane / M, m = lane % M;
  if (part != 0 || lane >= R * M || first + r >= a.outputs || m >= a.rows) return;
  float y = 0.0f;
  for (int w = 0; w < a.split; ++w) y += shared[wave + w][lane];
  mms_w4_write(a, m, first + r, T, y);
}
