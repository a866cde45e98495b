// A TEST DOUBLE of the CUDA driver: as much of it as torch asks for beside the runtime, told in terms of the runtime.
// A context is its device's ordinal plus one.
#include "double.h"

#include <cuda.h>

namespace {

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1); }

CUresult status(cudaError_t code) { return static_cast<CUresult>(code); }  // the two number their errors alike

}  // namespace

extern "C" {

CUresult simcollDoubleUnsupported(const char* name) {
    if (traced()) std::fprintf(stderr, "simcoll's CUDA double: %s is not supported\n", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return status(cudaGetDeviceCount(count)); }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    int count = 0;
    cudaGetDeviceCount(&count);
    return *device = ordinal, ordinal < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    return status(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(which), device));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return *flags = 0, *active = simcollDoubleActive(device), CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return *context = context_of(device), CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    int device = 0;
    CUresult code = status(cudaGetDevice(&device));
    return *context = context_of(device), code;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    return context ? status(cudaSetDevice(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1)) : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
    return *text = cudaGetErrorString(static_cast<cudaError_t>(code)), CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** text) {
    return *text = cudaGetErrorName(static_cast<cudaError_t>(code)), CUDA_SUCCESS;
}

}  // extern "C"
