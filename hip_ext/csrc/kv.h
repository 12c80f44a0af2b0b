// New keys and values into a ring of slots, quantised on the way by the cache's kind; what a cache's codes stand for.
//
// 8-bit floats are integer arithmetic, the same on every card. e4m3 comes 256 times too small (MMS_E4M3_UNIT): its bits
// as those of a float16, exactly, for every code that is a number.
#pragma once
#include "numbers.h"

constexpr int MMS_KV_WAVES = 4;
constexpr float MMS_E4M3_UNIT = 256.0f;

MMS_FN float mms_finite(float x) {  // NaN becomes 0, infinities the largest numbers
  return x == x ? mms_min(mms_max(x, -MMS_LARGEST), MMS_LARGEST) : 0.0f;
}

// The code of a finite x: nearest even, saturating.
MMS_FN uint32_t mms_encoded(float x, int kind) {
  if (kind == MMS_I8) return (uint32_t)(int)mms_rint(mms_min(mms_max(x, -127.0f), 127.0f)) & 0xFF;
  const bool wide = kind == MMS_E5M2;
  const uint32_t sign = mms_as_bits(x) >> 24 & 0x80;
  const float size = mms_min(mms_abs(x), wide ? 57344.0f : 448.0f);
  const uint32_t bits = mms_as_bits(size);
  if (wide) {  // below 2^-14: steps of 2^-16, rounded by the sum; else bias 127 to bias 15
    if (size < 0.00006103515625f) return sign | (mms_as_bits(size + 128.0f) & 0x7F);
    return sign | (((bits + 0xFFFFF + ((bits >> 21) & 1)) >> 21) - 448);
  }
  if (size < 0.015625f) return sign | (mms_as_bits(size + 16384.0f) & 0x7F);
  return sign | (((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960);
}

MMS_FN void mms_kv_put(void* cache, int64_t at, int kind, float x) {
  if (kind <= MMS_F32)
    mms_store(cache, at, kind, x);
  else
    ((uint8_t*)cache)[at] = (uint8_t)mms_encoded(mms_finite(x), kind);
}

// Wave w: token w % kept of head w / kept. Of more tokens than slots the last are stored.
MMS_FN void mms_kv_body(const mms_kv& a) {
  const int kept = a.tokens < a.slots ? a.tokens : a.slots, lane = mms_tid() % 32;
  const int64_t item = (int64_t)mms_block_x() * MMS_KV_WAVES + mms_tid() / 32;
  if (item >= (int64_t)a.batch * a.heads * kept) return;
  const int t = a.tokens - kept + (int)(item % kept), h = (int)(item / kept % a.heads);
  const int64_t b = item / kept / a.heads;
  const int64_t place = ((int64_t)((const int32_t*)a.start)[b * a.start_stride] + t) % a.slots;
  const int64_t slot = place < 0 ? place + a.slots : place;
  const int64_t k_at = b * a.k_batch + h * a.k_head + t * a.k_token;
  const int64_t keys_at = b * a.keys_batch + h * a.keys_head + slot * a.keys_slot;
  for (int i = lane; i < a.k_channels; i += 32) {
    float x = mms_load(a.k, k_at + i, a.k_dtype);
    if (a.k_offset) x -= mms_load(a.k_offset, (int64_t)h * a.k_channels + i, a.offset_dtype);
    if (a.k_scale) x = x / mms_load(a.k_scale, (int64_t)h * a.k_channels + i, a.k_scale_dtype);
    mms_kv_put(a.keys, keys_at + i, a.cache_dtype, x);
  }
  const int64_t v_at = b * a.v_batch + h * a.v_head + t * a.v_token;
  const int64_t values_at = b * a.values_batch + h * a.values_head + slot * a.values_slot;
  float scale = 1.0f;
  if (a.cache_dtype == MMS_I8) {
    float largest = 0.0f;
    for (int i = lane; i < a.v_channels; i += 32)
      largest = mms_max(largest, mms_abs(mms_finite(mms_load(a.v, v_at + i, a.v_dtype))));
    largest = mms_wave_max(largest) / 127.0f;
    if (a.v_scale_dtype == MMS_F16) largest = mms_min(largest, 65504.0f);
    scale = mms_rounded(largest, a.v_scale_dtype);
    const int64_t at = b * a.scale_batch + h * a.scale_head + slot * a.scale_slot;
    if (lane == 0) mms_store(a.v_scale, at, a.v_scale_dtype, scale);
  } else if (a.v_scale) {
    scale = mms_load(a.v_scale, h * a.scale_head, a.v_scale_dtype);
  }
  const bool scaled = a.v_scale != nullptr;
  for (int i = lane; i < a.v_channels; i += 32) {
    const float x = mms_load(a.v, v_at + i, a.v_dtype);
    mms_kv_put(a.values, values_at + i, a.cache_dtype, scaled ? x / scale : x);
  }
}

// What codes of kind K stand for, e4m3 / MMS_E4M3_UNIT.
template <int K>
MMS_FN void mms_decoded4(float* x, uint32_t codes) {
  if constexpr (K == MMS_I8) {
    MMS_UNROLL for (int j = 0; j < 4; ++j) x[j] = (float)(int8_t)(codes >> (8 * j));
  } else {
    MMS_UNROLL for (int odd = 0; odd < 2; ++odd) {
      const uint32_t two = (odd ? codes >> 8 : codes) & 0x00FF00FFu;
      const uint32_t halves = K == MMS_E5M2 ? two << 8 : (two & 0x00800080u) << 8 | (two & 0x007F007Fu) << 7;
      x[odd] = mms_low_half(halves);
      x[odd + 2] = mms_high_half(halves);
    }
  }
}

// Eight numbers of a cache from i on, 0 where they are not `there`.
template <int K>
MMS_FN void mms_cached8(float (&x)[8], const void* cache, int64_t i, bool there) {
  if constexpr (K <= MMS_BF16) {
    mms_u4 q = {{0, 0, 0, 0}};
    if (there) q = *(const mms_u4*)((const uint16_t*)cache + i);
    MMS_UNROLL for (int j = 0; j < 4; ++j) {
      x[2 * j] = K == MMS_F16 ? mms_low_half(q.v[j]) : mms_low_bfloat(q.v[j]);
      x[2 * j + 1] = K == MMS_F16 ? mms_high_half(q.v[j]) : mms_high_bfloat(q.v[j]);
    }
  } else {
    mms_u2 q = {{0, 0}};
    if (there) q = *(const mms_u2*)((const uint8_t*)cache + i);
    mms_decoded4<K>(x, q.v[0]);
    mms_decoded4<K>(x + 4, q.v[1]);
  }
}
