// The launchers of mmswap_hip.h: each checks its arguments and starts its kernels. Nothing here touches the card's
// memory.
#pragma once
#include "check.h"
#include "kernels.h"

static int mms_act_start(const mms_act* given, int least, int most, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_act a = *given;
  if (most == 0) a.act = 0;
  MMS_REQUIRE(a.rows >= 0 && a.features >= 0 && a.features <= 0x3FFFFFFF, MMS_SIZE);
  MMS_REQUIRE(mms_is_float(a.dtype), MMS_DTYPE);
  MMS_REQUIRE(a.act >= least && a.act <= most, MMS_VALUE);
  if (!a.rows || !a.features) return MMS_OK;
  MMS_REQUIRE(a.gate_up && a.out, MMS_NULL);
  MMS_REQUIRE(mms_placed(a.gate_up, a.dtype) && mms_placed(a.out, a.dtype), MMS_ALIGN);
  const int64_t pieces = mms_ceil(a.features, MMS_ACT_PIECE);
  MMS_REQUIRE(a.rows <= MMS_MOST_X && pieces <= MMS_MOST_Y, MMS_SIZE);
  return mms_status_of(MMS_START(mms_k_act, a.rows, (uint32_t)pieces, MMS_ACT_THREADS, a, stream));
}

static int mms_norm_start(const mms_norm* given, bool add, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_norm a = *given;
  if (!add) a.residual = nullptr, a.total = nullptr;
  MMS_REQUIRE(a.rows >= 0 && a.features >= 0 && a.rows <= MMS_MOST_X && a.features <= 0x3FFFFFFF, MMS_SIZE);
  MMS_REQUIRE(mms_is_float(a.dtype) && mms_optional(a.weight, a.weight_dtype), MMS_DTYPE);
  if (!a.rows || !a.features) return MMS_OK;
  MMS_REQUIRE(a.x && a.out && (!add || (a.residual && a.total)), MMS_NULL);
  MMS_REQUIRE(mms_placed(a.x, a.dtype) && mms_placed(a.residual, a.dtype) && mms_placed(a.total, a.dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.out, a.dtype) && mms_placed(a.weight, a.weight_dtype), MMS_ALIGN);
  return mms_status_of(MMS_START(mms_k_norm, a.rows, 1, MMS_NORM_THREADS, a, stream));
}

static int mms_w4_check(const mms_w4* given) {
  MMS_REQUIRE(given, MMS_NULL);
  const mms_w4& a = *given;
  MMS_REQUIRE(a.rows >= 0 && a.outputs >= 0 && a.columns > 0 && a.slots > 0, MMS_SIZE);
  MMS_REQUIRE(a.padded <= 1 << 20 && a.padded == mms_ceil(a.slots, MMS_W4_BLOCK) * MMS_W4_BLOCK, MMS_SIZE);
  MMS_REQUIRE(a.order || a.slots == a.columns, MMS_SIZE);
  MMS_REQUIRE(a.group_size > 0 && (a.group_size % 16 == 0 || a.group_size >= a.padded), MMS_VALUE);
  MMS_REQUIRE(a.groups == mms_ceil(a.padded, a.group_size), MMS_SIZE);
  MMS_REQUIRE(mms_is_half(a.dtype) && mms_is_float(a.scale_dtype) && mms_optional(a.bias, a.bias_dtype), MMS_DTYPE);
  if (!a.rows || !a.outputs) return MMS_OK;
  MMS_REQUIRE(a.x && a.words && a.scales && a.zeros && a.out, MMS_NULL);
  MMS_REQUIRE(mms_aligned(a.words, 16) && mms_aligned(a.x, 2) && mms_aligned(a.out, 2), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.scales, a.scale_dtype) && mms_placed(a.bias, a.bias_dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_aligned(a.order, 4), MMS_ALIGN);
  return MMS_OK;
}

// x has to be laid anew: columns in another order, no whole blocks of them, or not where 16 bytes can be read at once.
static bool mms_w4_anew(const mms_w4& a) {
  return a.order || a.columns != a.padded || !mms_aligned(a.x, 16) || (a.rows > 1 && a.x_stride % 8);
}

// Checks, lays x where it must, and sets what the kernels ask for.
static int mms_w4_prepare(mms_w4& a, void* stream) {
  const int group = a.group_size < a.padded ? a.group_size : a.padded;
  a.magic = group == 16 ? 0 : (uint32_t)((1ull << 32) / (group / 16)) + 1;
  a.split = 1;
  if (!mms_w4_anew(a)) return MMS_OK;
  MMS_REQUIRE(a.scratch, MMS_NULL);
  MMS_REQUIRE(mms_aligned(a.scratch, 16), MMS_ALIGN);
  mms_take t = {a.x, a.order, a.scratch, a.x_stride, a.rows, a.columns, a.slots, a.padded};
  a.x = a.scratch;
  a.x_stride = a.columns = a.padded;
  return mms_take_columns(&t, stream);
}

// Waves that share the columns of a row group: more while the card is not full and each has a step of its own.
static int mms_split_of(int64_t waves, int columns, int step) {
  int split = 1;
  while (split < 4 && waves * split < 2048 && columns > step * split) split *= 2;
  return split;
}

typedef void (*mms_w4_kernel)(mms_w4);
#define MMS_OF_ROWS(T, G, G4) \
  {mms_k_w4_gemv_##T##_m1_g##G##_s0, mms_k_w4_gemv_##T##_m1_g##G##_s1, mms_k_w4_gemv_##T##_m1_g##G##_s2, \
   mms_k_w4_gemv_##T##_m4_g##G4##_s}
#define MMS_OF_GROUPS(T) {MMS_OF_ROWS(T, 16, 16), MMS_OF_ROWS(T, 64, 16), MMS_OF_ROWS(T, 128, 128)}

typedef void (*mms_linear_kernel)(mms_linear);
typedef void (*mms_attention_kernel)(mms_attention);
#define MMS_OF_HEADS(K) {mms_k_attention_##K##_h1, mms_k_attention_##K##_h4, mms_k_attention_##K##_wide}

extern "C" {

int mms_abi(void) { return MMS_ABI; }

const char* mms_status_text(int status) {
  switch (status) {
    case MMS_OK: return "done";
    case MMS_NULL: return "a tensor that is needed is missing";
    case MMS_SIZE: return "sizes are out of range or do not belong together";
    case MMS_DTYPE: return "a dtype that this kernel does not take";
    case MMS_ALIGN: return "a tensor does not begin at an address that this kernel takes";
    case MMS_VALUE: return "a number that this kernel does not take";
    default: return status > MMS_RUNTIME ? "the runtime refused the launch" : "an unknown status";
  }
}

int64_t mms_struct_size(int which) {
  static const int64_t sizes[] = {sizeof(mms_act),    sizeof(mms_norm), sizeof(mms_rotary),
                                  sizeof(mms_w4),     sizeof(mms_linear), sizeof(mms_take),
                                  sizeof(mms_gptq),   sizeof(mms_kv),   sizeof(mms_attention),
                                  sizeof(mms_experts)};
  return which >= 0 && which < (int)(sizeof(sizes) / sizeof(sizes[0])) ? sizes[which] : -1;
}

int mms_silu_and_mul(const mms_act* given, void* stream) { return mms_act_start(given, 0, 0, stream); }
int mms_gelu_and_mul(const mms_act* given, void* stream) { return mms_act_start(given, 1, 2, stream); }
int mms_rms_norm(const mms_norm* given, void* stream) { return mms_norm_start(given, false, stream); }
int mms_fused_add_rms_norm(const mms_norm* given, void* stream) { return mms_norm_start(given, true, stream); }

int mms_rotary_embedding(const mms_rotary* given, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_rotary a = *given;
  MMS_REQUIRE(a.batch >= 0 && a.q_heads >= 0 && a.k_heads >= 0 && a.tokens >= 0 && a.channels >= 0, MMS_SIZE);
  MMS_REQUIRE(a.turned >= 0 && a.turned <= a.channels && a.turned % 2 == 0, MMS_SIZE);
  MMS_REQUIRE(a.sections >= 0 && a.sections <= 8, MMS_VALUE);
  int64_t sum = 0;
  for (int i = 0; i < a.sections; ++i) {
    MMS_REQUIRE(a.section[i] >= 0, MMS_VALUE);
    sum += a.section[i];
  }
  MMS_REQUIRE(!a.sections || (sum * 2 == a.turned && a.axes >= 1), MMS_VALUE);
  MMS_REQUIRE(mms_is_float(a.dtype) && mms_is_float(a.angle_dtype), MMS_DTYPE);
  const int64_t items = (int64_t)a.batch * a.tokens * ((int64_t)a.q_heads + a.k_heads);
  if (!items || !a.channels) return MMS_OK;
  MMS_REQUIRE((!a.q_heads || (a.q && a.q_out)) && (!a.k_heads || (a.k && a.k_out)), MMS_NULL);
  MMS_REQUIRE(!a.turned || (a.cos && a.sin), MMS_NULL);
  MMS_REQUIRE(mms_placed(a.q, a.dtype) && mms_placed(a.k, a.dtype) && mms_placed(a.q_out, a.dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.k_out, a.dtype) && mms_placed(a.cos, a.angle_dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.sin, a.angle_dtype), MMS_ALIGN);
  const int64_t blocks = mms_ceil(items, MMS_ROTARY_WAVES);
  MMS_REQUIRE(blocks <= MMS_MOST_X, MMS_SIZE);
  return mms_status_of(MMS_START(mms_k_rotary, (uint32_t)blocks, 1, MMS_ROTARY_WAVES * 32, a, stream));
}

int mms_take_columns(const mms_take* given, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_take a = *given;
  MMS_REQUIRE(a.rows >= 0 && a.rows <= MMS_MOST_Y && a.columns >= 0 && a.slots >= 0 && a.padded >= a.slots, MMS_SIZE);
  MMS_REQUIRE(a.order || a.slots <= a.columns, MMS_SIZE);
  if (!a.rows || !a.padded) return MMS_OK;
  MMS_REQUIRE(a.x && a.out, MMS_NULL);
  MMS_REQUIRE(mms_aligned(a.x, 2) && mms_aligned(a.out, 2) && mms_aligned(a.order, 4), MMS_ALIGN);
  const uint32_t blocks = (uint32_t)mms_ceil(a.padded, MMS_TAKE_THREADS);
  return mms_status_of(MMS_START(mms_k_take, blocks, (uint32_t)a.rows, MMS_TAKE_THREADS, a, stream));
}

int64_t mms_w4_scratch(const mms_w4* given) {
  if (mms_w4_check(given) != MMS_OK) return -1;
  return given->rows && given->outputs && mms_w4_anew(*given) ? (int64_t)given->rows * given->padded * 2 : 0;
}

int mms_w4_gemv(const mms_w4* given, void* stream) {
  static const mms_w4_kernel kernels[2][3][4] = {MMS_OF_GROUPS(f16), MMS_OF_GROUPS(bf16)};
  const int wrong = mms_w4_check(given);
  MMS_REQUIRE(wrong == MMS_OK, wrong);
  mms_w4 a = *given;
  MMS_REQUIRE(a.rows <= 4, MMS_SIZE);
  if (!a.rows || !a.outputs) return MMS_OK;
  const int failed = mms_w4_prepare(a, stream);
  MMS_REQUIRE(failed == MMS_OK, failed);
  const int of_groups = a.group_size >= a.padded || a.group_size % 128 == 0 ? 2 : a.group_size % 64 == 0;
  const int64_t waves = mms_ceil(a.outputs, a.rows == 1 ? MMS_W4_ROWS<1> : MMS_W4_ROWS<4>);
  a.split = mms_split_of(waves, a.padded, 1024);
  const mms_w4_kernel kernel = kernels[a.dtype][of_groups][a.rows == 1 ? a.scale_dtype : 3];
  return mms_status_of(MMS_START(kernel, (uint32_t)mms_ceil(waves * a.split, MMS_W4_WAVES), 1, 128, a, stream));
}

int mms_w4_gemm(const mms_w4* given, void* stream) {
  static const mms_w4_kernel kernels[2][2] = {{mms_k_w4_gemm_f16_g16, mms_k_w4_gemm_f16_g128},
                                              {mms_k_w4_gemm_bf16_g16, mms_k_w4_gemm_bf16_g128}};
  const int wrong = mms_w4_check(given);
  MMS_REQUIRE(wrong == MMS_OK, wrong);
  mms_w4 a = *given;
  MMS_REQUIRE(a.rows <= MMS_MOST_Y, MMS_SIZE);
  if (!a.rows || !a.outputs) return MMS_OK;
  const int failed = mms_w4_prepare(a, stream);
  MMS_REQUIRE(failed == MMS_OK, failed);
  const bool whole = a.group_size >= a.padded || a.group_size % 128 == 0;
  const uint32_t x = (uint32_t)mms_ceil(a.outputs, 16), y = (uint32_t)mms_ceil(a.rows, 16);
  return mms_status_of(MMS_START(kernels[a.dtype][whole], x, y, 128, a, stream));
}

int mms_linear_gemv(const mms_linear* given, void* stream) {
  static const mms_linear_kernel kernels[2][2] = {{mms_k_linear_f16_m1, mms_k_linear_f16_m4},
                                                  {mms_k_linear_bf16_m1, mms_k_linear_bf16_m4}};
  MMS_REQUIRE(given, MMS_NULL);
  mms_linear a = *given;
  MMS_REQUIRE(a.rows >= 0 && a.rows <= 4 && a.outputs >= 0 && a.columns >= 0 && a.columns <= 1 << 28, MMS_SIZE);
  MMS_REQUIRE(mms_is_half(a.dtype) && mms_optional(a.bias, a.bias_dtype), MMS_DTYPE);
  if (!a.rows || !a.outputs) return MMS_OK;
  MMS_REQUIRE(a.out && (!a.columns || (a.x && a.weight)), MMS_NULL);
  MMS_REQUIRE(mms_aligned(a.x, 2) && mms_aligned(a.weight, 2) && mms_aligned(a.out, 2), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.bias, a.bias_dtype), MMS_ALIGN);
  const int64_t waves = mms_ceil(a.outputs, a.rows == 1 ? MMS_LINEAR_ROWS<1> : MMS_LINEAR_ROWS<4>);
  a.vector = mms_aligned(a.x, 16) && mms_aligned(a.weight, 16) && (a.rows == 1 || a.x_stride % 8 == 0) &&
             (a.outputs == 1 || a.weight_stride % 8 == 0);
  a.split = mms_split_of(waves, a.columns, 256);
  const uint32_t blocks = (uint32_t)mms_ceil(waves * a.split, MMS_LINEAR_WAVES);
  return mms_status_of(MMS_START(kernels[a.dtype][a.rows > 1], blocks, 1, 128, a, stream));
}

int mms_gptq_shuffle(const mms_gptq* given, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_gptq a = *given;
  MMS_REQUIRE(a.columns > 0 && a.outputs >= 0 && a.padded > 0 && a.padded % 128 == 0 && a.group_size > 0, MMS_SIZE);
  MMS_REQUIRE(a.groups_in > 0 && a.stored > 0 && a.groups_out == mms_ceil(a.padded, a.group_size), MMS_SIZE);
  MMS_REQUIRE(a.stored <= a.groups_out && (a.table || a.stored <= a.groups_in), MMS_SIZE);
  MMS_REQUIRE(a.source || a.columns <= a.padded, MMS_SIZE);
  MMS_REQUIRE(a.zero_mode >= 0 && a.zero_mode <= 2, MMS_VALUE);
  MMS_REQUIRE(mms_is_float(a.scale_dtype), MMS_DTYPE);
  if (!a.outputs) return MMS_OK;
  MMS_REQUIRE(a.qweight && a.scales && a.words && a.scales_out && a.zeros_out, MMS_NULL);
  MMS_REQUIRE(mms_aligned(a.words, 4) && mms_aligned(a.qweight, 4) && mms_aligned(a.qzeros, 4), MMS_ALIGN);
  MMS_REQUIRE(mms_aligned(a.source, 4) && mms_aligned(a.table, 4), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.scales, a.scale_dtype) && mms_placed(a.scales_out, a.scale_dtype), MMS_ALIGN);
  const int64_t y = a.padded / 8 + (int64_t)a.groups_out;
  MMS_REQUIRE(y <= MMS_MOST_Y, MMS_SIZE);
  const uint32_t x = (uint32_t)mms_ceil(a.outputs, MMS_GPTQ_THREADS);
  return mms_status_of(MMS_START(mms_k_gptq, x, (uint32_t)y, MMS_GPTQ_THREADS, a, stream));
}

int mms_kv_store(const mms_kv* given, void* stream) {
  MMS_REQUIRE(given, MMS_NULL);
  mms_kv a = *given;
  MMS_REQUIRE(a.batch >= 0 && a.heads >= 0 && a.tokens >= 0 && a.slots >= 0, MMS_SIZE);
  MMS_REQUIRE(a.k_channels >= 0 && a.v_channels >= 0 && a.k_channels <= 512 && a.v_channels <= 512, MMS_SIZE);
  MMS_REQUIRE(mms_is_float(a.k_dtype) && mms_is_float(a.v_dtype), MMS_DTYPE);
  MMS_REQUIRE(a.cache_dtype >= MMS_F16 && a.cache_dtype <= MMS_I8, MMS_DTYPE);
  MMS_REQUIRE(mms_optional(a.k_offset, a.offset_dtype) && mms_optional(a.k_scale, a.k_scale_dtype), MMS_DTYPE);
  MMS_REQUIRE(mms_optional(a.v_scale, a.v_scale_dtype), MMS_DTYPE);
  MMS_REQUIRE(a.cache_dtype > MMS_F32 || (!a.k_offset && !a.k_scale && !a.v_scale), MMS_VALUE);
  const int64_t kept = a.tokens < a.slots ? a.tokens : a.slots, items = (int64_t)a.batch * a.heads * kept;
  if (!items) return MMS_OK;
  MMS_REQUIRE(a.start && (!a.k_channels || (a.k && a.keys)) && (!a.v_channels || (a.v && a.values)), MMS_NULL);
  MMS_REQUIRE(a.cache_dtype != MMS_I8 || (a.k_scale && a.v_scale), MMS_NULL);
  MMS_REQUIRE(mms_placed(a.k, a.k_dtype) && mms_placed(a.v, a.v_dtype) && mms_aligned(a.start, 4), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.keys, a.cache_dtype) && mms_placed(a.values, a.cache_dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.k_offset, a.offset_dtype) && mms_placed(a.k_scale, a.k_scale_dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.v_scale, a.v_scale_dtype), MMS_ALIGN);
  const int64_t blocks = mms_ceil(items, MMS_KV_WAVES);
  MMS_REQUIRE(blocks <= MMS_MOST_X, MMS_SIZE);
  return mms_status_of(MMS_START(mms_k_kv, (uint32_t)blocks, 1, MMS_KV_WAVES * 32, a, stream));
}

int mms_attention_splits(int batch, int heads, int group, int slots, int processors) {
  if (batch <= 0 || heads <= 0 || group <= 0 || slots <= 0) return 1;
  const int64_t blocks = (int64_t)batch * heads * (group > 1 ? mms_ceil(group, 4) : 1);
  const int64_t wanted = mms_ceil(4 * (int64_t)(processors > 0 ? processors : 1), blocks), most = mms_ceil(slots, 128);
  const int64_t splits = wanted < most ? wanted : most;
  return splits > 64 ? 64 : (int)splits;
}

int mms_decode_attention(const mms_attention* given, void* stream) {
  static const mms_attention_kernel kernels[6][3] = {
      MMS_OF_HEADS(f16),  MMS_OF_HEADS(bf16), {nullptr, nullptr, nullptr},  // no float32
      MMS_OF_HEADS(e4m3), MMS_OF_HEADS(e5m2), MMS_OF_HEADS(i8)};
  MMS_REQUIRE(given, MMS_NULL);
  mms_attention a = *given;
  MMS_REQUIRE(a.batch >= 0 && a.heads >= 0 && a.group >= 0 && a.slots >= 0, MMS_SIZE);
  MMS_REQUIRE(a.k_channels > 0 && a.v_channels >= 0 && a.k_channels <= 512 && a.v_channels <= 512, MMS_SIZE);
  MMS_REQUIRE(a.k_channels % 8 == 0 && a.v_channels % 8 == 0, MMS_SIZE);
  MMS_REQUIRE(mms_is_float(a.dtype) && a.cache_dtype >= MMS_F16 && a.cache_dtype <= MMS_I8, MMS_DTYPE);
  MMS_REQUIRE(a.cache_dtype != MMS_F32 && mms_optional(a.k_scale, a.k_scale_dtype), MMS_DTYPE);
  MMS_REQUIRE(mms_optional(a.v_scale, a.v_scale_dtype) && mms_optional(a.sinks, a.sinks_dtype), MMS_DTYPE);
  MMS_REQUIRE(a.cache_dtype > MMS_F32 || (!a.k_scale && !a.v_scale), MMS_VALUE);
  MMS_REQUIRE(a.splits >= 1 && a.splits <= 64 && a.soft_cap >= 0.0f, MMS_VALUE);
  const int64_t rows = (int64_t)a.batch * a.heads * a.group;
  if (!rows || !a.v_channels) return MMS_OK;
  MMS_REQUIRE(rows <= MMS_MOST_X && a.slots <= 1 << 28, MMS_SIZE);
  MMS_REQUIRE(a.q && a.length && a.out && a.scratch && (!a.slots || (a.keys && a.values)), MMS_NULL);
  MMS_REQUIRE(a.cache_dtype != MMS_I8 || (a.k_scale && a.v_scale), MMS_NULL);
  MMS_REQUIRE(mms_placed(a.q, a.dtype) && mms_placed(a.out, a.dtype) && mms_aligned(a.length, 4), MMS_ALIGN);
  const uint64_t unit = mms_width(a.cache_dtype) * 8;
  MMS_REQUIRE(mms_aligned(a.keys, unit) && mms_aligned(a.values, unit), MMS_ALIGN);
  MMS_REQUIRE((a.keys_batch | a.keys_head | a.keys_slot) % 8 == 0, MMS_ALIGN);
  MMS_REQUIRE((a.values_batch | a.values_head | a.values_slot) % 8 == 0, MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.k_scale, a.k_scale_dtype) && mms_placed(a.v_scale, a.v_scale_dtype), MMS_ALIGN);
  MMS_REQUIRE(mms_placed(a.sinks, a.sinks_dtype) && mms_aligned(a.scratch, 4), MMS_ALIGN);
  const int widest = a.k_channels > a.v_channels ? a.k_channels : a.v_channels;
  for (a.lanes = 1; a.lanes < 32 && a.lanes * 8 < widest;) a.lanes *= 2;
  const int kind = widest > 256 ? 2 : a.group > 1 ? 1 : 0;
  const uint32_t x = (uint32_t)(a.batch * (int64_t)a.heads * mms_ceil(a.group, kind == 1 ? 4 : 1));
  const mms_attention_kernel kernel = kernels[a.cache_dtype][kind];
  const int failed = mms_status_of(MMS_START(kernel, x, (uint32_t)a.splits, MMS_ATTENTION_THREADS, a, stream));
  MMS_REQUIRE(failed == MMS_OK, failed);
  return mms_status_of(MMS_START(mms_k_join, (uint32_t)rows, 1, MMS_JOIN_THREADS, a, stream));
}

}  // extern "C"
