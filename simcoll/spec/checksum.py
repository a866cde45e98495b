"""The one-word check: a call folded into 64 bits so that a group's words add up to zero if every law holds.

With N ranks, d_i the digest of rank i's statement and H a hash that is the same in every process,

    word_i = H(i+1, d_i) - H(i, d_i) + sum over j of H(i, j, sends_i[j]) - sum over j of H(j, i, receives_i[j])

modulo 2^64, ranks modulo N. The first two terms telescope to zero exactly when all digests are equal, the last two
when every flow that is sent is expected; anything else leaves zero with probability of about 2^-64. H is built from
the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) over a
BLAKE2b digest. It guards against mistakes, not against an adversary.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.flows import Flows, SparseFlow
from simcoll.spec.table import Statement

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_RANK_KEY = 0xD1B54A32D192ED03
_SENDER_KEY = 0x8CB92BA72F3D8DD7
_RECEIVER_KEY = 0xABC98388FB8FAC03
_SEQUENCE_KEY = 0x2545F4914F6CDD1D


def word(call: Call, group_rank: int, group_size: int) -> int:
    """The word of one rank's call, 0 <= word < 2^64; it depends on the call alone, so it may be cached."""
    spec = spec_of(call)
    digest = statement_digest(spec.statement(call, group_rank, group_size))
    flows = flow_word(spec.flows(call, group_rank, group_size), group_rank)
    return joined_word(digest, flows, group_rank, group_size)


def joined_word(digest: int, flows: int, group_rank: int, group_size: int) -> int:
    """The word of a call from the digest of its statement and the part that its flows make."""
    return (digest_word(digest, group_rank, group_size) + flows) & _MASK


def statement_digest(statement: Statement) -> int:
    """64 bits that stand for a statement, equal in every process and on every machine."""
    return _digest(statement)


def _digest(stated: object) -> int:
    return int.from_bytes(blake2b(repr(stated).encode(), digest_size=8, key=b"simcoll").digest(), "little")


def digest_word(digest: int, group_rank: int, group_size: int) -> int:
    """The part of a word that proves agreement: zero in sum over the group when all digests are equal."""
    following = (group_rank + 1) % group_size
    return (_hash_rank(following, digest) - _hash_rank(group_rank, digest)) & _MASK


def flow_word(flows: Flows | None, group_rank: int) -> int:
    """The part of a word that proves the flows: zero in sum over the group when every flow is expected."""
    if flows is None:
        return 0
    sent = _hash_flows(group_rank, flows.sends, outgoing=True)
    expected = _hash_flows(group_rank, flows.receives, outgoing=False)
    return (sent - expected) & _MASK


def positioned(call_word: int, sequence: int) -> int:
    """The word at its place in the group: times an odd multiplier that depends on the sequence number."""
    return (call_word * (_mix((sequence * _SEQUENCE_KEY) & _MASK) | 1)) & _MASK


def message_digest(call: Call) -> int:
    """64 bits that stand for the contents of a send or receive: equal at both ends where they state the same."""
    buffers = call.inputs or call.outputs
    elements = sum(buffer.elements for buffer in buffers)
    # An empty message cannot be read wrongly: its element type does not count.
    dtypes = sorted({buffer.dtype for buffer in buffers}) if elements else []
    return _digest((dtypes, elements))


def chained(digest: int, word: int) -> int:
    """A running digest with one word more."""
    return _mix(digest ^ word)


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hash_rank(rank: int, digest: int) -> int:
    return _mix(_mix((rank * _RANK_KEY) & _MASK) ^ digest)


def _hash_flows(group_rank: int, flow: SparseFlow, *, outgoing: bool) -> int:
    """The sum of H(sender, receiver, elements) over one rank's flows; an empty flow counts as none."""
    peers = np.fromiter((peer & _MASK for peer in flow), np.uint64, len(flow))
    elements = np.fromiter((count & _MASK for count in flow.values()), np.uint64, len(flow))
    mine = np.full_like(peers, group_rank)
    sender, receiver = (mine, peers) if outgoing else (peers, mine)
    with np.errstate(over="ignore"):
        hashed = _mix_array(_mix_array(sender * np.uint64(_SENDER_KEY)) ^ (receiver * np.uint64(_RECEIVER_KEY)))
        hashed = _mix_array(hashed ^ elements)
        return int(hashed[elements != 0].sum(dtype=np.uint64))


def _mix_array(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """:func:`_mix` over an array."""
    value = value + np.uint64(_GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
