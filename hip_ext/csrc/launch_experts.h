// The launchers of the chosen experts' products; as launch.h.
#pragma once
#include "launch.h"

// One expert's share as a product of its own.
static mms_w4 mms_expert_as_w4(const mms_experts& e) {
  return {e.x, e.words, e.scales, e.zeros, nullptr, e.bias, e.out, e.scratch, e.x_stride, e.x_stride ? e.rows : 1,
          e.outputs, e.columns, e.columns, e.padded, e.group_size, e.groups, e.dtype, e.scale_dtype, e.bias_dtype,
          1, 0};
}

static int mms_experts_check(const mms_experts* given) {
  MMS_REQUIRE(given, MMS_NULL);
  const mms_experts& e = *given;
  MMS_REQUIRE(e.rows >= 0 && e.rows <= MMS_MOST_Y, MMS_SIZE);
  mms_w4 a = mms_expert_as_w4(e);
  if (!e.rows) a.rows = 0;
  const int wrong = mms_w4_check(&a);
  MMS_REQUIRE(wrong == MMS_OK, wrong);
  if (!e.rows || !e.outputs) return MMS_OK;
  MMS_REQUIRE(e.experts, MMS_NULL);
  MMS_REQUIRE(mms_aligned(e.experts, e.wide ? 8 : 4), MMS_ALIGN);
  return MMS_OK;
}

extern "C" {

int64_t mms_experts_scratch(const mms_experts* given) {
  if (mms_experts_check(given) != MMS_OK) return -1;
  const mms_w4 a = mms_expert_as_w4(*given);
  return given->rows && given->outputs && mms_w4_anew(a) ? (int64_t)a.rows * a.padded * 2 : 0;
}

int mms_experts_gemv(const mms_experts* given, void* stream) {
  static void (*const kernels[2][2])(mms_experts) = {{mms_k_experts_f16_g16, mms_k_experts_f16_g128},
                                                     {mms_k_experts_bf16_g16, mms_k_experts_bf16_g128}};
  const int wrong = mms_experts_check(given);
  MMS_REQUIRE(wrong == MMS_OK, wrong);
  mms_experts e = *given;
  if (!e.rows || !e.outputs) return MMS_OK;
  mms_w4 a = mms_expert_as_w4(e);
  const int failed = mms_w4_prepare(a, stream);
  MMS_REQUIRE(failed == MMS_OK, failed);
  e.x = a.x, e.magic = a.magic;
  if (e.x_stride) e.x_stride = a.x_stride;
  const bool whole = a.group_size >= a.padded || a.group_size % 128 == 0;
  const int64_t waves = mms_ceil(e.outputs, MMS_W4_ROWS<1>);
  e.split = mms_split_of(waves * e.rows, e.padded, 1024);
  const uint32_t x = (uint32_t)mms_ceil(waves * e.split, MMS_W4_WAVES);
  return mms_status_of(MMS_START(kernels[e.dtype][whole], x, (uint32_t)e.rows, 128, e, stream));
}

}  // extern "C"
