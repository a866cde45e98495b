// A TEST DOUBLE of the CUDA runtime: streams and events. See cudart.h.
#include "cudart.h"

#include <algorithm>

State& state() {
    static State& all = *new State;
    return all;
}

thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t answer(cudaError_t code) {
    if (code != cudaSuccess) last_error = code;
    return code;
}

namespace {

void work(cudaStream_t stream) {
    State& all = state();
    Lock lock(all.mutex);
    for (;;) {
        auto due = [&] { return all.fault == cudaSuccess && (!stream->queue.empty() || stream->closing); };
        all.changed.wait(lock, [&] { return !all.ending && due(); });
        if (stream->queue.empty()) break;
        Task task = stream->queue.front();
        stream->busy = true;
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
        stream->queue.pop_front();
        stream->busy = false;
        all.changed.notify_all();
    }
    delete stream;
}

}  // namespace

cudaStream_t make_stream(int on, unsigned flags, int priority) {
    State& all = state();
    auto* stream = new CUstream_st{on, priority, flags, ++all.ids};
    all.streams.insert(stream);
    all.contexts.insert(on);
    return stream;
}

cudaStream_t resolve(cudaStream_t handle) {
    if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread) return handle;
    cudaStream_t& stream = state().defaults[device];
    if (stream == nullptr) stream = make_stream(device, cudaStreamDefault, 0);
    return stream;
}

cudaError_t enqueue(cudaStream_t stream, Task task) {
    State& all = state();
    if (all.fault != cudaSuccess) return all.fault;
    if (stream->capture) {
        stream->capture->graph->nodes.push_back(std::move(task));
        return cudaSuccess;
    }
    stream->queue.push_back(std::move(task));
    if (!stream->started) std::thread(work, stream).detach();
    stream->started = true;
    all.changed.notify_all();
    return cudaSuccess;
}

cudaError_t submit(cudaStream_t handle, Task task) {
    Lock lock(state().mutex);
    return answer(enqueue(resolve(handle), std::move(task)));
}

namespace {

void reach(Moment& moment) {
    Lock lock(state().mutex);
    moment.done = true;
    moment.at = Clock::now();
    state().changed.notify_all();
}

// The host waits, or learns that the device is lost.
template <typename Done>
cudaError_t await(Lock& lock, Done done) {
    State& all = state();
    all.changed.wait(lock, [&] { return all.fault != cudaSuccess || all.ending || done(); });
    return all.fault;
}

}  // namespace

cudaError_t drain(Lock& lock, cudaStream_t stream) {
    auto moment = std::make_shared<Moment>();
    if (stream->queue.empty()) return state().fault;
    if (cudaError_t code = enqueue(stream, [moment] { reach(*moment); })) return code;
    return await(lock, [&] { return moment->done; });
}

cudaError_t drain_device(Lock& lock, int on) {
    std::vector<cudaStream_t> streams(state().streams.begin(), state().streams.end());
    for (cudaStream_t stream : streams) {
        if (state().streams.count(stream) == 0 || stream->device != on || stream->capture) continue;
        if (cudaError_t code = drain(lock, stream)) return code;
    }
    return state().fault;
}

// --- what a capture forbids

cudaError_t spoil(Capture& capture, cudaError_t code) {
    capture.broken = true;
    return code;
}

cudaError_t unsafe() {
    if (state().fault != cudaSuccess) return state().fault;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (const auto& capture : state().captures) {
        bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
        bool global = thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
        if (own || global) return spoil(*capture, cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}

extern "C" {

void simcollDoubleFault(cudaError_t code) {
    Lock lock(state().mutex);
    state().fault = code;
    state().changed.notify_all();
}

// Python is about to end: its threads must not be asked for any more. Waits a second at most for what is running.
void simcollDoubleEnd() {
    State& all = state();
    Lock lock(all.mutex);
    all.ending = true;
    all.changed.notify_all();
    auto idle = [&] { return std::none_of(all.streams.begin(), all.streams.end(), [](auto* one) { return one->busy; }); };
    all.changed.wait_for(lock, std::chrono::seconds(1), idle);
}

// --- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    Lock lock(state().mutex);
    *stream = make_stream(device, flags, priority);
    return answer(state().fault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

// Returns at once; the stream's thread finishes what is queued and frees it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock(state().mutex);
    state().streams.erase(stream);
    stream->closing = true;
    if (!stream->started) delete stream;
    state().changed.notify_all();
    return answer(state().fault);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Lock lock(state().mutex);
    cudaStream_t stream = resolve(handle);
    if (stream->capture) return answer(spoil(*stream->capture, cudaErrorStreamCaptureUnsupported));
    if (cudaError_t code = unsafe()) return answer(code);
    return answer(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Lock lock(state().mutex);
    cudaStream_t stream = resolve(handle);
    if (stream->capture) return answer(spoil(*stream->capture, cudaErrorStreamCaptureUnsupported));
    return answer(drain(lock, stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    Lock lock(state().mutex);
    return *priority = resolve(stream)->priority, answer(state().fault);
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    Lock lock(state().mutex);
    return *flags = resolve(stream)->flags, answer(state().fault);
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
    Lock lock(state().mutex);
    return *id = resolve(stream)->id, answer(state().fault);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return submit(stream, [=] { function(data); });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    return submit(stream, [=] { function(stream, cudaSuccess, data); });
}

// --- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new CUevent_st{flags, nullptr, nullptr};
    return answer(state().fault);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, answer(state().fault); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    Lock lock(state().mutex);
    cudaStream_t stream = resolve(handle);
    if (stream->capture && flags != cudaEventRecordExternal) return event->capture = stream->capture, cudaSuccess;
    auto moment = std::make_shared<Moment>();
    event->last = moment;
    event->capture = nullptr;
    return answer(enqueue(stream, [moment] { reach(*moment); }));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Lock lock(state().mutex);
    if (event->capture) return answer(cudaErrorCapturedEvent);
    if (cudaError_t code = unsafe()) return answer(code);
    return answer(!event->last || event->last->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Lock lock(state().mutex);
    if (event->capture) return answer(cudaErrorCapturedEvent);
    if (cudaError_t code = unsafe()) return answer(code);
    auto moment = event->last;
    return answer(await(lock, [&] { return !moment || moment->done; }));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    Lock lock(state().mutex);
    if (state().fault != cudaSuccess) return answer(state().fault);
    if (start->capture || end->capture) return answer(cudaErrorCapturedEvent);
    bool timed = !((start->flags | end->flags) & cudaEventDisableTiming);
    if (!timed || !start->last || !end->last) return answer(cudaErrorInvalidResourceHandle);
    if (!start->last->done || !end->last->done) return answer(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(end->last->at - start->last->at).count();
    return cudaSuccess;
}

// A stream that waits for an event of a capture joins that capture.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    State& all = state();
    Lock lock(all.mutex);
    cudaStream_t stream = resolve(handle);
    if (event->capture) {
        if (all.captures.count(event->capture) == 0) return answer(cudaErrorCapturedEvent);
        if (stream->capture && stream->capture != event->capture) return answer(cudaErrorStreamCaptureIsolation);
        stream->capture = event->capture;
        return answer(all.fault);
    }
    if (stream->capture) return answer(spoil(*stream->capture, cudaErrorStreamCaptureIsolation));
    auto moment = event->last;
    if (!moment || moment->done) return answer(all.fault);
    return answer(enqueue(stream, [moment] {
        Lock inner(state().mutex);
        state().changed.wait(inner, [&] { return moment->done; });
    }));
}

}  // extern "C"
