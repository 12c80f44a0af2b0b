// The library: everything in one translation unit.
//
//     clang++ -x hip -nogpuinc -nogpulib --offload-arch=gfx1100 -O3 -std=c++17 -fPIC -shared mmswap_hip.cpp ...
//     nvcc -x cu -arch=sm_90 -O3 -std=c++17 -shared -Xcompiler -fPIC mmswap_hip.cpp
//
// `hipcc -x hip` does too. At run time it needs hipLaunchKernel of the amdhip64 that torch has loaded, and no header.
#include "launch_experts.h"
