// The chosen experts' products for one token: each a GEMV over its own slab of one stacked 4-bit weight.
//
// Which expert a row takes is read on the card: a captured graph follows the router.
#pragma once
#include "w4.h"

MMS_FN int64_t mms_expert_of(const mms_experts& e, int row) {
  return e.wide ? ((const int64_t*)e.experts)[row] : ((const int32_t*)e.experts)[row];
}

// Block (i, r): as mms_w4_gemv_body's block i, for row r.
template <int T, int SPAN>
MMS_FN void mms_experts_body(const mms_experts& e) {
  const int r = mms_block_y();
  const int64_t first = mms_expert_of(e, r) * e.outputs;  // rows of the experts before it
  mms_w4 a;
  a.x = (const uint16_t*)e.x + r * e.x_stride;
  a.words = (const uint32_t*)e.words + first * (e.padded / 8);
  a.scales = (const uint8_t*)e.scales + first * e.groups * mms_bytes(e.scale_dtype);
  a.zeros = (const uint8_t*)e.zeros + first * e.groups;
  a.bias = e.bias ? (const uint8_t*)e.bias + first * mms_bytes(e.bias_dtype) : nullptr;
  a.out = (uint16_t*)e.out + (int64_t)r * e.outputs;
  a.x_stride = 0;
  a.rows = 1, a.outputs = e.outputs, a.padded = e.padded, a.groups = e.groups;
  a.scale_dtype = e.scale_dtype, a.bias_dtype = e.bias_dtype, a.split = e.split, a.magic = e.magic;
  mms_w4_gemv_body<T, -1, 1, SPAN>(a);
}
