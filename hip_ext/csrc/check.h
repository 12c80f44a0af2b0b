// What every launcher asks of its arguments, and how it says no. Of the host alone.
#pragma once
#include "mmswap_hip.h"

static inline int mms_status_of(int error) { return error ? MMS_RUNTIME + error : MMS_OK; }
static inline bool mms_is_float(int dtype) { return dtype >= MMS_F16 && dtype <= MMS_F32; }
static inline bool mms_is_half(int dtype) { return dtype == MMS_F16 || dtype == MMS_BF16; }
static inline bool mms_optional(const void* p, int dtype) { return !p || mms_is_float(dtype); }
static inline int64_t mms_ceil(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline bool mms_aligned(const void* p, uint64_t to) { return ((uint64_t)p & (to - 1)) == 0; }
static inline uint64_t mms_width(int dtype) { return dtype == MMS_F32 ? 4 : dtype <= MMS_BF16 ? 2 : 1; }
// Each number of a tensor at a multiple of its size.
static inline bool mms_placed(const void* p, int dtype) { return mms_aligned(p, mms_width(dtype)); }

constexpr int64_t MMS_MOST_X = 0x7FFFFFFF / 256, MMS_MOST_Y = 65535;  // blocks

#define MMS_REQUIRE(holds, status) \
  do {                             \
    if (!(holds)) return status;   \
  } while (0)
