// The C interface of the native kernels: one struct of arguments and one launcher for each op.
//
//     mms_w4 a = {...};  int status = mms_w4_gemv(&a, stream);  // 0, or one of MMS_*; never throws, never allocates
//
// Plain C. A launcher checks, starts one or two kernels on `stream` (hipStream_t or cudaStream_t as a pointer, 0: the
// default one) and returns; it asks nothing of the card, so it can be captured in a graph. Pointers are of the card
// unless a line says otherwise; 0 where a tensor is optional ("or 0") and missing. Strides and sizes count numbers, not
// bytes; channels (the last dimension) follow each other everywhere. A size of 0 starts nothing and is no error.
#pragma once
#ifndef MMS_RTC  // a runtime compiler has no system headers: gpu.h names these types there
#include <stdint.h>
#endif

#define MMS_ABI 2

enum mms_dtype { MMS_F16 = 0, MMS_BF16 = 1, MMS_F32 = 2, MMS_E4M3 = 3, MMS_E5M2 = 4, MMS_I8 = 5 };

enum mms_status {
  MMS_OK = 0,
  MMS_NULL = 1,      // the struct, or a tensor that is needed, is 0
  MMS_SIZE = 2,      // a size is negative or too large, or sizes do not belong together
  MMS_DTYPE = 3,     // a dtype code that this op does not take
  MMS_ALIGN = 4,     // an address or a stride that is not as the struct says
  MMS_VALUE = 5,     // any other number that is not allowed
  MMS_RUNTIME = 1000 // 1000 + hipError_t (cudaError_t) of the launch
};

// gate_up [rows, 2 features], out [rows, features]. dtype: F16 BF16 F32. act (mms_gelu_and_mul): 1 erf, 2 tanh.
typedef struct {
  const void* gate_up;
  void* out;
  int64_t stride;  // of gate_up's rows
  int32_t rows, features, dtype, act;
} mms_act;

// out = norm of x [rows, features], or of total = x + residual, which is written too. dtype and weight_dtype: F16 BF16
// F32. weight [features] or 0. late: rounded before the weight is applied.
typedef struct {
  const void *x, *residual, *weight;  // residual: mms_fused_add_rms_norm only
  void *out, *total;                  // contiguous
  int64_t x_stride, residual_stride;
  int32_t rows, features, dtype, weight_dtype, late;
  float eps, offset;
} mms_norm;

// q [batch, q_heads, tokens, channels], k likewise; cos, sin [axes,] [batch or 1,] tokens, turned. Outputs contiguous;
// they may be q and k themselves where those are. section: lengths of the runs, summing to turned / 2; sections 0:
// none. Run i takes axis i % axes.
typedef struct {
  const void *q, *k, *cos, *sin;
  void *q_out, *k_out;
  int64_t q_batch, q_head, q_token, k_batch, k_head, k_token;  // strides
  int64_t axis, angle_batch, angle_token;                      // strides of cos and sin; angle_batch 0: one for all
  int32_t batch, q_heads, k_heads, tokens, channels, turned, dtype, angle_dtype, axes, sections;
  int32_t section[8];
} mms_rotary;

// out [rows, outputs] = x [rows, columns] W^T + bias, W a `Packed4` (llm/quant/layout.py): words int32
// [outputs, padded / 8], 16-byte aligned; scales [outputs, groups] F16 BF16 F32; zeros uint8; order int32 [slots] or 0
// (then slots = columns). dtype F16 BF16. bias F16 BF16 F32 or 0. group_size: a multiple of 16, or >= padded.
// mms_w4_gemv: rows 1 to 4; mms_w4_gemm: any. scratch: see mms_w4_scratch.
typedef struct {
  const void *x, *words, *scales, *zeros, *order, *bias;
  void *out, *scratch;
  int64_t x_stride;
  int32_t rows, outputs, columns, slots, padded, group_size, groups, dtype, scale_dtype, bias_dtype;
  int32_t split;   // set by the launcher, as is magic
  uint32_t magic;  // (n * magic) >> 32 = n / (group_size / 16), and n where it is 0
} mms_w4;

// out [rows, outputs] = x [rows, columns] weight^T + bias; rows 1 to 4. dtype (of x, weight, out): F16 BF16.
typedef struct {
  const void *x, *weight, *bias;
  void* out;
  int64_t x_stride, weight_stride;
  int32_t rows, outputs, columns, dtype, bias_dtype;
  int32_t split, vector;  // set by the launcher
} mms_linear;

// out [rows, padded]: out[r, s] = x[r, order[s]] for s < slots, 0 after them. order 0: s itself. dtype F16 BF16.
typedef struct {
  const void *x, *order;
  void* out;
  int64_t x_stride;
  int32_t rows, columns, slots, padded;  // columns: of x. rows: at most 65535
} mms_take;

// GPTQ checkpoint -> Packed4. qweight int32 [ceil(columns / 8), outputs], qzeros int32 [groups_in, ceil(outputs / 8)]
// or 0, scales [groups_in, outputs] of scale_dtype. source int32 [padded]: the column in each slot, -1 for none; 0:
// slot s is column s, and none past the last. table int32 [stored]: the checkpoint's group in each stored one; 0:
// itself, and stored = groups_in. words int32 [outputs, padded / 8]; scales_out and zeros_out [outputs, groups_out];
// groups past `stored` are 0. zero_mode: 0 as stored, 1 stored less one, 2 all 8.
typedef struct {
  const void *qweight, *qzeros, *scales, *source, *table;
  void *words, *scales_out, *zeros_out;
  int32_t columns, outputs, padded, group_size, groups_in, groups_out, stored, scale_dtype, zero_mode;
} mms_gptq;

// Token t of k [batch, heads, tokens, k_channels] and v -> slot (start + t) % slots of keys and values
// [batch, heads, slots, channels], quantised by cache_dtype. start int32 [batch or 1] (start_stride 0: one). k_offset
// and k_scale [heads, k_channels] or 0. v_scale: fp8: [heads, 1] or 0, read; I8: [batch, heads, slots], written.
// All channels at most 512.
typedef struct {
  const void *k, *v, *start, *k_offset, *k_scale;
  void *keys, *values, *v_scale;
  int64_t k_batch, k_head, k_token, v_batch, v_head, v_token;                       // strides of k and v
  int64_t keys_batch, keys_head, keys_slot, values_batch, values_head, values_slot; // of the cache
  int64_t scale_batch, scale_head, scale_slot, start_stride;                        // of v_scale and start
  int32_t batch, heads, tokens, slots, k_channels, v_channels;
  int32_t k_dtype, v_dtype, cache_dtype, offset_dtype, k_scale_dtype, v_scale_dtype;
} mms_kv;

// q [batch, heads * group, k_channels], out [batch, heads * group, v_channels] contiguous; keys, values as in mms_kv.
// length int32 [batch or 1]; mask bytes [batch, slots] or 0; sinks [heads * group] or 0. dtype of q and out: F16 BF16
// F32. cache_dtype: all but F32. v_scale: I8 [batch, heads, slots], fp8 [heads, 1] (scale_slot 0) or 0. scratch:
// float32 [batch * heads * group * splits * (v_channels + 2)]. splits: 1 to 64, the blocks that share the slots of one
// head; mms_attention_splits proposes. Channels: multiples of 8, at most 512. keys and values: addresses of eight
// numbers (16 bytes, 8 for codes of 8 bits), strides multiples of 8; else MMS_ALIGN.
typedef struct {
  const void *q, *keys, *values, *length, *k_scale, *v_scale, *sinks, *mask;
  void *out, *scratch;
  int64_t q_batch, q_head, keys_batch, keys_head, keys_slot, values_batch, values_head, values_slot;
  int64_t scale_batch, scale_head, scale_slot, mask_batch, length_stride;
  int32_t batch, heads, group, slots, k_channels, v_channels;
  int32_t dtype, cache_dtype, k_scale_dtype, v_scale_dtype, sinks_dtype, splits;
  float scale, soft_cap;
  int32_t lanes;  // set by the launcher
} mms_attention;

// out [rows, outputs]: row r = x[r] W[experts[r]]^T + bias[experts[r]], W stacked as in mms_w4, without an order: words
// int32 [experts, outputs, padded / 8], scales, zeros [experts, outputs, groups], bias [experts, outputs] or 0. x_stride
// 0: one row of x for all. experts int32 [rows], int64 where `wide`. scratch: see mms_experts_scratch.
typedef struct {
  const void *x, *experts, *words, *scales, *zeros, *bias;
  void *out, *scratch;
  int64_t x_stride;
  int32_t rows, outputs, columns, padded, group_size, groups, dtype, scale_dtype, bias_dtype, wide;
  int32_t split;   // set by the launcher, as is magic
  uint32_t magic;
} mms_experts;

#ifndef MMS_RTC
#ifdef __cplusplus
extern "C" {
#endif
#ifdef _WIN32
#define MMS_API __declspec(dllexport)
#else
#define MMS_API __attribute__((visibility("default")))
#endif

MMS_API int mms_abi(void);                        // MMS_ABI of the library
MMS_API const char* mms_status_text(int status);  // one English sentence, never 0 (of the host, static)
// sizeof: 0 act, 1 norm, 2 rotary, 3 w4, 4 linear, 5 take, 6 gptq, 7 kv, 8 attention, 9 experts; else -1.
MMS_API int64_t mms_struct_size(int which);

MMS_API int mms_silu_and_mul(const mms_act*, void* stream);           // act is not looked at
MMS_API int mms_gelu_and_mul(const mms_act*, void* stream);           // act 1 or 2
MMS_API int mms_rms_norm(const mms_norm*, void* stream);              // residual and total are not looked at
MMS_API int mms_fused_add_rms_norm(const mms_norm*, void* stream);    // residual and total are needed
MMS_API int mms_rotary_embedding(const mms_rotary*, void* stream);
// Bytes of scratch (16-byte aligned) that a call needs, often 0; -1: bad arguments.
MMS_API int64_t mms_w4_scratch(const mms_w4*);
MMS_API int mms_w4_gemv(const mms_w4*, void* stream);                 // rows 1 to 4
// Any rows, best 5 to 32: 16 at a time, WMMA where the card has it.
MMS_API int mms_w4_gemm(const mms_w4*, void* stream);
// As mms_w4_scratch.
MMS_API int64_t mms_experts_scratch(const mms_experts*);
MMS_API int mms_experts_gemv(const mms_experts*, void* stream);       // rows at most 65535
MMS_API int mms_linear_gemv(const mms_linear*, void* stream);         // rows 1 to 4
MMS_API int mms_take_columns(const mms_take*, void* stream);
MMS_API int mms_gptq_shuffle(const mms_gptq*, void* stream);
MMS_API int mms_kv_store(const mms_kv*, void* stream);
// 1 to 64; asks nothing of the card.
MMS_API int mms_attention_splits(int batch, int heads, int group, int slots, int processors);
MMS_API int mms_decode_attention(const mms_attention*, void* stream);

#ifdef __cplusplus
}
#endif
#endif
