// A TEST DOUBLE of NCCL: real results among processes of one machine, over sockets, on the streams of cudart.cpp.
//
// Every pair of ranks of a communicator has one socket, named by the unique id. An operation runs on its stream's thread
// and is made of messages. A collective ends nowhere before every rank has entered it (on a GPU the root of a small
// broadcast may leave earlier), and a send ends when its receive has taken the bytes. What does not match hangs, as it
// mostly does under NCCL. Reductions go in rank order, in float for the types shorter than that. Communicators are never
// freed: work that was aborted may still name them.
#include "double.h"

#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Lock = std::unique_lock<std::mutex>;
using Bytes = std::vector<char>;

enum Verb : int { AllReduce, Reduce, ReduceScatter, AllGather, Broadcast, AllToAll, Gather, Scatter, Send, Recv };

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

enum Channel : int { Collective, PointToPoint, Taken, Bootstrap, Farewell, Channels };

struct Header {
    int channel, verb;
    size_t size;
};

struct Message {
    int verb;
    Bytes body;
};

struct Peer {
    int socket = -1;
    std::mutex writing;
    std::deque<Message> inbox[Channels];
};

struct Scale {  // of a PreMulSum: a value, or where it will lie when the operation runs
    ncclDataType_t type;
    double value;
    const void* place;
};

// One lock and one condition for everything, as in cudart.cpp.
std::mutex& mutex = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;

}  // namespace

struct ncclComm {
    std::string id;
    int rank = 0, size = 0, device = 0;
    bool blocking = true;
    ncclResult_t state = ncclInProgress;
    bool stopped = false;  // no operation runs any more
    bool aborted = false;  // and no rank answers either
    bool ending = false;
    // Batches run in the order in which they were issued, whatever their streams: NCCL sees to that as well.
    long issued = 0, finished = 0;
    int children = 0;  // splits and shrinks so far: every rank counts alike, which names the child
    std::deque<Peer> peers;
    std::map<int, Scale> scales;
};

namespace {

struct Operation {
    Verb verb;
    const void* from;
    void* to;
    size_t count;
    ncclDataType_t type;
    int reduction;
    int root;  // or the peer
    ncclComm_t comm;
    cudaStream_t stream;
    Scale scale;
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

// --- messages

template <typename Move>
bool all_of(size_t size, Move move) {
    for (size_t at = 0; at < size;) {
        ssize_t done = move(at, size - at);
        if (done == 0 || (done < 0 && errno != EINTR)) return false;
        at += done > 0 ? static_cast<size_t>(done) : 0;
    }
    return true;
}

bool write_all(int socket, const void* from, size_t size) {
    auto* bytes = static_cast<const char*>(from);
    return all_of(size, [=](size_t at, size_t left) { return send(socket, bytes + at, left, MSG_NOSIGNAL); });
}

bool read_all(int socket, void* to, size_t size) {
    auto* bytes = static_cast<char*>(to);
    return all_of(size, [=](size_t at, size_t left) { return recv(socket, bytes + at, left, 0); });
}

void arrive(Peer& peer, int channel, Message message) {
    Lock lock(mutex);
    peer.inbox[channel].push_back(std::move(message));
    changed.notify_all();
}

void post(ncclComm& comm, int to, Channel channel, int verb, const void* body, size_t size) {
    Peer& peer = comm.peers[to];
    auto* bytes = static_cast<const char*>(body);
    if (to == comm.rank) return arrive(peer, channel, {verb, Bytes(bytes, bytes + size)});
    std::lock_guard<std::mutex> one(peer.writing);
    Header header{channel, verb, size};
    if (write_all(peer.socket, &header, sizeof header)) write_all(peer.socket, body, size);
}

// The next message of that peer; false where the communicator was stopped (for bootstrap: aborted) instead.
bool next(ncclComm& comm, int from, Channel channel, Message& message) {
    Lock lock(mutex);
    auto& inbox = comm.peers[from].inbox[channel];
    const bool& over = channel == Bootstrap ? comm.aborted : comm.stopped;
    changed.wait(lock, [&] { return over || !inbox.empty(); });
    if (over) return false;
    message = std::move(inbox.front());
    inbox.pop_front();
    return true;
}

bool hang(ncclComm& comm) {
    Lock lock(mutex);
    changed.wait(lock, [&] { return comm.stopped; });
    return false;
}

bool expect(ncclComm& comm, int from, Channel channel, int verb, size_t size, Bytes& body) {
    Message message;
    if (!next(comm, from, channel, message)) return false;
    body = std::move(message.body);
    if (message.verb == verb && body.size() == size) return true;
    const char* said = "simcoll's NCCL double: rank %d does operation %d with %zu bytes, its peer %d %d with %zu; it hangs\n";
    if (traced()) std::fprintf(stderr, said, comm.rank, verb, size, from, message.verb, body.size());
    return hang(comm);
}

void lose(ncclComm& comm, Peer& peer) {
    std::lock_guard<std::mutex> one(peer.writing);
    Lock lock(mutex);
    close(peer.socket);
    peer.socket = -1;
    bool told = knob("SIMCOLL_DOUBLE_PEER_LOSS", 0) != 0 && !comm.ending && peer.inbox[Farewell].empty();
    if (told && comm.state == ncclSuccess) comm.state = ncclRemoteError;
    changed.notify_all();
}

void listen_to(ncclComm& comm, int from) {
    Peer& peer = comm.peers[from];
    Header header;
    while (read_all(peer.socket, &header, sizeof header)) {
        Message message{header.verb, Bytes(header.size)};
        if (!read_all(peer.socket, message.body.data(), header.size)) break;
        arrive(peer, header.channel, std::move(message));
    }
    lose(comm, peer);
}

// --- communicators

std::string hexadecimal(size_t number) {
    char text[17];
    std::snprintf(text, sizeof text, "%016zx", number);
    return text;
}

socklen_t address_of(const ncclComm& comm, int rank, sockaddr_un& address) {
    std::string name = "simcoll-double-" + comm.id + "-" + std::to_string(rank);
    address = {};
    address.sun_family = AF_UNIX;  // the name's leading zero byte makes it abstract: no file
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool gave_up(ncclComm& comm) {
    Lock lock(mutex);
    return comm.aborted;
}

// Waits until that rank listens.
bool connect_to(ncclComm& comm, int to) {
    sockaddr_un address;
    socklen_t size = address_of(comm, to, address);
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(made, reinterpret_cast<sockaddr*>(&address), size) != 0) {
        if (gave_up(comm)) return close(made), false;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    comm.peers[to].socket = made;
    return write_all(made, &comm.rank, sizeof comm.rank);
}

bool accept_one(ncclComm& comm, int listener) {
    pollfd waiting{listener, POLLIN, 0};
    while (poll(&waiting, 1, 20) <= 0) {
        if (gave_up(comm)) return false;
    }
    int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int from = -1;
    if (!read_all(made, &from, sizeof from)) return false;
    comm.peers[from].socket = made;
    return true;
}

// Each rank connects to those below it and accepts those above it: all are there, or it does not return.
ncclResult_t meet(ncclComm& comm) {
    comm.peers.resize(static_cast<size_t>(comm.size));
    sockaddr_un address;
    socklen_t size = address_of(comm, comm.rank, address);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool met = bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener, comm.size) == 0;
    for (int peer = 0; met && peer < comm.rank; ++peer) met = connect_to(comm, peer);
    for (int peer = comm.rank + 1; met && peer < comm.size; ++peer) met = accept_one(comm, listener);
    close(listener);
    if (!met) return ncclSystemError;
    for (int peer = 0; peer < comm.size; ++peer) {
        if (peer != comm.rank) std::thread(listen_to, std::ref(comm), peer).detach();
    }
    return ncclSuccess;
}

void settle(ncclComm& comm, ncclResult_t result) {
    Lock lock(mutex);
    comm.state = result;
    changed.notify_all();
}

// Runs what makes a communicator: at once, or beside the caller where its configuration says that it does not block.
template <typename Make>
ncclResult_t form(ncclComm_t comm, ncclComm_t* published, Make make) {
    *published = comm;
    cudaGetDevice(&comm->device);
    if (comm->blocking) {
        ncclResult_t result = make();
        return settle(*comm, result), result;
    }
    std::thread([comm, make] { settle(*comm, make()); }).detach();
    return ncclInProgress;
}

ncclComm_t made(const std::string& id, int rank, int size, const ncclConfig_t* config, bool otherwise) {
    auto* comm = new ncclComm;
    comm->id = id;
    comm->rank = rank;
    comm->size = size;
    comm->blocking = config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : otherwise;
    return comm;
}

std::string child_of(ncclComm& parent, const std::string& what) {
    return hexadecimal(std::hash<std::string>()(parent.id + "/" + std::to_string(parent.children++) + "/" + what));
}

struct Place {
    int color, key;
};

// Gathers every rank's colour and key, and finds this rank's place among those of its colour.
ncclResult_t join_split(ncclComm& parent, ncclComm& child, Place mine) {
    std::vector<std::pair<int, int>> members;  // key, parent rank
    for (int peer = 0; peer < parent.size; ++peer) {
        Message message;
        if (!next(parent, peer, Bootstrap, message)) return ncclSystemError;
        Place place;
        std::memcpy(&place, message.body.data(), sizeof place);
        if (place.color == mine.color) members.emplace_back(place.key, peer);
    }
    std::sort(members.begin(), members.end());
    child.size = static_cast<int>(members.size());
    auto self = std::find(members.begin(), members.end(), std::make_pair(mine.key, parent.rank));
    child.rank = static_cast<int>(self - members.begin());
    return meet(child);
}

void forget_split(ncclComm& parent) {
    Message unread;
    for (int peer = 0; peer < parent.size && next(parent, peer, Bootstrap, unread); ++peer) {
    }
}

void stop(ncclComm& comm, bool abort) {
    Lock lock(mutex);
    comm.stopped = true;
    comm.aborted = comm.aborted || abort;
    comm.ending = comm.ending || abort;
    for (Peer& peer : comm.peers) {
        if (abort && peer.socket >= 0) shutdown(peer.socket, SHUT_RDWR);
    }
    changed.notify_all();
}

void await_operations(ncclComm& comm) {
    Lock lock(mutex);
    changed.wait(lock, [&] { return comm.stopped || comm.finished == comm.issued || cudaPeekAtLastError() == cudaErrorIllegalAddress; });
}

void await_ready(ncclComm& comm) {
    Lock lock(mutex);
    changed.wait(lock, [&] { return comm.stopped || comm.state != ncclInProgress; });
}

// --- reductions

template <typename Wide>
Wide combine(Wide left, Wide right, int reduction) {
    if (reduction == ncclProd) return left * right;
    if (reduction == ncclMax) return std::max(left, right);
    if (reduction == ncclMin) return std::min(left, right);
    return left + right;
}

template <typename Element, typename Wide>
void reduce_as(const std::vector<Bytes>& parts, const Operation& operation, double scale) {
    auto ranks = static_cast<Wide>(parts.size());
    auto value = [&](size_t part, size_t at) {
        auto one = static_cast<Wide>(reinterpret_cast<const Element*>(parts[part].data())[at]);
        return operation.reduction >= ncclNumOps ? static_cast<Wide>(one * static_cast<Wide>(scale)) : one;
    };
    for (size_t at = 0; at < operation.count; ++at) {
        Wide total = value(0, at);
        for (size_t part = 1; part < parts.size(); ++part) total = combine(total, value(part, at), operation.reduction);
        if (operation.reduction == ncclAvg) total = static_cast<Wide>(total / ranks);
        static_cast<Element*>(operation.to)[at] = static_cast<Element>(total);
    }
}

double scale_of(const Scale& scale) {
    if (scale.place == nullptr) return scale.value;
    switch (scale.type) {
        case ncclFloat16: return static_cast<double>(static_cast<float>(*static_cast<const __half*>(scale.place)));
        case ncclBfloat16: return static_cast<double>(static_cast<float>(*static_cast<const __nv_bfloat16*>(scale.place)));
        case ncclFloat32: return static_cast<double>(*static_cast<const float*>(scale.place));
        default: return *static_cast<const double*>(scale.place);
    }
}

void reduce(const std::vector<Bytes>& parts, const Operation& operation) {
    double scale = scale_of(operation.scale);
    switch (operation.type) {
        case ncclInt8: return reduce_as<int8_t, int8_t>(parts, operation, scale);
        case ncclUint8: return reduce_as<uint8_t, uint8_t>(parts, operation, scale);
        case ncclInt32: return reduce_as<int32_t, int32_t>(parts, operation, scale);
        case ncclUint32: return reduce_as<uint32_t, uint32_t>(parts, operation, scale);
        case ncclInt64: return reduce_as<int64_t, int64_t>(parts, operation, scale);
        case ncclUint64: return reduce_as<uint64_t, uint64_t>(parts, operation, scale);
        case ncclFloat16: return reduce_as<__half, float>(parts, operation, scale);
        case ncclFloat32: return reduce_as<float, float>(parts, operation, scale);
        case ncclFloat64: return reduce_as<double, double>(parts, operation, scale);
        case ncclBfloat16: return reduce_as<__nv_bfloat16, float>(parts, operation, scale);
        case ncclFloat8e4m3: return reduce_as<__nv_fp8_e4m3, float>(parts, operation, scale);
        case ncclFloat8e5m2: return reduce_as<__nv_fp8_e5m2, float>(parts, operation, scale);
        default: std::abort();
    }
}

// --- operations, on their stream's thread

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

int simcollDoubleUnsupported(const char* name) {
    std::fprintf(stderr, "simcoll's NCCL double: %s is not supported\n", name);
    return ncclInvalidUsage;
}

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

const char* ncclGetErrorString(ncclResult_t result) {
    static const char* texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                  "invalid argument", "invalid usage", "remote process exited", "in progress"};
    return result >= 0 && result <= ncclInProgress ? texts[result] : "unknown result code";
}

ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
    return cudaMalloc(pointer, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

// --- making and ending communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::random_device random;
    std::memset(id, 0, sizeof *id);
    std::string text = hexadecimal((static_cast<size_t>(random()) << 32) ^ random());
    std::memcpy(id->internal, text.data(), text.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (rank < 0 || rank >= size) return ncclInvalidArgument;
    ncclComm_t one = made(std::string(id.internal), rank, size, config, true);
    return form(one, comm, [one] { return meet(*one); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
    return ncclCommInitRankConfig(comm, size, ids[0], rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
    await_ready(*comm);
    Place mine{color, key};
    for (int peer = 0; peer < comm->size; ++peer) post(*comm, peer, Bootstrap, 0, &mine, sizeof mine);
    std::string id = child_of(*comm, "split " + std::to_string(color));
    if (color == NCCL_SPLIT_NOCOLOR) return *child = nullptr, forget_split(*comm), ncclSuccess;
    ncclComm_t one = made(id, 0, 0, config, comm->blocking);
    return form(one, child, [=] { return join_split(*comm, *one, mine); });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* child, ncclConfig_t* config, int flags) {
    await_ready(*comm);
    auto below = std::count_if(excluded, excluded + count, [&](int rank) { return rank < comm->rank; });
    if (std::count(excluded, excluded + count, comm->rank) > 0) return ncclInvalidArgument;
    if (flags == NCCL_SHRINK_ABORT) stop(*comm, false);
    int rank = comm->rank - static_cast<int>(below);
    ncclComm_t one = made(child_of(*comm, "shrink"), rank, comm->size - count, config, comm->blocking);
    return form(one, child, [one] { return meet(*one); });
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) { return stop(*comm, false), ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return stop(*comm, true), ncclSuccess; }

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    await_ready(*comm);
    comm->ending = true;
    if (!comm->blocking) return ncclInProgress;
    return await_operations(*comm), ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    await_operations(*comm);
    for (int peer = 0; peer < static_cast<int>(comm->peers.size()); ++peer) {
        if (comm->peers[peer].socket >= 0 && !comm->aborted) post(*comm, peer, Farewell, 0, nullptr, 0);
    }
    return stop(*comm, true), ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    Lock lock(mutex);
    bool flushing = comm->ending && !comm->stopped && comm->finished < comm->issued;
    return *error = flushing ? ncclInProgress : comm->state, ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    return await_ready(*comm), *count = comm->size, ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    return await_ready(*comm), *rank = comm->rank, ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) { return *device = comm->device, ncclSuccess; }
ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer, size_t, void** handle) { return *handle = buffer, ncclSuccess; }
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

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
