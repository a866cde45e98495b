// A TEST DOUBLE of NCCL: how communicators are made and end. See communicator.h.
#include "communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace {

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

}  // namespace

void await_ready(ncclComm& comm) {
    Lock lock(mutex);
    changed.wait(lock, [&] { return comm.stopped || comm.state != ncclInProgress; });
}

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

}  // extern "C"
