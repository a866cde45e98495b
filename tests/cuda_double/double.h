// A TEST DOUBLE, not CUDA and not NCCL: what its three libraries share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

// In the double of libcudart: every later CUDA call of this process answers `code`, as after a kernel that faulted.
extern "C" void simcollDoubleFault(cudaError_t code);

// In the double of libcudart: 1 where this process did something on that device, so that a real one had a context there.
extern "C" int simcollDoubleActive(int device);

// A knob's value from the environment, read when it is asked for: a program may set it before it first uses a GPU.
inline double knob(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atof(text) : otherwise;
}

inline bool traced() {
    static const bool on = knob("SIMCOLL_DOUBLE_TRACE", 0) != 0;
    return on;
}
