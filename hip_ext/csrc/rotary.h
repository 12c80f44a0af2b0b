// rotary: the first `turned` channels of queries and keys turn, half against half; sections take their axes in turn.
#pragma once
#include "numbers.h"

constexpr int MMS_ROTARY_WAVES = 4;

// Wave w: head w % (q_heads + k_heads) of token w / (q_heads + k_heads). Outputs may be the inputs.
MMS_FN void mms_rotary_body(const mms_rotary& a) {
  const int heads = a.q_heads + a.k_heads;
  const int64_t item = (int64_t)mms_block_x() * MMS_ROTARY_WAVES + mms_tid() / 32;
  if (item >= (int64_t)a.batch * a.tokens * heads) return;
  const int lane = mms_tid() % 32, half = a.turned / 2;
  int head = (int)(item % heads);
  const int64_t t = item / heads % a.tokens, b = item / heads / a.tokens;
  const bool is_q = head < a.q_heads;
  if (!is_q) head -= a.q_heads;
  const void* from = is_q ? a.q : a.k;
  void* to = is_q ? a.q_out : a.k_out;
  const int64_t at = is_q ? b * a.q_batch + head * a.q_head + t * a.q_token
                          : b * a.k_batch + head * a.k_head + t * a.k_token;
  const int64_t out = ((b * (is_q ? a.q_heads : a.k_heads) + head) * a.tokens + t) * a.channels;
  const int64_t angles = b * a.angle_batch + t * a.angle_token;
  for (int i = lane; i < half; i += 32) {
    int run = 0;
    for (int end = 0; run < a.sections - 1; ++run) {
      end += a.section[run];
      if (i < end) break;
    }
    const int64_t angle = angles + (a.sections ? run % a.axes * a.axis : 0) + i;
    const float first = mms_load(from, at + i, a.dtype), second = mms_load(from, at + half + i, a.dtype);
    const float cos_0 = mms_load(a.cos, angle, a.angle_dtype), cos_1 = mms_load(a.cos, angle + half, a.angle_dtype);
    const float sin_0 = mms_load(a.sin, angle, a.angle_dtype), sin_1 = mms_load(a.sin, angle + half, a.angle_dtype);
    mms_store(to, out + i, a.dtype, first * cos_0 - second * sin_0);
    mms_store(to, out + half + i, a.dtype, second * cos_1 + first * sin_1);
  }
  for (int i = a.turned + lane; i < a.channels; i += 32)
    mms_store(to, out + i, a.dtype, mms_load(from, at + i, a.dtype));
}
