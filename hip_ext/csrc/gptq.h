// A GPTQ checkpoint's tensors into `Packed4`, at load: columns in the order of their groups, nibbles in the kernels'.
#pragma once
#include "numbers.h"

constexpr int MMS_GPTQ_THREADS = 64;

// Zero point of output o in stored group g.
MMS_FN uint32_t mms_gptq_zero(const mms_gptq& a, int o, int g) {
  if (g >= a.stored) return 0;
  if (a.zero_mode == 2 || !a.qzeros) return 8;
  const int64_t from = a.table ? ((const int32_t*)a.table)[g] : g;
  const uint32_t word = ((const uint32_t*)a.qzeros)[from * ((a.outputs + 7) / 8) + o / 8];
  const uint32_t zero = word >> (o % 8 * 4) & 15;
  return a.zero_mode == 1 ? (zero + 1) & 15 : zero;
}

// Code of output o in slot s; an empty slot's is the zero point of its group.
MMS_FN uint32_t mms_gptq_code(const mms_gptq& a, int o, int s) {
  const int column = a.source ? ((const int32_t*)a.source)[s] : s;
  if (column < 0 || column >= a.columns) return mms_gptq_zero(a, o, s / a.group_size);
  return ((const uint32_t*)a.qweight)[(int64_t)(column / 8) * a.outputs + o] >> (column % 8 * 4) & 15;
}

// Block (i, y): outputs 64 i and on. y < padded / 8: word y of each; else the scale and zero of a group.
MMS_FN void mms_gptq_body(const mms_gptq& a) {
  const int o = mms_block_x() * MMS_GPTQ_THREADS + mms_tid(), y = mms_block_y(), words = a.padded / 8;
  if (o >= a.outputs) return;
  if (y >= words) {
    const int g = y - words;
    const int64_t at = (int64_t)o * a.groups_out + g;
    ((uint8_t*)a.zeros_out)[at] = (uint8_t)mms_gptq_zero(a, o, g);
    const int64_t from = g >= a.stored ? 0 : a.table ? ((const int32_t*)a.table)[g] : g;
    if (a.scale_dtype == MMS_F32)
      ((uint32_t*)a.scales_out)[at] = g < a.stored ? ((const uint32_t*)a.scales)[from * a.outputs + o] : 0;
    else
      ((uint16_t*)a.scales_out)[at] = g < a.stored ? ((const uint16_t*)a.scales)[from * a.outputs + o] : 0;
    return;
  }
  uint32_t word = 0;
  MMS_LOOP for (int j = 0; j < 8; ++j) {  // pair j % 4, its half j / 4
    const int slot = y / 16 * 128 + 32 * (j % 4) + 2 * (y % 16) + j / 4;
    word |= mms_gptq_code(a, o, slot) << (4 * j);
  }
  ((uint32_t*)a.words)[(int64_t)o * words + y] = word;
}
