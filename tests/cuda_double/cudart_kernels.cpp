// A TEST DOUBLE of the CUDA runtime: kernels, which do nothing but for torch's spin kernel, which sleeps. kernels.py gives
// tensors their arithmetic. See cudart.h.
#include "cudart.h"

namespace {

cudaError_t launch(const void* kernel, void** arguments, cudaStream_t stream) {
    auto& kernels = state().kernels;
    auto found = kernels.find(kernel);
    const char* name = found == kernels.end() ? "(unnamed)" : found->second;
    if (std::strstr(name, "spin_kernel") != nullptr) {  // torch.cuda._sleep; the pretended clock ticks once a nanosecond
        auto cycles = std::chrono::nanoseconds(*static_cast<const int64_t*>(arguments[0]));
        return submit(stream, [cycles] { std::this_thread::sleep_for(cycles); });
    }
    if (traced()) std::fprintf(stderr, "simcoll's CUDA double: a kernel that does nothing: %s\n", name);
    return submit(stream, [] {});
}

struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    Lock lock(state().mutex);
    state().kernels[stub] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
    return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub)), cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
    return launch(kernel, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
    return launch(stub, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
    return launch(stub, arguments, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
    std::memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    found->numRegs = 32;
    return answer(state().fault);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return answer(state().fault); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    return *blocks = 1, answer(state().fault);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
    return *blocks = 1, answer(state().fault);
}

}  // extern "C"
