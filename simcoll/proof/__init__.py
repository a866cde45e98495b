"""The protocols by which ranks compare their calls: the 64-bit word, rounds in the background, send and receive.

The side channel and its connections live here too. ``simcoll.recorder`` reads a call; ``simcoll.wrapper`` acts on the
result.

The user's group is never used for a proof, so that a proof that fails leaves it usable: all ranks raise, and the next
call that matches works. The side channel is sockets that the calling thread drives itself: a rank holds log2 N of them,
and no thread stands between the call and the wire. A second Gloo group would cost about three times as much.

In ``check`` mode an error is raised once on each rank: in the main thread or in the one that made the call, at its next
call or while it waits, since a wait that may never end looks up twice a second. From then on the process's groups are
kept alive for good, because freeing a Gloo group waits for calls that will not end. Ends of a p2p channel that differ
without harm, such as bytes for numbers, count as equal from there on. A message is posted before its launch, so that
whatever follows from the launch is compared after it; comparing takes about 5 us a message.
"""
