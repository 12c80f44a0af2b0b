// silu_and_mul, gelu_and_mul, rms_norm, fused_add_rms_norm: ops that see one row, in every float dtype.
//
// Rows at addresses for it are taken by eight numbers at a time, what is left and all others one by one.
#pragma once
#include "numbers.h"

constexpr int MMS_ACT_THREADS = 128;
constexpr int MMS_ACT_PIECE = 1024;    // features of a block
constexpr int MMS_NORM_THREADS = 256;  // one row

MMS_FN float mms_activated(float g, int act) {
  if (act == 0) return g / (1.0f + mms_exp2(-MMS_LOG2E * g));
  if (act == 1) return 0.5f * g * (1.0f + mms_erf(0.7071067811865476f * g));
  return 0.5f * g * (1.0f + mms_tanh(0.7978845608028654f * (g + 0.044715f * g * g * g)));
}

// Block (r, i): features 1024 i and on of row r.
MMS_FN void mms_act_body(const mms_act& a) {
  const int64_t row = mms_block_x(), gates = row * a.stride, ups = gates + a.features, out = row * a.features;
  const int first = mms_block_y() * MMS_ACT_PIECE;
  const int end = a.features - first < MMS_ACT_PIECE ? a.features : first + MMS_ACT_PIECE;
  const bool eight = mms_by_eight(a.gate_up, gates, a.dtype) && mms_by_eight(a.gate_up, ups, a.dtype) &&
                     mms_by_eight(a.out, out, a.dtype);
  const int whole = eight ? first + (end - first) / 8 * 8 : first;
  for (int i = first + mms_tid() * 8; i < whole; i += MMS_ACT_THREADS * 8) {
    float gate[8], up[8];
    mms_load8(gate, a.gate_up, gates + i, a.dtype);
    mms_load8(up, a.gate_up, ups + i, a.dtype);
    MMS_UNROLL for (int j = 0; j < 8; ++j) up[j] *= mms_activated(gate[j], a.act);
    mms_store8(a.out, out + i, a.dtype, up);
  }
  for (int i = whole + mms_tid(); i < end; i += MMS_ACT_THREADS) {
    const float up = mms_load(a.gate_up, ups + i, a.dtype);
    mms_store(a.out, out + i, a.dtype, mms_activated(mms_load(a.gate_up, gates + i, a.dtype), a.act) * up);
  }
}

MMS_FN float mms_weighed(const mms_norm& a, float x, float weight) {
  return (a.late ? mms_rounded(x, a.dtype) : x) * (weight + a.offset);
}

// Block r: row r. What a thread has added up it reads again to scale it.
MMS_FN void mms_norm_body(const mms_norm& a) {
  __shared__ float sums[MMS_NORM_THREADS / 32];
  const int64_t row = mms_block_x(), out = row * a.features, more = row * a.residual_stride;
  const bool add = a.residual != nullptr;
  bool eight = mms_by_eight(a.x, row * a.x_stride, a.dtype) && mms_by_eight(a.out, out, a.dtype) &&
               (!a.weight || mms_by_eight(a.weight, 0, a.weight_dtype));
  if (add) eight = eight && mms_by_eight(a.residual, more, a.dtype) && mms_by_eight(a.total, out, a.dtype);
  const int whole = eight ? a.features / 8 * 8 : 0;
  float sum = 0.0f;
  for (int i = mms_tid() * 8; i < whole; i += MMS_NORM_THREADS * 8) {
    float x[8], y[8];
    mms_load8(x, a.x, row * a.x_stride + i, a.dtype);
    if (add) {
      mms_load8(y, a.residual, more + i, a.dtype);
      MMS_UNROLL for (int j = 0; j < 8; ++j) x[j] = mms_rounded(x[j] + y[j], a.dtype);
      mms_store8(a.total, out + i, a.dtype, x);
    }
    MMS_UNROLL for (int j = 0; j < 8; ++j) sum = mms_fma(x[j], x[j], sum);
  }
  for (int i = whole + mms_tid(); i < a.features; i += MMS_NORM_THREADS) {
    float x = mms_load(a.x, row * a.x_stride + i, a.dtype);
    if (add) {
      x = mms_rounded(x + mms_load(a.residual, more + i, a.dtype), a.dtype);
      mms_store(a.total, out + i, a.dtype, x);
    }
    sum = mms_fma(x, x, sum);
  }
  sum = mms_wave_sum(sum);
  if (mms_tid() % 32 == 0) sums[mms_tid() / 32] = sum;
  mms_sync();
  sum = 0.0f;
  MMS_UNROLL for (int w = 0; w < MMS_NORM_THREADS / 32; ++w) sum += sums[w];
  const float factor = mms_rsqrt(sum / (float)a.features + a.eps);
  const void* from = add ? a.total : a.x;
  const int64_t at = add ? out : row * a.x_stride;
  for (int i = mms_tid() * 8; i < whole; i += MMS_NORM_THREADS * 8) {
    float x[8], weight[8];
    mms_load8(x, from, at + i, a.dtype);
    MMS_UNROLL for (int j = 0; j < 8; ++j) x[j] *= factor;
    if (a.weight) {
      mms_load8(weight, a.weight, i, a.weight_dtype);
      MMS_UNROLL for (int j = 0; j < 8; ++j) x[j] = mms_weighed(a, x[j], weight[j]);
    }
    mms_store8(a.out, out + i, a.dtype, x);
  }
  for (int i = whole + mms_tid(); i < a.features; i += MMS_NORM_THREADS) {
    const float x = mms_load(from, at + i, a.dtype) * factor;
    mms_store(a.out, out + i, a.dtype, a.weight ? mms_weighed(a, x, mms_load(a.weight, i, a.weight_dtype)) : x);
  }
}
