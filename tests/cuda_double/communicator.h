// A TEST DOUBLE of NCCL: real results among processes of one machine, over sockets, on the streams of cudart_streams.cpp.
// This is what its parts share.
//
// Every pair of ranks of a communicator has one socket, named by the unique id. An operation runs on its stream's thread
// and is made of messages. A collective ends nowhere before every rank has entered it (on a GPU the root of a small
// broadcast may leave earlier), and a send ends when its receive has taken the bytes. What does not match hangs, as it
// mostly does under NCCL. Reductions go in rank order, in float for the types shorter than that. Communicators are never
// freed: work that was aborted may still name them.
#pragma once

#include "double.h"

#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using Lock = std::unique_lock<std::mutex>;
using Bytes = std::vector<char>;

enum Verb : int { AllReduce, Reduce, ReduceScatter, AllGather, Broadcast, AllToAll, Gather, Scatter, Send, Recv };

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

// One lock and one condition for everything, as in cudart.h.
extern std::mutex& mutex;
extern std::condition_variable& changed;

// --- messages

bool write_all(int socket, const void* from, size_t size);
bool read_all(int socket, void* to, size_t size);
void post(ncclComm& comm, int to, Channel channel, int verb, const void* body, size_t size);

// The next message of that peer; false where the communicator was stopped (for bootstrap: aborted) instead.
bool next(ncclComm& comm, int from, Channel channel, Message& message);

// The body of the next message, which must be of that verb and size: another one hangs. False once that is stopped.
bool expect(ncclComm& comm, int from, Channel channel, int verb, size_t size, Bytes& body);

// Receives whatever a peer sends, until its socket ends; a thread of its own for each peer.
void listen_to(ncclComm& comm, int from);

// --- communicators and operations

void await_ready(ncclComm& comm);
double scale_of(const Scale& scale);
void reduce(const std::vector<Bytes>& parts, const Operation& operation);
