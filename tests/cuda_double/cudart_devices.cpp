// A TEST DOUBLE of the CUDA runtime: devices, errors and versions. See cudart.h.
#include "cudart.h"

#include <cuda.h>
#include <dlfcn.h>

int device_count() {
    static const int count = static_cast<int>(knob("SIMCOLL_DOUBLE_GPUS", 8));
    return count;
}

size_t device_memory() {
    static const size_t bytes = static_cast<size_t>(knob("SIMCOLL_DOUBLE_MEMORY", 16.0 * (1UL << 30)));
    return bytes;
}

int attribute(cudaDeviceAttr which) {
    switch (which) {
        case cudaDevAttrComputeCapabilityMajor: return 9;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrClockRate: return 1'000'000;  // kHz
        case cudaDevAttrMultiProcessorCount: return 132;
        case cudaDevAttrMaxThreadsPerBlock: return 1024;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
        case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 227 << 10;
        case cudaDevAttrUnifiedAddressing: return 1;
        default: return 0;
    }
}

namespace {

CUresult driver_refusal() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

extern "C" {

int simcollDoubleActive(int on) {
    Lock lock(state().mutex);
    return static_cast<int>(state().contexts.count(on));
}

cudaError_t simcollDoubleUnsupported(const char* name) {
    if (traced()) std::fprintf(stderr, "simcoll's CUDA double: %s is not supported\n", name);
    return answer(cudaErrorNotSupported);
}

// --- errors and versions

cudaError_t cudaPeekAtLastError() { return state().fault != cudaSuccess ? state().fault : last_error; }

cudaError_t cudaGetLastError() {
    cudaError_t code = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return code;
}

const char* cudaGetErrorName(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
        case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
        default: return "cudaErrorUnknown";
    }
}

const char* cudaGetErrorString(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorNotSupported: return "operation not supported (by simcoll's test double of CUDA)";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
        case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
        default: return "unknown error (in simcoll's test double of CUDA)";
    }
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
    *function = dlsym(RTLD_DEFAULT, symbol);
    if (*function == nullptr && traced()) std::fprintf(stderr, "simcoll's CUDA double: no %s in the driver\n", symbol);
    if (*function == nullptr) *function = reinterpret_cast<void*>(driver_refusal);
    if (status != nullptr) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

// --- devices

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return answer(*count > 0 ? state().fault : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* current) { return *current = device, state().fault; }

cudaError_t cudaSetDevice(int to) {
    if (to < 0 || to >= device_count()) return answer(cudaErrorInvalidDevice);
    Lock lock(state().mutex);
    state().contexts.insert(to);
    device = to;
    return answer(state().fault);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    return *value = attribute(which), answer(state().fault);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int of) {
    if (of < 0 || of >= device_count()) return answer(cudaErrorInvalidDevice);
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "simcoll test double");
    properties->totalGlobalMem = device_memory();
    properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->unifiedAddressing = 1;
    properties->pciBusID = of;
    for (int axis = 0; axis < 3; ++axis) {
        properties->maxThreadsDim[axis] = 1024;
        properties->maxGridSize[axis] = 65535;
    }
    std::memset(properties->uuid.bytes, of + 1, sizeof properties->uuid.bytes);
    return answer(state().fault);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int of) {
    return std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", of), cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, answer(state().fault);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to) { return *can = from != to, answer(state().fault); }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return answer(state().fault); }

cudaError_t cudaDeviceSynchronize() {
    Lock lock(state().mutex);
    if (cudaError_t code = unsafe()) return answer(code);
    return answer(drain_device(lock, device));
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
