// A TEST DOUBLE of NCCL: messages between two ranks. See communicator.h.
#include "communicator.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

std::mutex& mutex = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;

namespace {

template <typename Move>
bool all_of(size_t size, Move move) {
    for (size_t at = 0; at < size;) {
        ssize_t done = move(at, size - at);
        if (done == 0 || (done < 0 && errno != EINTR)) return false;
        at += done > 0 ? static_cast<size_t>(done) : 0;
    }
    return true;
}

void arrive(Peer& peer, int channel, Message message) {
    Lock lock(mutex);
    peer.inbox[channel].push_back(std::move(message));
    changed.notify_all();
}

bool hang(ncclComm& comm) {
    Lock lock(mutex);
    changed.wait(lock, [&] { return comm.stopped; });
    return false;
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

}  // namespace

bool write_all(int socket, const void* from, size_t size) {
    auto* bytes = static_cast<const char*>(from);
    return all_of(size, [=](size_t at, size_t left) { return send(socket, bytes + at, left, MSG_NOSIGNAL); });
}

bool read_all(int socket, void* to, size_t size) {
    auto* bytes = static_cast<char*>(to);
    return all_of(size, [=](size_t at, size_t left) { return recv(socket, bytes + at, left, 0); });
}

void post(ncclComm& comm, int to, Channel channel, int verb, const void* body, size_t size) {
    Peer& peer = comm.peers[to];
    auto* bytes = static_cast<const char*>(body);
    if (to == comm.rank) return arrive(peer, channel, {verb, Bytes(bytes, bytes + size)});
    std::lock_guard<std::mutex> one(peer.writing);
    Header header{channel, verb, size};
    if (write_all(peer.socket, &header, sizeof header)) write_all(peer.socket, body, size);
}

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

bool expect(ncclComm& comm, int from, Channel channel, int verb, size_t size, Bytes& body) {
    Message message;
    if (!next(comm, from, channel, message)) return false;
    body = std::move(message.body);
    if (message.verb == verb && body.size() == size) return true;
    const char* said = "simcoll's NCCL double: rank %d does operation %d with %zu bytes, its peer %d %d with %zu; it hangs\n";
    if (traced()) std::fprintf(stderr, said, comm.rank, verb, size, from, message.verb, body.size());
    return hang(comm);
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
