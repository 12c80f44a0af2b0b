// Numbers of every dtype as float32, one or eight at a time; exponentials; sums over a wave. Knows no op.
#pragma once
#include "gpu.h"

constexpr float MMS_LOG2E = 1.4426950408889634f;
constexpr float MMS_LARGEST = 3.4028234663852886e38f;

MMS_FN float mms_from_bfloat(uint16_t bits) { return mms_as_float((uint32_t)bits << 16); }

MMS_FN uint16_t mms_to_bfloat(float x) {
  const uint32_t bits = mms_as_bits(x);
  if (x != x) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Bytes of a number.
MMS_FN int mms_bytes(int dtype) { return dtype == MMS_F32 ? 4 : dtype <= MMS_BF16 ? 2 : 1; }

MMS_FN float mms_load(const void* from, int64_t i, int dtype) {
  if (dtype == MMS_F32) return ((const float*)from)[i];
  const uint16_t bits = ((const uint16_t*)from)[i];
  return dtype == MMS_F16 ? mms_from_half(bits) : mms_from_bfloat(bits);
}

MMS_FN void mms_store(void* to, int64_t i, int dtype, float x) {
  if (dtype == MMS_F32)
    ((float*)to)[i] = x;
  else
    ((uint16_t*)to)[i] = dtype == MMS_F16 ? mms_to_half(x) : mms_to_bfloat(x);
}

// x as it is after a store and a load.
MMS_FN float mms_rounded(float x, int dtype) {
  if (dtype == MMS_F32) return x;
  return dtype == MMS_F16 ? mms_from_half(mms_to_half(x)) : mms_from_bfloat(mms_to_bfloat(x));
}

MMS_FN float mms_low_bfloat(uint32_t pair) { return mms_as_float(pair << 16); }
MMS_FN float mms_high_bfloat(uint32_t pair) { return mms_as_float(pair & 0xFFFF0000u); }

// Whether eight numbers may be read or written at once from p on, and from every eighth number after it.
MMS_FN bool mms_by_eight(const void* p, int64_t at, int dtype) {
  return (((uint64_t)p + (uint64_t)at * (uint64_t)mms_bytes(dtype)) & 15) == 0;
}

// Eight numbers from i on.
MMS_FN void mms_load8(float (&x)[8], const void* from, int64_t i, int dtype) {
  if (dtype == MMS_F32) {
    MMS_UNROLL for (int h = 0; h < 2; ++h) {
      const mms_u4 q = *(const mms_u4*)((const float*)from + i + 4 * h);
      MMS_UNROLL for (int j = 0; j < 4; ++j) x[4 * h + j] = mms_as_float(q.v[j]);
    }
  } else {
    const mms_u4 q = *(const mms_u4*)((const uint16_t*)from + i);
    MMS_UNROLL for (int j = 0; j < 4; ++j) {
      x[2 * j] = dtype == MMS_F16 ? mms_low_half(q.v[j]) : mms_low_bfloat(q.v[j]);
      x[2 * j + 1] = dtype == MMS_F16 ? mms_high_half(q.v[j]) : mms_high_bfloat(q.v[j]);
    }
  }
}

MMS_FN void mms_store8(void* to, int64_t i, int dtype, const float (&x)[8]) {
  if (dtype == MMS_F32) {
    MMS_UNROLL for (int h = 0; h < 2; ++h) {
      mms_u4 q;
      MMS_UNROLL for (int j = 0; j < 4; ++j) q.v[j] = mms_as_bits(x[4 * h + j]);
      *(mms_u4*)((float*)to + i + 4 * h) = q;
    }
  } else {
    mms_u4 q;
    MMS_UNROLL for (int j = 0; j < 4; ++j) {
      const uint32_t low = dtype == MMS_F16 ? mms_to_half(x[2 * j]) : mms_to_bfloat(x[2 * j]);
      const uint32_t high = dtype == MMS_F16 ? mms_to_half(x[2 * j + 1]) : mms_to_bfloat(x[2 * j + 1]);
      q.v[j] = low | high << 16;
    }
    *(mms_u4*)((uint16_t*)to + i) = q;
  }
}

MMS_FN float mms_wave_sum(float x) {
  MMS_UNROLL for (int m = 16; m; m >>= 1) x += mms_xor(x, m);
  return x;
}

MMS_FN float mms_wave_max(float x) {
  MMS_UNROLL for (int m = 16; m; m >>= 1) x = mms_max(x, mms_xor(x, m));
  return x;
}

MMS_FN float mms_tanh(float x) { return 1.0f - 2.0f / (mms_exp2(x * (2.0f * MMS_LOG2E)) + 1.0f); }

// The error function within 1.5e-7 (Abramowitz and Stegun 7.1.26).
MMS_FN float mms_erf(float x) {
  const float size = mms_abs(x), t = 1.0f / mms_fma(0.3275911f, size, 1.0f);
  float sum = mms_fma(1.061405429f, t, -1.453152027f);
  sum = mms_fma(sum, t, 1.421413741f);
  sum = mms_fma(sum, t, -0.284496736f);
  sum = mms_fma(sum, t, 0.254829592f);
  const float y = 1.0f - sum * t * mms_exp2(-MMS_LOG2E * size * size);
  return x < 0.0f ? -y : y;
}

// Two products of a pair of T (MMS_F16, MMS_BF16), summed in float32.
template <int T>
MMS_FN float mms_dot2(uint32_t a, uint32_t b, float sum) {
  if constexpr (T == MMS_F16) {
#if defined(MMS_DOT2)
    return mms_dot2_half(a, b, sum);
#else
    return mms_fma(mms_high_half(a), mms_high_half(b), mms_fma(mms_low_half(a), mms_low_half(b), sum));
#endif
  } else {
#if defined(MMS_DOT2_BF16)
    return mms_dot2_bfloat(a, b, sum);
#else
    return mms_fma(mms_high_bfloat(a), mms_high_bfloat(b), mms_fma(mms_low_bfloat(a), mms_low_bfloat(b), sum));
#endif
  }
}
