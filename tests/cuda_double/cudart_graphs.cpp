// A TEST DOUBLE of the CUDA runtime: captures and graphs. See cudart.h.
#include "cudart.h"

#include <utility>

extern "C" {

cudaError_t simcollDoubleUnsupported(const char* name);

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    State& all = state();
    Lock lock(all.mutex);
    cudaStream_t stream = resolve(handle);
    if (stream == all.defaults[device]) return answer(cudaErrorStreamCaptureUnsupported);  // the legacy stream
    if (stream->capture) return answer(cudaErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    *capture = {++all.ids, mode, std::this_thread::get_id(), stream, new CUgraph_st};
    all.captures.insert(capture);
    stream->capture = capture;
    return answer(all.fault);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    State& all = state();
    Lock lock(all.mutex);
    auto capture = stream->capture;
    *graph = nullptr;
    if (!capture || capture->origin != stream) return answer(cudaErrorIllegalState);
    for (cudaStream_t other : all.streams) {
        if (other->capture == capture) other->capture = nullptr;
    }
    all.captures.erase(capture);
    if (capture->broken) return delete capture->graph, answer(cudaErrorStreamCaptureInvalidated);
    *graph = capture->graph;
    return answer(all.fault);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    Lock lock(state().mutex);
    const auto& capture = resolve(handle)->capture;
    *status = !capture          ? cudaStreamCaptureStatusNone
              : capture->broken ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
    return answer(state().fault);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                        cudaGraph_t* graph, const cudaGraphNode_t** nodes, size_t* count) {
    const cudaGraphEdgeData** edges = nullptr;
#endif
    cudaError_t code = cudaStreamIsCapturing(handle, status);
    Lock lock(state().mutex);
    const auto& capture = resolve(handle)->capture;
    if (id != nullptr) *id = capture ? capture->id : 0;
    if (graph != nullptr) *graph = capture ? capture->graph : nullptr;
    if (nodes != nullptr) *nodes = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
    return code;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    if (nodes != nullptr) return simcollDoubleUnsupported("cudaGraphGetNodes with room for nodes");
    return *count = graph->nodes.size(), cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    Lock lock(state().mutex);
    *made = new CUgraphExec_st{*graph};
    return answer(state().fault);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(made, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
    Lock lock(state().mutex);
    cudaStream_t stream = resolve(handle);
    for (const Task& node : graph->graph.nodes) {
        if (cudaError_t code = enqueue(stream, node)) return answer(code);
    }
    return answer(state().fault);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return answer(state().fault); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }

cudaError_t cudaUserObjectCreate(cudaUserObject_t* made, void* data, cudaHostFn_t destroy, unsigned, unsigned) {
    return *made = new CUuserObject_st{std::shared_ptr<void>(data, destroy)}, cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned flags) {
    graph->owned.push_back(object->held);
    if (flags == cudaGraphUserObjectMove) delete object;
    return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) { return delete object, cudaSuccess; }

}  // extern "C"
