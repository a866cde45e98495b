// A TEST DOUBLE of the CUDA runtime: memory. Copies and fills are real. See cudart.h.
#include "cudart.h"

#include <sys/mman.h>

#include <cstring>

namespace {

cudaError_t take(void** pointer, size_t size, cudaMemoryType type) {
    State& all = state();
    Lock lock(all.mutex);
    *pointer = nullptr;
    if (cudaError_t code = unsafe()) return answer(code);
    if (size == 0) return cudaSuccess;
    bool on_device = type == cudaMemoryTypeDevice;
    if (on_device && all.in_use + size > device_memory()) return answer(cudaErrorMemoryAllocation);
    void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return answer(cudaErrorMemoryAllocation);
    all.in_use += on_device ? size : 0;
    all.contexts.insert(device);
    all.blocks[static_cast<char*>(made)] = {size, type, device};
    *pointer = made;
    return cudaSuccess;
}

cudaError_t give_back(void* pointer) {
    State& all = state();
    Lock lock(all.mutex);
    if (cudaError_t code = unsafe()) return answer(code);
    if (pointer == nullptr) return cudaSuccess;
    auto found = all.blocks.find(static_cast<char*>(pointer));
    if (found == all.blocks.end()) return answer(cudaErrorInvalidValue);
    Block block = found->second;
    if (cudaError_t code = drain_device(lock, block.device)) return answer(code);  // cudaFree waits for the device
    all.blocks.erase(static_cast<char*>(pointer));
    all.in_use -= block.type == cudaMemoryTypeDevice ? block.size : 0;
    munmap(pointer, block.size);
    return cudaSuccess;
}

const Block* block_of(const void* pointer) {
    auto& blocks = state().blocks;
    auto after = blocks.upper_bound(static_cast<const char*>(pointer));
    if (after == blocks.begin()) return nullptr;
    auto found = std::prev(after);
    return static_cast<const char*>(pointer) < found->first + found->second.size ? &found->second : nullptr;
}

// As CUDA does it: from pageable memory the bytes are taken before the call returns, and into it the call waits.
cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t handle, bool wait) {
    Lock lock(state().mutex);
    cudaStream_t stream = resolve(handle);
    if (wait) {
        if (cudaError_t code = unsafe()) return answer(code);
    }
    bool staged = !block_of(from) && !stream->capture;
    wait = wait || (!block_of(to) && !stream->capture);
    auto bytes = std::make_shared<std::vector<char>>();
    if (staged) bytes->assign(static_cast<const char*>(from), static_cast<const char*>(from) + size);
    Task task = [=] { std::memmove(to, staged ? bytes->data() : from, size); };
    if (cudaError_t code = enqueue(stream, task)) return answer(code);
    return answer(wait ? drain(lock, stream) : cudaSuccess);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t size) { return take(pointer, size, cudaMemoryTypeDevice); }
cudaError_t cudaFree(void* pointer) { return give_back(pointer); }
cudaError_t cudaMallocHost(void** pointer, size_t size) { return take(pointer, size, cudaMemoryTypeHost); }
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) { return take(pointer, size, cudaMemoryTypeHost); }
cudaError_t cudaFreeHost(void* pointer) { return give_back(pointer); }

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned) {
    Lock lock(state().mutex);
    if (cudaError_t code = unsafe()) return answer(code);
    state().blocks[static_cast<char*>(pointer)] = {size, cudaMemoryTypeHost, device};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
    Lock lock(state().mutex);
    if (cudaError_t code = unsafe()) return answer(code);
    return answer(state().blocks.erase(static_cast<char*>(pointer)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned) {
    return *on_device = on_host, answer(state().fault);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    Lock lock(state().mutex);
    const Block* block = block_of(pointer);
    std::memset(found, 0, sizeof *found);
    found->type = block ? block->type : cudaMemoryTypeUnregistered;
    found->device = block ? block->device : cudaInvalidDeviceId;
    found->devicePointer = block ? const_cast<void*>(pointer) : nullptr;
    found->hostPointer = block && block->type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(pointer);
    return answer(state().fault);
}

cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
    Lock lock(state().mutex);
    *total = device_memory();
    *unused = *total - state().in_use;
    return answer(state().fault);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
    return copy(to, from, size, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, size, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
    return copy(to, from, size, stream, false);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
    return submit(stream, [=] { std::memset(to, value, size); });
}

cudaError_t cudaMemset(void* to, int value, size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }

}  // extern "C"
