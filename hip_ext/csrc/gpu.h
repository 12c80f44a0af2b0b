// One kernel source for three machines: HIP (AMD), CUDA (NVIDIA) and fibers on a processor (MMS_CPU: the tests' shim).
//
// No header of HIP is included: compilers' builtins alone, so that any clang with an amdgcn target compiles it, and a
// runtime compiler too (MMS_RTC). Threads come in waves of 32, whatever the card calls them. What differs between
// architectures stands here: MMS_DOT2 (products of float16 pairs), MMS_DOT2_BF16, MMS_WMMA (11, 12 or 0).
#pragma once
#if defined(MMS_RTC)
#define int32_t int
#define uint32_t unsigned int
#define int64_t long long
#define uint64_t unsigned long long
#define uint16_t unsigned short
#define uint8_t unsigned char
#define int8_t signed char
#endif
#include "mmswap_hip.h"
#ifndef MMS_RTC
#include <stddef.h>
#endif

struct alignas(16) mms_u4 {
  uint32_t v[4];
};
struct alignas(8) mms_u2 {
  uint32_t v[2];
};

#if defined(MMS_CPU)
#include "shim.h"

#elif defined(__HIP__) || defined(__HIPCC_RTC__)
#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define MMS_BOUNDS(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define MMS_FN static __device__ inline __attribute__((always_inline))
#define MMS_UNROLL _Pragma("unroll")
#define MMS_LOOP _Pragma("nounroll")

// gfx125x and gfx117x have other matrix instructions: they take the portable path.
#if defined(__gfx1250__) || defined(__gfx1251__) || defined(__gfx1170__) || defined(__gfx1171__) || defined(__gfx1172__)
#define MMS_WMMA 0
#elif defined(__GFX12__) || defined(__GFX11__)
#define MMS_DOT2 1
#define MMS_DOT2_BF16 1
#if defined(__GFX12__)
#define MMS_WMMA 12
#else
#define MMS_WMMA 11
#endif
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || \
    defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || \
    defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || \
    defined(__gfx1036__) || defined(__gfx10_3_generic__)
#define MMS_DOT2 1
#endif

typedef _Float16 mms_h2 __attribute__((ext_vector_type(2)));
typedef _Float16 mms_h8 __attribute__((ext_vector_type(8)));
typedef _Float16 mms_h16 __attribute__((ext_vector_type(16)));
typedef short mms_b2 __attribute__((ext_vector_type(2)));
typedef short mms_b8 __attribute__((ext_vector_type(8)));
typedef short mms_b16 __attribute__((ext_vector_type(16)));
typedef __bf16 mms_bf2 __attribute__((ext_vector_type(2)));
typedef float mms_f8 __attribute__((ext_vector_type(8)));

MMS_FN int mms_tid() { return (int)__builtin_amdgcn_workitem_id_x(); }
MMS_FN int mms_block_x() { return (int)__builtin_amdgcn_workgroup_id_x(); }
MMS_FN int mms_block_y() { return (int)__builtin_amdgcn_workgroup_id_y(); }

// A number that is the same in all lanes, said so: its addresses are then computed once for the wave.
MMS_FN int mms_uniform(int n) {
#if defined(__GFX9__)
  return n;  // 64 lanes: two of our waves
#else
  return __builtin_amdgcn_readfirstlane(n);
#endif
}

// A barrier for LDS alone: the plain one also empties caches of global memory.
MMS_FN void mms_sync() {
#if __clang_major__ >= 20
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#endif
}

MMS_FN float mms_xor(float value, int mask) {
  const int lane = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, __builtin_bit_cast(int, value)));
}

MMS_FN uint32_t mms_mul_high(uint32_t a, uint32_t b) { return (uint32_t)(((unsigned long long)a * b) >> 32); }
MMS_FN float mms_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
MMS_FN float mms_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
MMS_FN float mms_rint(float x) { return __builtin_rintf(x); }
MMS_FN float mms_abs(float x) { return __builtin_fabsf(x); }
MMS_FN float mms_max(float a, float b) { return __builtin_fmaxf(a, b); }
MMS_FN float mms_min(float a, float b) { return __builtin_fminf(a, b); }
MMS_FN float mms_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MMS_FN float mms_as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
MMS_FN uint32_t mms_as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
MMS_FN float mms_from_half(uint16_t bits) { return (float)__builtin_bit_cast(_Float16, bits); }
MMS_FN uint16_t mms_to_half(float x) { return __builtin_bit_cast(uint16_t, (_Float16)x); }
MMS_FN float mms_low_half(uint32_t pair) { return (float)__builtin_bit_cast(mms_h2, pair)[0]; }
MMS_FN float mms_high_half(uint32_t pair) { return (float)__builtin_bit_cast(mms_h2, pair)[1]; }
MMS_FN uint32_t mms_add_halves(uint32_t a, uint32_t b) {
  return __builtin_bit_cast(uint32_t, __builtin_bit_cast(mms_h2, a) + __builtin_bit_cast(mms_h2, b));
}

#if defined(MMS_DOT2)
MMS_FN float mms_dot2_half(uint32_t a, uint32_t b, float sum) {
  return __builtin_amdgcn_fdot2(__builtin_bit_cast(mms_h2, a), __builtin_bit_cast(mms_h2, b), sum, false);
}
#endif
#if defined(MMS_DOT2_BF16)
MMS_FN float mms_dot2_bfloat(uint32_t a, uint32_t b, float sum) {
  return __builtin_amdgcn_fdot2_f32_bf16(__builtin_bit_cast(mms_bf2, a), __builtin_bit_cast(mms_bf2, b), sum, false);
}
#endif

// 16 x 16 sums += A B. Lane l gives row l % 16 of A and column l % 16 of B, 16 numbers of each for gfx11; for gfx12 8,
// and the lanes from 16 on the other 8. Which k a place stands for is free, as long as A and B agree.
#if MMS_WMMA == 11
struct mms_fragment {
  uint32_t v[8];
};
template <bool BF16, int W>
MMS_FN void mms_wmma(float (&sums)[8], const mms_fragment& a, const mms_fragment& b) {
  mms_f8 c = __builtin_bit_cast(mms_f8, sums);
  if constexpr (BF16)
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(mms_b16, a), __builtin_bit_cast(mms_b16, b), c);
  else
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(mms_h16, a), __builtin_bit_cast(mms_h16, b), c);
  MMS_UNROLL for (int i = 0; i < 8; ++i) sums[i] = c[i];
}
#elif MMS_WMMA == 12
struct mms_fragment {
  uint32_t v[4];
};
template <bool BF16, int W>
MMS_FN void mms_wmma(float (&sums)[8], const mms_fragment& a, const mms_fragment& b) {
  mms_f8 c = __builtin_bit_cast(mms_f8, sums);
  if constexpr (BF16) {
    const mms_b8 x = __builtin_bit_cast(mms_b8, a), y = __builtin_bit_cast(mms_b8, b);
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, c);
  } else {
    const mms_h8 x = __builtin_bit_cast(mms_h8, a), y = __builtin_bit_cast(mms_h8, b);
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, c);
  }
  MMS_UNROLL for (int i = 0; i < 8; ++i) sums[i] = c[i];
}
#endif

#if !defined(MMS_RTC)
// Of the runtime, without its headers: what a launch needs, and what the compiler's own stubs call.
struct dim3 {
  uint32_t x, y, z;
  constexpr dim3(uint32_t a = 1, uint32_t b = 1, uint32_t c = 1) : x(a), y(b), z(c) {}
};
typedef struct ihipStream_t* hipStream_t;
typedef int hipError_t;
extern "C" hipError_t __hipPushCallConfiguration(dim3, dim3, size_t = 0, hipStream_t = 0);
extern "C" hipError_t __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*);
extern "C" hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t);
inline int mms_start(const void* kernel, uint32_t x, uint32_t y, uint32_t threads, void* args, void* stream) {
  void* list[1] = {args};
  return hipLaunchKernel(kernel, dim3(x, y), dim3(threads), list, 0, (hipStream_t)stream);
}
#define MMS_START(kernel, x, y, threads, args, stream) mms_start((const void*)(kernel), x, y, threads, &(args), stream)
#endif

#else  // CUDA
#include <cuda_fp16.h>
#define MMS_FN static __device__ __forceinline__
#define MMS_UNROLL _Pragma("unroll")
#define MMS_LOOP _Pragma("unroll 1")
#define MMS_DOT2 1

MMS_FN int mms_tid() { return (int)threadIdx.x; }
MMS_FN int mms_block_x() { return (int)blockIdx.x; }
MMS_FN int mms_block_y() { return (int)blockIdx.y; }
MMS_FN int mms_uniform(int n) { return __shfl_sync(0xffffffffu, n, 0); }
MMS_FN void mms_sync() { __syncthreads(); }
MMS_FN float mms_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
MMS_FN uint32_t mms_mul_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }
MMS_FN float mms_exp2(float x) { return exp2f(x); }
MMS_FN float mms_rsqrt(float x) { return rsqrtf(x); }
MMS_FN float mms_rint(float x) { return rintf(x); }
MMS_FN float mms_abs(float x) { return fabsf(x); }
MMS_FN float mms_max(float a, float b) { return fmaxf(a, b); }
MMS_FN float mms_min(float a, float b) { return fminf(a, b); }
MMS_FN float mms_fma(float a, float b, float c) { return fmaf(a, b, c); }
MMS_FN float mms_as_float(uint32_t bits) { return __uint_as_float(bits); }
MMS_FN uint32_t mms_as_bits(float x) { return __float_as_uint(x); }
MMS_FN float mms_from_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
MMS_FN uint16_t mms_to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
MMS_FN float mms_low_half(uint32_t pair) { return mms_from_half((uint16_t)pair); }
MMS_FN float mms_high_half(uint32_t pair) { return mms_from_half((uint16_t)(pair >> 16)); }
MMS_FN uint32_t mms_add_halves(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
MMS_FN float mms_dot2_half(uint32_t a, uint32_t b, float sum) {
  return fmaf(mms_high_half(a), mms_high_half(b), fmaf(mms_low_half(a), mms_low_half(b), sum));
}
inline int mms_start(const void* kernel, uint32_t x, uint32_t y, uint32_t threads, void* args, void* stream) {
  void* list[1] = {args};
  return (int)cudaLaunchKernel(kernel, dim3(x, y), dim3(threads), list, 0, (cudaStream_t)stream);
}
#define MMS_START(kernel, x, y, threads, args, stream) mms_start((const void*)(kernel), x, y, threads, &(args), stream)
#endif

#ifndef MMS_WMMA
#define MMS_WMMA 0
#endif
#ifndef MMS_BOUNDS
#define MMS_BOUNDS(threads) __launch_bounds__(threads, 3)  // blocks: else nvcc spills where it need not
#endif
