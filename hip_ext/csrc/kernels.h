// Every kernel by its name, with C linkage: what a runtime compiler compiles (MMS_RTC), and what launch.h starts.
//
// A name is mms_k_OP and what it is made for: f16 bf16 e4m3 e5m2 i8; m1 m4: up to so many input rows; g128 g64 g16:
// groups are a multiple of this; s0 s1 s2: dtype of scales, s: any; h1 h4 query heads, wide: heads of more than 256
// channels.
#pragma once
#include "attention.h"
#include "experts.h"
#include "gptq.h"
#include "linear.h"
#include "rotary.h"
#include "rows.h"
#include "w4_gemm.h"

#define MMS_KERNEL(name, threads, args, body) \
  extern "C" __global__ void MMS_BOUNDS(threads) name(args a) { body(a); }

MMS_KERNEL(mms_k_act, MMS_ACT_THREADS, mms_act, mms_act_body)
MMS_KERNEL(mms_k_norm, MMS_NORM_THREADS, mms_norm, mms_norm_body)
MMS_KERNEL(mms_k_rotary, MMS_ROTARY_WAVES * 32, mms_rotary, mms_rotary_body)
MMS_KERNEL(mms_k_take, MMS_TAKE_THREADS, mms_take, mms_take_body)
MMS_KERNEL(mms_k_gptq, MMS_GPTQ_THREADS, mms_gptq, mms_gptq_body)
MMS_KERNEL(mms_k_kv, MMS_KV_WAVES * 32, mms_kv, mms_kv_body)
MMS_KERNEL(mms_k_join, MMS_JOIN_THREADS, mms_attention, mms_join_body)

#define MMS_LINEAR(T, name, M) MMS_KERNEL(mms_k_linear_##name##_m##M, 128, mms_linear, (mms_linear_body<T, M>))
#define MMS_LINEARS(T, name) MMS_LINEAR(T, name, 1) MMS_LINEAR(T, name, 4)
MMS_LINEARS(MMS_F16, f16)
MMS_LINEARS(MMS_BF16, bf16)

#define MMS_GEMV(T, name, M, G, S, s) \
  MMS_KERNEL(mms_k_w4_gemv_##name##_m##M##_g##G##_##s, 128, mms_w4, (mms_w4_gemv_body<T, S, M, G == 16 ? 1 : G / 32>))
#define MMS_GEMV1(T, name, G) \
  MMS_GEMV(T, name, 1, G, 0, s0) MMS_GEMV(T, name, 1, G, 1, s1) MMS_GEMV(T, name, 1, G, 2, s2)
#define MMS_GEMVS(T, name) \
  MMS_GEMV1(T, name, 128) MMS_GEMV1(T, name, 64) MMS_GEMV1(T, name, 16) \
  MMS_GEMV(T, name, 4, 128, -1, s) MMS_GEMV(T, name, 4, 16, -1, s)
MMS_GEMVS(MMS_F16, f16)
MMS_GEMVS(MMS_BF16, bf16)

#define MMS_EXPERTS(T, name, G, SPAN) MMS_KERNEL(mms_k_experts_##name##_g##G, 128, mms_experts, (mms_experts_body<T, SPAN>))
MMS_EXPERTS(MMS_F16, f16, 128, 4)
MMS_EXPERTS(MMS_F16, f16, 16, 1)
MMS_EXPERTS(MMS_BF16, bf16, 128, 4)
MMS_EXPERTS(MMS_BF16, bf16, 16, 1)

#if defined(MMS_CPU)  // the tests say which
template <int T, int SPAN>
MMS_FN void mms_w4_any_body(const mms_w4& a) {
  if (mms_cpu_wmma == 11)
    mms_w4_wmma_body<T, SPAN, 11>(a);
  else if (mms_cpu_wmma == 12)
    mms_w4_wmma_body<T, SPAN, 12>(a);
  else
    mms_w4_plain_body<T, SPAN>(a);
}
#define MMS_GEMM_BODY(T, SPAN) (mms_w4_any_body<T, SPAN>)
#elif MMS_WMMA
#define MMS_GEMM_BODY(T, SPAN) (mms_w4_wmma_body<T, SPAN, MMS_WMMA>)
#else
#define MMS_GEMM_BODY(T, SPAN) (mms_w4_plain_body<T, SPAN>)
#endif
MMS_KERNEL(mms_k_w4_gemm_f16_g128, 128, mms_w4, MMS_GEMM_BODY(MMS_F16, 4))
MMS_KERNEL(mms_k_w4_gemm_f16_g16, 128, mms_w4, MMS_GEMM_BODY(MMS_F16, 1))
MMS_KERNEL(mms_k_w4_gemm_bf16_g128, 128, mms_w4, MMS_GEMM_BODY(MMS_BF16, 4))
MMS_KERNEL(mms_k_w4_gemm_bf16_g16, 128, mms_w4, MMS_GEMM_BODY(MMS_BF16, 1))

#define MMS_ATTENTION(K, name, H, N, kind) \
  MMS_KERNEL(mms_k_attention_##name##_##kind, MMS_ATTENTION_THREADS, mms_attention, (mms_attention_body<K, H, N>))
#define MMS_ATTENTIONS(K, name) \
  MMS_ATTENTION(K, name, 1, 1, h1) MMS_ATTENTION(K, name, 4, 1, h4) MMS_ATTENTION(K, name, 1, 2, wide)
MMS_ATTENTIONS(MMS_F16, f16)
MMS_ATTENTIONS(MMS_BF16, bf16)
MMS_ATTENTIONS(MMS_E4M3, e4m3)
MMS_ATTENTIONS(MMS_E5M2, e5m2)
MMS_ATTENTIONS(MMS_I8, i8)
