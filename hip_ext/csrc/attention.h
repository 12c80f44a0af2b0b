// One new token's attention over a ring of slots: many blocks split the slots, a second kernel joins what they found.
//
// `lanes` lanes share a slot, eight channels each (N times eight for wide heads); every such team keeps a softmax of
// its own over the slots that it sees, for H query heads of one key head. How many slots are filled is read on the
// card, and blocks past them end at once: a captured graph stays right as the chat grows. No atomics.
#pragma once
#include "kv.h"

constexpr int MMS_ATTENTION_THREADS = 128;
constexpr int MMS_ATTENTION_SHARE = 16;  // slots of a split come in multiples of this
constexpr int MMS_JOIN_THREADS = 128;
constexpr float MMS_LOWEST = -1.0e30f;

struct mms_share {
  int filled, low, high;
};

MMS_FN mms_share mms_share_of(const mms_attention& a, int b, int split) {
  const int length = ((const int32_t*)a.length)[b * a.length_stride];
  mms_share s;
  s.filled = length < a.slots ? length : a.slots;
  const int unit = a.splits * MMS_ATTENTION_SHARE;
  const int each = s.filled <= 0 ? 0 : (s.filled + unit - 1) / unit * MMS_ATTENTION_SHARE;
  s.low = split * each;
  s.high = s.low + each < s.filled ? s.low + each : s.filled;
  return s;
}

// The three parts of scratch: sums [rows, splits, v_channels], then highest scores and totals [rows, splits].
MMS_FN float* mms_highest(const mms_attention& a) {
  return (float*)a.scratch + (int64_t)a.batch * a.heads * a.group * a.splits * a.v_channels;
}
MMS_FN float* mms_totals(const mms_attention& a) {
  return mms_highest(a) + (int64_t)a.batch * a.heads * a.group * a.splits;
}

// Queries of H heads in float32, scaled, so that a score is a sum of products: q[h][i] = 0 past the last channel.
template <int K, int H, int WIDTH>
MMS_FN void mms_queries(float (&q)[H][WIDTH], const mms_attention& a, int b, int kh, int chunk) {
  const float unit = (K == MMS_E4M3 ? MMS_E4M3_UNIT : 1.0f) * a.scale * (a.soft_cap != 0.0f ? 1.0f : MMS_LOG2E);
  MMS_LOOP for (int i = mms_tid(); i < H * WIDTH; i += MMS_ATTENTION_THREADS) {
    const int c = i % WIDTH, in_group = chunk * H + i / WIDTH;
    float x = 0.0f;
    if (c < a.k_channels && in_group < a.group) {
      x = mms_load(a.q, b * a.q_batch + (int64_t)(kh * a.group + in_group) * a.q_head + c, a.dtype) * unit;
      if (a.k_scale) x *= mms_load(a.k_scale, (int64_t)kh * a.k_channels + c, a.k_scale_dtype);
    }
    q[i / WIDTH][c] = x;
  }
}

// Block (i, s): H query heads, split s.
template <int K, int H, int N>
MMS_FN void mms_attention_body(const mms_attention& a) {
  constexpr int WIDTH = 256 * N, SLOTS = 2, MOST = MMS_ATTENTION_THREADS;
  __shared__ float shared[H][MOST * 8 * N], tops[H][MOST], totals[H][MOST];
  __shared__ float queries[H][WIDTH];
  const int chunks = (a.group + H - 1) / H, chunk = mms_block_x() % chunks;
  const int kh = mms_block_x() / chunks % a.heads, b = mms_block_x() / chunks / a.heads;
  const mms_share share = mms_share_of(a, b, mms_block_y());
  if (share.low >= share.high) return;
  mms_queries<K, H, WIDTH>(queries, a, b, kh, chunk);
  mms_sync();
  const int team = mms_tid() / a.lanes, teams = MOST / a.lanes, channel = mms_tid() % a.lanes * 8, step = a.lanes * 8;
  float q[H][N][8], acc[H][N][8], top[H], total[H];
  MMS_UNROLL for (int h = 0; h < H; ++h) {
    top[h] = MMS_LOWEST;
    total[h] = 0.0f;
    MMS_UNROLL for (int n = 0; n < N; ++n)
      MMS_UNROLL for (int j = 0; j < 8; ++j) {
        q[h][n][j] = queries[h][channel + n * step + j];
        acc[h][n][j] = 0.0f;
      }
  }
  const int64_t keys = b * a.keys_batch + kh * a.keys_head, values = b * a.values_batch + kh * a.values_head;
  MMS_LOOP for (int base = share.low; base < share.high; base += teams * SLOTS) {
    float k[SLOTS][N][8], v[SLOTS][N][8], scores[SLOTS][H], v_scale[SLOTS];
    bool seen[SLOTS];
    MMS_UNROLL for (int u = 0; u < SLOTS; ++u) {
      const int t = base + u * teams + team;
      seen[u] = t < share.high;
      if (a.mask && seen[u]) seen[u] = ((const uint8_t*)a.mask)[b * a.mask_batch + t] != 0;
      v_scale[u] = 1.0f;
      if (K == MMS_I8 && seen[u])
        v_scale[u] = mms_load(a.v_scale, b * a.scale_batch + kh * a.scale_head + t * a.scale_slot, a.v_scale_dtype);
      MMS_UNROLL for (int n = 0; n < N; ++n) {
        const int c = channel + n * step;
        mms_cached8<K>(k[u][n], a.keys, keys + t * a.keys_slot + c, seen[u] && c < a.k_channels);
        mms_cached8<K>(v[u][n], a.values, values + t * a.values_slot + c, seen[u] && c < a.v_channels);
      }
      MMS_UNROLL for (int h = 0; h < H; ++h) {
        scores[u][h] = 0.0f;
        MMS_UNROLL for (int n = 0; n < N; ++n)
          MMS_UNROLL for (int j = 0; j < 8; ++j) scores[u][h] = mms_fma(q[h][n][j], k[u][n][j], scores[u][h]);
      }
    }
    MMS_UNROLL for (int m = 16; m; m >>= 1)
      if (m < a.lanes) {
        MMS_UNROLL for (int i = 0; i < SLOTS * H; ++i) scores[i / H][i % H] += mms_xor(scores[i / H][i % H], m);
      }
    if (a.soft_cap != 0.0f) {
      MMS_UNROLL for (int i = 0; i < SLOTS * H; ++i)
        scores[i / H][i % H] = mms_tanh(scores[i / H][i % H] / a.soft_cap) * (a.soft_cap * MMS_LOG2E);
    }
    MMS_UNROLL for (int h = 0; h < H; ++h)
      MMS_UNROLL for (int u = 0; u < SLOTS; ++u) {
        const float score = seen[u] ? scores[u][h] : -__builtin_inff(), higher = mms_max(top[h], score);
        const float shrunk = mms_exp2(top[h] - higher), weight = mms_exp2(score - higher);
        top[h] = higher;
        total[h] = mms_fma(total[h], shrunk, weight);
        MMS_UNROLL for (int n = 0; n < N; ++n)
          MMS_UNROLL for (int j = 0; j < 8; ++j)
            acc[h][n][j] = mms_fma(acc[h][n][j], shrunk, weight * v_scale[u] * v[u][n][j]);
      }
  }
  MMS_UNROLL for (int h = 0; h < H; ++h) {
    MMS_UNROLL for (int n = 0; n < N; ++n)
      MMS_UNROLL for (int j = 0; j < 8; ++j) shared[h][team * step * N + channel + n * step + j] = acc[h][n][j];
    tops[h][team] = top[h];
    totals[h][team] = total[h];
  }
  mms_sync();
  float factor = K == MMS_E4M3 ? MMS_E4M3_UNIT : 1.0f;
  if (K != MMS_I8 && a.v_scale) factor *= mms_load(a.v_scale, kh * a.scale_head, a.v_scale_dtype);
  MMS_LOOP for (int h = 0; h < H && chunk * H + h < a.group; ++h) {
    const int64_t row = ((int64_t)(b * a.heads + kh) * a.group + chunk * H + h) * a.splits + mms_block_y();
    float highest = MMS_LOWEST, sum = 0.0f;
    MMS_LOOP for (int t = 0; t < teams; ++t) highest = mms_max(highest, tops[h][t]);
    MMS_LOOP for (int t = 0; t < teams; ++t) sum += totals[h][t] * mms_exp2(tops[h][t] - highest);
    MMS_LOOP for (int i = mms_tid(); i < a.v_channels; i += MMS_ATTENTION_THREADS) {
      float y = 0.0f;
      MMS_LOOP for (int t = 0; t < teams; ++t) y += shared[h][t * step * N + i] * mms_exp2(tops[h][t] - highest);
      ((float*)a.scratch)[row * a.v_channels + i] = y * factor;
    }
    if (mms_tid() == 0) mms_highest(a)[row] = highest, mms_totals(a)[row] = sum;
  }
}

// Block i: query head i of all; the splits' sums, each lowered to the highest score.
MMS_FN void mms_join_body(const mms_attention& a) {
  const int64_t row = mms_block_x();
  const int query_heads = a.heads * a.group, b = (int)(row / query_heads);
  const float *highest = mms_highest(a) + row * a.splits, *totals = mms_totals(a) + row * a.splits;
  float top = MMS_LOWEST, total = 0.0f, sink = 0.0f;
  if (a.sinks) top = sink = mms_load(a.sinks, row % query_heads, a.sinks_dtype) * MMS_LOG2E;
  int used = 0;
  for (; used < a.splits; ++used) {
    const mms_share share = mms_share_of(a, b, used);
    if (share.low >= share.high) break;
    top = mms_max(top, highest[used]);
  }
  for (int s = 0; s < used; ++s) total += totals[s] * mms_exp2(highest[s] - top);
  if (a.sinks) total += mms_exp2(sink - top);
  for (int i = mms_tid(); i < a.v_channels; i += MMS_JOIN_THREADS) {
    float y = 0.0f;
    for (int s = 0; s < used; ++s)
      y += ((const float*)a.scratch)[(row * a.splits + s) * a.v_channels + i] * mms_exp2(highest[s] - top);
    mms_store(a.out, row * a.v_channels + i, a.dtype, total == 0.0f ? 0.0f : y / total);
  }
}
