// y = W x for float16 and bfloat16 weights and 1 to 4 input rows; and the columns of x in another order.
#pragma once
#include "numbers.h"

constexpr int MMS_LINEAR_WAVES = 4;
constexpr int MMS_TAKE_THREADS = 256;

template <int M>
constexpr int MMS_LINEAR_ROWS = M == 1 ? 4 : 2;

// Eight numbers of 16 bits as pairs; those from `there` on are 0 and not read. `vector`: 16 bytes may be read at once.
MMS_FN mms_u4 mms_pairs8(const uint16_t* from, int there, bool vector) {
  if (vector && there >= 8) return *(const mms_u4*)from;
  mms_u4 q;
  MMS_UNROLL for (int c = 0; c < 4; ++c) {
    const uint32_t low = 2 * c < there ? from[2 * c] : 0, high = 2 * c + 1 < there ? from[2 * c + 1] : 0;
    q.v[c] = low | high << 16;
  }
  return q;
}

template <int T, int R, int M, bool WHOLE>
MMS_FN void mms_linear_step(float (&acc)[R][M], const uint16_t* const (&weight)[R], const uint16_t* const (&x)[M],
                            int k, int columns, bool vector) {
  mms_u4 w[R], xs[M];
  MMS_UNROLL for (int r = 0; r < R; ++r)
    w[r] = WHOLE ? *(const mms_u4*)(weight[r] + k) : mms_pairs8(weight[r] + k, columns - k, vector);
  MMS_UNROLL for (int m = 0; m < M; ++m)
    xs[m] = WHOLE ? *(const mms_u4*)(x[m] + k) : mms_pairs8(x[m] + k, columns - k, vector);
  MMS_UNROLL for (int r = 0; r < R; ++r)
    MMS_UNROLL for (int m = 0; m < M; ++m)
      MMS_UNROLL for (int c = 0; c < 4; ++c) acc[r][m] = mms_dot2<T>(w[r].v[c], xs[m].v[c], acc[r][m]);
}

// As mms_w4_gemv_body.
template <int T, int M>
MMS_FN void mms_linear_body(const mms_linear& a) {
  constexpr int R = MMS_LINEAR_ROWS<M>;
  __shared__ float shared[MMS_LINEAR_WAVES][R * M];
  const int wave = mms_uniform(mms_tid() / 32), lane = mms_tid() % 32;
  const int part = wave & (a.split - 1), first = (mms_block_x() * MMS_LINEAR_WAVES + wave) / a.split * R;
  const uint16_t *weight[R], *x[M];
  float acc[R][M];
  MMS_UNROLL for (int r = 0; r < R; ++r) {
    const int64_t row = first + r < a.outputs ? first + r : a.outputs - 1;
    weight[r] = (const uint16_t*)a.weight + row * a.weight_stride;
    MMS_UNROLL for (int m = 0; m < M; ++m) acc[r][m] = 0.0f;
  }
  MMS_UNROLL for (int m = 0; m < M; ++m)
    x[m] = (const uint16_t*)a.x + (m < a.rows ? m : a.rows - 1) * a.x_stride;
  const int step = a.split * 256, whole = a.vector ? a.columns - 7 : 0;
  int k = (part * 32 + lane) * 8;
  for (; k < whole; k += step) mms_linear_step<T, R, M, true>(acc, weight, x, k, 0, true);
  for (; k < a.columns; k += step) mms_linear_step<T, R, M, false>(acc, weight, x, k, a.columns, a.vector != 0);
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
  if (a.bias) y += mms_load(a.bias, first + r, a.bias_dtype);
  mms_store(a.out, (int64_t)m * a.outputs + first + r, T, y);
}

// Block (i, r): slots 256 i and on of row r.
MMS_FN void mms_take_body(const mms_take& a) {
  const int slot = mms_block_x() * MMS_TAKE_THREADS + mms_tid();
  const int64_t row = mms_block_y();
  if (slot >= a.padded) return;
  uint16_t bits = 0;
  if (slot < a.slots) {
    const int column = a.order ? ((const int32_t*)a.order)[slot] : slot;
    if (column >= 0 && column < a.columns) bits = ((const uint16_t*)a.x)[row * a.x_stride + column];
  }
  ((uint16_t*)a.out)[row * a.padded + slot] = bits;
}
