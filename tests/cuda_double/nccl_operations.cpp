// A TEST DOUBLE of NCCL: collectives, messages between two ranks, groups of them. See communicator.h.
#include "communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace {

// What goes from which rank to which, and where it lies: one row for each collective verb, in Verb's order.
struct Shape {
    bool from_root, to_root;         // only the root sends, only the root receives
    bool sliced_send, sliced_receive;  // a peer's part lies at its rank's place in the buffer
    bool reduces;
};

constexpr Shape shapes[] = {
    {false, false, false, false, true},   // AllReduce
    {false, true, false, false, true},    // Reduce
    {false, false, true, false, true},    // ReduceScatter
    {false, false, false, true, false},   // AllGather
    {true, false, false, false, false},   // Broadcast
    {false, false, true, true, false},    // AllToAll
    {false, true, false, true, false},    // Gather
    {true, false, true, false, false},    // Scatter
};

struct Batch {
    std::vector<Operation> operations;
    bool captured;  // then the graph keeps it, and its stream alone orders it
    long turn;
};

thread_local int depth = 0;
thread_local std::vector<Operation> grouped;

size_t width(ncclDataType_t type) {
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return widths[type];
}

// What nccl-tests' bus bandwidth divides by the time, so that a program that computes it finds the knob's.
double bus_bytes(const Operation& operation) {
    auto bytes = static_cast<double>(operation.count * width(operation.type));
    double ranks = operation.comm->size;
    if (operation.verb == AllReduce) return 2 * (ranks - 1) / ranks * bytes;
    bool whole = operation.verb == Reduce || operation.verb == Broadcast || operation.verb >= Send;
    return whole ? bytes : (ranks - 1) * bytes;
}

bool collect(const Operation& operation) {
    ncclComm& comm = *operation.comm;
    const Shape& shape = shapes[operation.verb];
    size_t bytes = operation.count * width(operation.type);
    auto carries = [&](int from, int to) {
        return (!shape.from_root || from == operation.root) && (!shape.to_root || to == operation.root);
    };
    for (int peer = 0; peer < comm.size; ++peer) {
        auto* at = static_cast<const char*>(operation.from) + (shape.sliced_send ? peer * bytes : 0);
        post(comm, peer, Collective, operation.verb, at, carries(comm.rank, peer) ? bytes : 0);
    }
    std::vector<Bytes> parts(static_cast<size_t>(comm.size));
    for (int peer = 0; peer < comm.size; ++peer) {
        size_t size = carries(peer, comm.rank) ? bytes : 0;
        if (!expect(comm, peer, Collective, operation.verb, size, parts[peer])) return false;
    }
    if (shape.reduces && carries(0, comm.rank)) reduce(parts, operation);
    for (int peer = 0; peer < comm.size && !shape.reduces; ++peer) {
        char* at = static_cast<char*>(operation.to) + (shape.sliced_receive ? peer * bytes : 0);
        std::memcpy(at, parts[peer].data(), parts[peer].size());
    }
    return true;
}

bool pair_up(const std::vector<Operation>& operations) {
    for (const Operation& one : operations) {
        if (one.verb == Send) post(*one.comm, one.root, PointToPoint, Send, one.from, one.count * width(one.type));
    }
    for (const Operation& one : operations) {
        Bytes body;
        if (one.verb != Recv) continue;
        if (!expect(*one.comm, one.root, PointToPoint, Send, one.count * width(one.type), body)) return false;
        std::memcpy(one.to, body.data(), body.size());
        post(*one.comm, one.root, Taken, Recv, nullptr, 0);
    }
    for (const Operation& one : operations) {
        Bytes nothing;
        if (one.verb == Send && !expect(*one.comm, one.root, Taken, Recv, 0, nothing)) return false;
    }
    return true;
}

// What a rank sends and what it receives go at the same time.
double seconds_of(const std::vector<Operation>& operations, double bandwidth) {
    double bytes[] = {0, 0};
    for (const Operation& operation : operations) bytes[operation.verb == Recv] += bus_bytes(operation);
    return std::max(bytes[0], bytes[1]) / bandwidth;
}

void last(ncclComm& comm, double seconds) {
    Lock lock(mutex);
    changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return comm.stopped; });
}

// The knob SIMCOLL_DOUBLE_FAULT=n: this process's n-th operation makes an illegal memory access instead.
bool faults(const std::vector<Operation>& operations) {
    static std::atomic<long> done{0};
    long before = done.fetch_add(static_cast<long>(operations.size()));
    auto wanted = static_cast<long>(knob("SIMCOLL_DOUBLE_FAULT", 0));
    if (wanted <= before || wanted > before + static_cast<long>(operations.size())) return false;
    simcollDoubleFault(cudaErrorIllegalAddress);
    return true;
}

void perform(const std::vector<Operation>& operations) {
    ncclComm& comm = *operations.front().comm;
    await_ready(comm);
    if (comm.stopped || faults(operations)) return;
    for (const Operation& operation : operations) {
        if (operation.verb < Send && !collect(operation)) return;
    }
    double bandwidth = knob("SIMCOLL_DOUBLE_BANDWIDTH", 0);
    if (pair_up(operations) && bandwidth > 0) last(comm, seconds_of(operations, bandwidth));
}

void run_batch(void* data) {
    auto* batch = static_cast<Batch*>(data);
    if (batch->captured) return perform(batch->operations);
    ncclComm& comm = *batch->operations.front().comm;
    {
        Lock lock(mutex);
        changed.wait(lock, [&] { return comm.stopped || comm.finished == batch->turn; });
    }
    perform(batch->operations);
    delete batch;
    Lock lock(mutex);
    ++comm.finished;
    changed.notify_all();
}

ncclResult_t start(std::vector<Operation> operations) {
    cudaStream_t stream = operations.front().stream;
    ncclComm& comm = *operations.front().comm;
    cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(stream, &status);
    auto* batch = new Batch{std::move(operations), status != cudaStreamCaptureStatusNone, 0};
    if (!batch->captured) {
        Lock lock(mutex);
        batch->turn = comm.issued++;
    }
    return cudaLaunchHostFunc(stream, run_batch, batch) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// The operations of a group run together for each communicator and stream.
ncclResult_t launch(std::vector<Operation> operations) {
    std::vector<std::vector<Operation>> batches;
    for (Operation& operation : operations) {
        auto same = [&](const std::vector<Operation>& batch) {
            return batch.front().comm == operation.comm && batch.front().stream == operation.stream;
        };
        auto found = std::find_if(batches.begin(), batches.end(), same);
        if (found == batches.end()) found = batches.insert(batches.end(), std::vector<Operation>());
        found->push_back(operation);
    }
    for (auto& batch : batches) {
        if (ncclResult_t result = start(std::move(batch))) return result;
    }
    return ncclSuccess;
}

ncclResult_t submit(Verb verb, const void* from, void* to, size_t count, ncclDataType_t type, int reduction, int root,
                    ncclComm_t comm, cudaStream_t stream) {
    if (comm == nullptr || type < 0 || type >= ncclNumTypes) return ncclInvalidArgument;
    await_ready(*comm);
    if (comm->stopped || comm->ending) return ncclInvalidUsage;
    if (root < 0 || root >= comm->size) return ncclInvalidArgument;
    Operation operation{verb, from, to, count, type, reduction, root, comm, stream, {}};
    if (reduction >= ncclNumOps) operation.scale = comm->scales.at(reduction);
    if (depth == 0) return launch({operation});
    grouped.push_back(operation);
    return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* made_op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
    Lock lock(mutex);
    Scale scale{type, 0, scalar};
    if (residence == ncclScalarHostImmediate) scale = {type, scale_of(scale), nullptr};
    int number = comm->scales.empty() ? static_cast<int>(ncclNumOps) : comm->scales.rbegin()->first + 1;
    comm->scales[number] = scale;
    return *made_op = static_cast<ncclRedOp_t>(number), ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    Lock lock(mutex);
    return comm->scales.erase(op) ? ncclSuccess : ncclInvalidArgument;
}

// --- groups

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
    if (depth == 0) return ncclInvalidUsage;
    if (--depth > 0 || grouped.empty()) return ncclSuccess;
    std::vector<Operation> operations;
    operations.swap(grouped);
    return launch(std::move(operations));
}

// Ten microseconds and the bytes over SIMCOLL_DOUBLE_BANDWIDTH (100 GB/s where it is not set): a stated figure, no model.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
    if (depth == 0) return ncclInvalidUsage;
    if (--depth > 0) return ncclSuccess;
    double bandwidth = knob("SIMCOLL_DOUBLE_BANDWIDTH", 100e9);
    if (info != nullptr) info->estimatedTime = static_cast<float>(10 + 1e6 * seconds_of(grouped, bandwidth));
    return grouped.clear(), ncclSuccess;
}

// --- operations

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(AllReduce, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return submit(Reduce, from, to, count, type, op, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return submit(ReduceScatter, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(AllGather, from, to, count, type, 0, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(Broadcast, from, to, count, type, 0, root, comm, stream);
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return submit(Broadcast, buffer, buffer, count, type, 0, root, comm, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return submit(Send, from, nullptr, count, type, 0, peer, comm, stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return submit(Recv, nullptr, to, count, type, 0, peer, comm, stream);
}

#if NCCL_VERSION_CODE >= 22800
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return submit(AllToAll, from, to, count, type, 0, 0, comm, stream);
}

ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return submit(Gather, from, to, count, type, 0, root, comm, stream);
}

ncclResult_t ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
    return submit(Scatter, from, to, count, type, 0, root, comm, stream);
}
#endif

}  // extern "C"
