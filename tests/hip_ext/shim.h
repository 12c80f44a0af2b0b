// The kernels' third machine: a processor. A thread of the card is a fiber, a block runs to its end before the next.
//
// Included by gpu.h with MMS_CPU. Has blocks, static __shared__, barriers, exchanges of a wave of 32, WMMA as its
// manuals lay it out. A barrier that not all reach ends the program: "deadlock". Knows no races and no speed. x86-64.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <sys/mman.h>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define MMS_FN static inline
#define MMS_UNROLL
#define MMS_LOOP
#define MMS_DOT2 1
#ifdef MMS_CPU_RDNA2  // no products of bfloat16 pairs
#else
#define MMS_DOT2_BF16 1
#endif
#define MMS_WMMA 1

struct mms_fiber {
  void* stack;
  int state;  // 0 runs, 1 waits for the block, 2 for its wave, 3 has ended
};

static const int MMS_FIBERS = 256;
static const size_t MMS_STACK = 128 << 10;
static struct {
  mms_fiber fibers[MMS_FIBERS];
  float slots[MMS_FIBERS];
  uint32_t parts[MMS_FIBERS][2][8];  // fragments of WMMA
  void* scheduler;
  char* stacks;
  int threads, current, x, y;
  void (*run)(const void*);
  const void* args;
} mms_cpu;

extern "C" __attribute__((visibility("default"))) int mms_cpu_wmma;
int mms_cpu_wmma = 0;  // 11, 12, or 0: none

extern "C" void mms_cpu_switch(void** save, void* load);
__asm__(
    ".text\n"
    ".type mms_cpu_switch,@function\n"
    "mms_cpu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size mms_cpu_switch,.-mms_cpu_switch\n");

__attribute__((noinline)) static void mms_cpu_wait(int state) {
  mms_fiber& me = mms_cpu.fibers[mms_cpu.current];
  me.state = state;
  mms_cpu_switch(&me.stack, mms_cpu.scheduler);
}

static void mms_cpu_enter() {
  mms_cpu.run(mms_cpu.args);
  mms_cpu_wait(3);
  abort();
}

static void mms_cpu_block() {
  const int threads = mms_cpu.threads;
  for (int t = 0; t < threads; ++t) {
    void** top = (void**)(mms_cpu.stacks + (t + 1) * MMS_STACK);
    *--top = nullptr;
    *--top = (void*)&mms_cpu_enter;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    mms_cpu.fibers[t] = mms_fiber{top, 0};
  }
  for (;;) {
    bool moved = false, waiting = false, all = true;
    for (int w = 0; w < threads; w += 32) {
      for (bool again = true; again;) {  // a wave runs until all of it waits for the block or has ended
        again = false;
        int at_wave = 0, elsewhere = 0;
        for (int t = w; t < w + 32 && t < threads; ++t) {
          mms_fiber& fiber = mms_cpu.fibers[t];
          if (fiber.state == 0) {
            mms_cpu.current = t;
            mms_cpu_switch(&mms_cpu.scheduler, fiber.stack);
            moved = true;
          }
          at_wave += fiber.state == 2;
          elsewhere += fiber.state == 1;
        }
        if (at_wave && !elsewhere) {
          for (int t = w; t < w + 32 && t < threads; ++t)
            if (mms_cpu.fibers[t].state == 2) mms_cpu.fibers[t].state = 0;
          again = true;
        }
      }
      for (int t = w; t < w + 32 && t < threads; ++t) {
        waiting = waiting || mms_cpu.fibers[t].state == 1;
        all = all && (mms_cpu.fibers[t].state == 1 || mms_cpu.fibers[t].state == 3);
      }
    }
    if (!waiting && all) return;
    if (all) {
      for (int t = 0; t < threads; ++t)
        if (mms_cpu.fibers[t].state == 1) mms_cpu.fibers[t].state = 0;
    } else if (!moved) {
      fprintf(stderr, "shim: deadlock, a barrier or an exchange that not all threads reach\n");
      abort();
    }
  }
}

template <typename A>
static int mms_cpu_start(void (*kernel)(A), uint32_t x, uint32_t y, uint32_t threads, const A& args) {
  static void (*held)(A);
  held = kernel;
  if (!mms_cpu.stacks)
    mms_cpu.stacks = (char*)mmap(nullptr, MMS_STACK * MMS_FIBERS, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (threads > MMS_FIBERS || y > 65535) return 1;
  mms_cpu.threads = (int)threads;
  mms_cpu.args = &args;
  mms_cpu.run = [](const void* a) { held(*(const A*)a); };
  for (uint32_t j = 0; j < y; ++j)
    for (uint32_t i = 0; i < x; ++i) {
      mms_cpu.x = (int)i;
      mms_cpu.y = (int)j;
      mms_cpu_block();
    }
  return 0;
}
#define MMS_START(kernel, x, y, threads, args, stream) mms_cpu_start(kernel, x, y, threads, args)

MMS_FN int mms_tid() { return mms_cpu.current; }
MMS_FN int mms_block_x() { return mms_cpu.x; }
MMS_FN int mms_block_y() { return mms_cpu.y; }
MMS_FN int mms_uniform(int n) { return n; }
MMS_FN void mms_sync() { mms_cpu_wait(1); }

MMS_FN float mms_xor(float value, int mask) {
  const int t = mms_cpu.current;
  mms_cpu.slots[t] = value;
  mms_cpu_wait(2);
  const float other = mms_cpu.slots[(t & ~31) | ((t ^ mask) & 31)];
  mms_cpu_wait(2);
  return other;
}

template <typename To, typename From>
MMS_FN To mms_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

MMS_FN uint32_t mms_mul_high(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
MMS_FN float mms_exp2(float x) { return exp2f(x); }
MMS_FN float mms_rsqrt(float x) { return 1.0f / sqrtf(x); }
MMS_FN float mms_rint(float x) { return rintf(x); }
MMS_FN float mms_abs(float x) { return fabsf(x); }
MMS_FN float mms_max(float a, float b) { return fmaxf(a, b); }
MMS_FN float mms_min(float a, float b) { return fminf(a, b); }
MMS_FN float mms_fma(float a, float b, float c) { return fmaf(a, b, c); }
MMS_FN float mms_as_float(uint32_t bits) { return mms_cast<float>(bits); }
MMS_FN uint32_t mms_as_bits(float x) { return mms_cast<uint32_t>(x); }
MMS_FN float mms_from_half(uint16_t bits) { return (float)mms_cast<_Float16>(bits); }
MMS_FN uint16_t mms_to_half(float x) { return mms_cast<uint16_t>((_Float16)x); }
MMS_FN float mms_low_half(uint32_t pair) { return mms_from_half((uint16_t)pair); }
MMS_FN float mms_high_half(uint32_t pair) { return mms_from_half((uint16_t)(pair >> 16)); }
MMS_FN uint32_t mms_add_halves(uint32_t a, uint32_t b) {
  const uint32_t low = mms_to_half(mms_low_half(a) + mms_low_half(b));
  return low | (uint32_t)mms_to_half(mms_high_half(a) + mms_high_half(b)) << 16;
}
MMS_FN float mms_dot2_half(uint32_t a, uint32_t b, float sum) {
  return fmaf(mms_high_half(a), mms_high_half(b), fmaf(mms_low_half(a), mms_low_half(b), sum));
}
MMS_FN float mms_wide(uint32_t pair, int half, bool bf16) {
  if (bf16) return mms_as_float(half ? pair & 0xFFFF0000u : pair << 16);
  return half ? mms_high_half(pair) : mms_low_half(pair);
}
#ifdef MMS_DOT2_BF16
MMS_FN float mms_dot2_bfloat(uint32_t a, uint32_t b, float sum) {
  return fmaf(mms_wide(a, 1, true), mms_wide(b, 1, true), fmaf(mms_wide(a, 0, true), mms_wide(b, 0, true), sum));
}
#endif

// gfx11: a lane has 16 numbers of its row, the upper 16 lanes those of the lower; sums[i] is row 2 i + half of column
// l % 16. gfx12: it has k = 8 half and on; sums[i] is row i + 8 half.
struct mms_fragment {
  uint32_t v[8];
};
template <bool BF16, int W>
static void mms_wmma(float (&sums)[8], const mms_fragment& a, const mms_fragment& b) {
  const int t = mms_cpu.current, first = t & ~31, column = t % 16, half = t % 32 / 16;
  memcpy(mms_cpu.parts[t][0], a.v, sizeof a.v);
  memcpy(mms_cpu.parts[t][1], b.v, sizeof b.v);
  mms_cpu_wait(2);
  for (int i = 0; i < 8; ++i) {
    const int row = W == 11 ? 2 * i + half : i + 8 * half;
    for (int k = 0; k < 16; ++k) {
      const int lane = first + (W == 11 ? 16 * (k % 2) : k / 8 * 16), place = W == 11 ? k : k % 8;
      const uint32_t x = mms_cpu.parts[lane + row][0][place / 2], y = mms_cpu.parts[lane + column][1][place / 2];
      sums[i] = fmaf(mms_wide(x, place % 2, BF16), mms_wide(y, place % 2, BF16), sums[i]);
    }
  }
  mms_cpu_wait(2);
}
