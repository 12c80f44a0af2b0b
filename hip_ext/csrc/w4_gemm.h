// y = W x with W in 4 bits and any number of input rows, 16 at a time: codes are decoded into the operands of WMMA,
// whose order of k is free, so that the layout's order costs nothing. Where there is no WMMA, four rows at a time as
// w4.h does.
//
// A block takes 16 outputs and 16 input rows; its four waves share the columns by blocks of 128.
#pragma once
#include "w4.h"

#if MMS_WMMA
// Wave-wide: sums[i] of lane l is input row mms_d_row(i, l / 16), output l % 16.
template <int W>
MMS_FN int mms_d_row(int i, int half) {
  return W == 11 ? 2 * i + half : i + 8 * half;
}

// Pairs I of the words 8 h .. 8 h + 7 of a block, of which a lane of gfx12 has four: 16 columns of one output.
template <int T, int I, int W>
MMS_FN void mms_w4_columns(mms_fragment& b, const mms_u4* words, uint32_t z) {
  MMS_UNROLL for (int c = 0; c < (W == 11 ? 8 : 4); ++c) {
    const uint32_t raised = mms_raised<T, I>(words[c / 4].v[c % 4]);
    b.v[c] = T == MMS_F16 ? mms_add_halves(raised, z) : raised;
  }
}

template <int T, int I, int W>
MMS_FN void mms_w4_product(float (&sums)[8], const mms_fragment& x, const mms_u4* words, uint32_t zero) {
  const uint32_t z = mms_lowering<T, I>(zero);
  mms_fragment b;
  mms_w4_columns<T, I, W>(b, words, z);
  mms_wmma<T == MMS_BF16, W>(sums, x, b);
  if constexpr (T == MMS_BF16) {  // no sum of bfloat16 pairs: 128 + zero is taken away from the products
    MMS_UNROLL for (int c = 0; c < (W == 11 ? 8 : 4); ++c) b.v[c] = z;
    mms_wmma<true, W>(sums, x, b);
  }
}

template <int T, int SPAN, int W>
MMS_FN void mms_w4_tile(float (&acc)[8], const mms_w4& a, int wave) {
  constexpr int EACH = W == 11 ? 2 : 1;  // u4 of words, and of x, for one product
  const int lane = mms_tid() % 32, half = W == 11 ? 0 : lane / 16;
  const int output = mms_block_x() * 16 + lane % 16, input = mms_block_y() * 16 + lane % 16;
  const int64_t row = output < a.outputs ? output : a.outputs - 1, x_row = input < a.rows ? input : a.rows - 1;
  const mms_u4* words = (const mms_u4*)a.words + row * (a.padded / 32) + half;
  const uint16_t* x = (const uint16_t*)a.x + x_row * a.x_stride + 8 * half;
  MMS_UNROLL for (int i = 0; i < 8; ++i) acc[i] = 0.0f;
  for (int block = wave; block < a.padded / MMS_W4_BLOCK; block += MMS_W4_WAVES) {
    mms_u4 w[2 * EACH];
    MMS_UNROLL for (int h = 0; h < 2; ++h)
      MMS_UNROLL for (int e = 0; e < EACH; ++e) w[h * EACH + e] = words[block * 4 + h * 2 + e];
    float sums[8], scale = 0.0f;
    uint32_t zero = 0;
    MMS_UNROLL for (int j = 0; j < 8; ++j) {  // 16 columns: pairs j / 2 of the words 8 (j % 2) and on
      const int column = block * MMS_W4_BLOCK + 16 * j;
      if (SPAN == 1 || j == 0) {
        const uint32_t unit = (uint32_t)column / 16;
        const int64_t at = row * a.groups + (a.magic ? mms_mul_high(unit, a.magic) : unit);
        scale = mms_load(a.scales, at, a.scale_dtype);
        zero = ((const uint8_t*)a.zeros)[at];
        MMS_UNROLL for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
      }
      mms_fragment f;
      MMS_UNROLL for (int e = 0; e < EACH; ++e) {
        const mms_u4 q = *(const mms_u4*)(x + column + 8 * e);
        MMS_UNROLL for (int c = 0; c < 4; ++c) f.v[4 * e + c] = q.v[c];
      }
      const mms_u4* pair = w + j % 2 * EACH;
      if (j / 2 == 0) mms_w4_product<T, 0, W>(sums, f, pair, zero);
      if (j / 2 == 1) mms_w4_product<T, 1, W>(sums, f, pair, zero);
      if (j / 2 == 2) mms_w4_product<T, 2, W>(sums, f, pair, zero);
      if (j / 2 == 3) mms_w4_product<T, 3, W>(sums, f, pair, zero);
      if (SPAN == 1 || j == 7) {
        MMS_UNROLL for (int i = 0; i < 8; ++i) acc[i] = mms_fma(sums[i], scale, acc[i]);
      }
    }
  }
}

template <int T, int SPAN, int W>
MMS_FN void mms_w4_wmma_body(const mms_w4& a) {
  __shared__ float shared[MMS_W4_WAVES][8][32];
  const int wave = mms_tid() / 32, lane = mms_tid() % 32;
  float acc[8];
  mms_w4_tile<T, SPAN, W>(acc, a, wave);
  MMS_UNROLL for (int i = 0; i < 8; ++i) shared[wave][i][lane] = acc[i];
  mms_sync();
  MMS_UNROLL for (int i = wave; i < 8; i += MMS_W4_WAVES) {
    const int row = mms_block_y() * 16 + mms_d_row<W>(i, lane / 16), output = mms_block_x() * 16 + lane % 16;
    float y = 0.0f;
    MMS_UNROLL for (int w = 0; w < MMS_W4_WAVES; ++w) y += shared[w][i][lane];
    if (row < a.rows && output < a.outputs) mms_w4_write(a, row, output, T, y);
  }
}
#endif

// The same tile without WMMA: each wave four outputs, four input rows at a time.
template <int T, int SPAN>
MMS_FN void mms_w4_plain_body(const mms_w4& a) {
  constexpr int R = MMS_W4_ROWS<4>, M = T == MMS_BF16 && !MMS_BF16_PAIRS ? 2 : 4;  // few enough for the registers
  const int wave = mms_uniform(mms_tid() / 32), lane = mms_tid() % 32;
  MMS_LOOP for (int step = 0; step < 4 / R; ++step) {
    const int first = mms_block_x() * 16 + wave * 4 + step * R;
    MMS_LOOP for (int input = mms_block_y() * 16; input < a.rows && input < mms_block_y() * 16 + 16; input += M) {
      float acc[R][M];
      mms_w4_sums<T, -1, R, M, SPAN>(acc, a, first, input, 0, 1);
      MMS_UNROLL for (int r = 0; r < R; ++r)
        MMS_UNROLL for (int m = 0; m < M; ++m) {
          const float y = mms_wave_sum(acc[r][m]);
          if (lane == r * M + m && first + r < a.outputs && input + m < a.rows)
            mms_w4_write(a, input + m, first + r, T, y);
        }
    }
  }
}
