"""Proves that all ranks of a group make the same call, before it runs: the core of ``detail`` mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import MappingProxyType

from simcoll.core.native import native
from simcoll.core.record import Group, Record, State, source_document, source_from
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.proof.side_channel import ChannelBrokenError, SideChannel
from simcoll.proof.store import PolledStore
from simcoll.recorder.arguments import timeout_of
from simcoll.recorder.recorder import Entry, Prepared, Written
from simcoll.spec.call import Call, MalformedCallError
from simcoll.spec.checksum import joined_word, positioned, statement_digest
from simcoll.spec.collectives import spec_of
from simcoll.spec.ddp_model import from_json, to_json
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.agreement.ddp_models import compare_models, unnamed_mismatch
from simcoll.verifier.agreement.own_memory import MemoryFault, memory_faults
from simcoll.verifier.findings.error_text import mismatch_text, missing_text
from simcoll.verifier.findings.finding import Finding, errors_of
from simcoll.verifier.program_text.parting import ran_nothing, with_partings

_SHORTEST = timedelta(milliseconds=1)

_MOST_LISTED = 200_000
"""Parameters that the ranks of a group together send each other by name; of larger models they compare the digests."""

_MASK = (1 << 64) - 1

_UNSOUND = 0x9E3779B97F4A7C15
"""The addend of a faulty call's word: an odd number, so that no number of ranks adds up to zero."""

_NO_DOCUMENTS: Mapping[int, object] = MappingProxyType({})


class Prover:
    """Proves the calls of one group, in order. Each rank calls :meth:`prove` for each call."""

    def __init__(self, group: Group, group_rank: int, store: PolledStore, timeout: Callable[[], timedelta]) -> None:
        self._group = group
        self._rank = group_rank
        self._timeout = timeout
        self._channel = SideChannel(store, group_rank, len(group.ranks), timeout) if len(group.ranks) > 1 else None
        self._tolerance = Tolerance(group_rank, len(group.ranks))
        compiled = native("simcoll.proof._words")
        self._positioned: Callable[[int, int], int] = positioned if compiled is None else compiled.positioned

    def prove(
        self, entry: Entry, timeout: timedelta | None = None, *, first_absent_only: bool = False, place: str = ""
    ) -> None:
        """Return when all ranks make this call; raises :class:`CollectiveMismatchError` if they do not.

        Calls are proved in the order in which the group makes them. ``first_absent_only`` is for the wording where
        ranks do not come (:func:`~simcoll.verifier.findings.error_text.missing_text`); ``place`` names where the ranks
        exchange their calls if they differ (by default the call's sequence number).
        """
        if self._channel is None:
            if entry.prepared.flows != 0:
                self._judge(entry, {0: entry.record()})
            return
        claimed = 0 if entry.claim is None else entry.claim.digest
        word = self._positioned(self._tolerance.word(entry.prepared, claimed), entry.sequence)
        if entry.fault is not None:
            word = (word + _UNSOUND) & _MASK
        if self._total(self._channel, entry, word, timeout, first_absent_only) != 0:
            self._judge(entry, *self._exchanged(self._channel, place or str(entry.sequence), document_of(entry)))

    def prove_usual(self, written: Written, options: object, entry_of: Callable[[Written], Entry]) -> None:
        """As :meth:`prove`, for a call that went the quick way, whose ``options`` may state its timeout.

        Its entry is made where there is something to say of it.
        """
        channel, prepared, sequence = self._channel, written[0], written[1]
        if channel is None or prepared.statement in self._tolerance.counts_as:
            self.prove(entry_of(written), timeout_of(options))
            return
        word, limit = self._positioned(prepared.word, sequence), partial(self._stated, options)
        try:
            total = channel.total(word, limit)
        except ChannelBrokenError as error:
            raise self._missing(entry_of(written), error, timeout_of(options)) from None
        if total != 0:
            entry = entry_of(written)
            self._judge(entry, *self._exchanged(channel, str(sequence), document_of(entry)))

    def prove_run(self, run: Sequence[Prepared], first: Entry, begin: Callable[[], Entry]) -> None:
        """As :meth:`prove`, for calls that are launched all at once: with one sum, where all ranks launch as many.

        ``first`` is the first call of the run; ``begin`` writes the next one down and gives it its place, once those
        before are proved: calls after one that differs take no place on any rank.
        """
        entry, proved = first, self._prove_together(run, first, begin)
        while proved < len(run):
            entry = begin()
            proved += self._prove_together(run[proved:], entry, begin)

    def _prove_together(self, run: Sequence[Prepared], first: Entry, begin: Callable[[], Entry]) -> int:
        """Prove calls from the first on, as many as the ranks have in common; returns their number."""
        if self._channel is None:
            self.prove(first)
            return 1
        words = (self._tolerance.word(prepared) for prepared in run)
        word = sum(positioned(word, place) for place, word in enumerate(words, first.sequence))
        if self._total(self._channel, first, word & _MASK, None) == 0:
            for _ in run[1:]:
                begin()
            return len(run)
        mine = {**document_of(first), "run": len(run)}
        records, documents = self._exchanged(self._channel, str(first.sequence), mine)
        common = min(_run_length(document) for document in documents.values())
        if common == 1:
            self._judge(first, records, documents)
            return 1
        for number in range(common):
            entry = begin() if number else first
            self.prove(entry, place=f"{entry.sequence}/alone")
        return common

    def _total(
        self,
        channel: SideChannel,
        entry: Entry,
        word: int,
        timeout: timedelta | None,
        first_absent_only: bool = False,
    ) -> int:
        try:
            return channel.total(word, partial(self._limit, timeout))
        except ChannelBrokenError as error:
            raise self._missing(entry, error, timeout, first_absent_only) from None

    def _limit(self, timeout: timedelta | None) -> timedelta:
        # A timeout of zero means "none at all" to a store.
        return max(self._timeout() if timeout is None else timeout, _SHORTEST)

    def _stated(self, options: object) -> timedelta:
        return self._limit(timeout_of(options))

    def _exchanged(
        self, channel: SideChannel, place: str, document: Mapping[str, object]
    ) -> tuple[dict[int, Record], dict[int, object]]:
        """The calls of all ranks, this one's among them, as records and as documents."""
        documents = channel.exchange(place, document)
        return {rank: record_of(self._group, found) for rank, found in documents.items()}, documents

    def _judge(self, entry: Entry, records: dict[int, Record], documents: Mapping[int, object] = _NO_DOCUMENTS) -> None:
        findings: Sequence[Finding] = compare(self._group, records, strict=True)
        faults = {rank: MemoryFault.from_json(document.get("unsound")) for rank, document in _objects(documents)}
        known = {rank: one for rank, one in faults.items() if one is not None}
        findings = [*findings, *memory_faults(self._group, records, known)]
        if not findings:
            findings = self._models(entry.sequence, records, documents)
        if errors_of(findings):
            findings = with_partings(findings, ran_nothing)
            entry.finished(State.REJECTED)
            raise CollectiveMismatchError(mismatch_text(self._group, records, self._rank, findings), tuple(findings))
        self._tolerance.accept(records)

    def _models(self, sequence: int, records: Mapping[int, Record], documents: Mapping[int, object]) -> list[Finding]:
        """Returns the mismatch, if any, of the models that DistributedDataParallel begins to check with this call."""
        ranks = self._group.ranks
        sources = {ranks[rank]: record.source for rank, record in records.items()}
        models = {ranks[rank]: document["model"] for rank, document in _objects(documents) if "model" in document}
        digests = {rank: model.get("digest") for rank, model in _objects(models)}
        listed = {rank: from_json(model.get("parameters")) for rank, model in _objects(models)}
        known = {rank: parameters for rank, parameters in listed.items() if parameters is not None}
        if len(known) == len(digests) and known:
            found = compare_models(self._group, known, sources, sequence)
        else:
            found = unnamed_mismatch(self._group, digests, sources, sequence)
        return [] if found is None else [found]

    def _missing(
        self, entry: Entry, error: ChannelBrokenError, timeout: timedelta | None, first_only: bool = False
    ) -> MissingRankError:
        """Returns the error of a call to which ranks did not come."""
        entry.finished(State.FAILED)
        asked = self._timeout() if timeout is None else timeout
        milliseconds = round(asked.total_seconds() * 1000)
        waited = round(error.waited.total_seconds() * 1000)
        text = missing_text(
            self._group,
            self._rank,
            error.absent,
            milliseconds,
            entry.record(),
            first_only=first_only,
            waited_ms=waited,
        )
        return MissingRankError(text, tuple(self._group.ranks[rank] for rank in error.absent), waited)

    def close(self) -> None:
        """Let the side channel go."""
        if self._channel is not None:
            self._channel.close()


class Tolerance:
    """Statements that count as one, because ranks were found to differ in them in a way that does no harm."""

    def __init__(self, group_rank: int, group_size: int) -> None:
        self._rank = group_rank
        self._size = group_size
        self.counts_as: dict[int, int] = {}
        """The statement that stands for each of those that count as one, by their digests."""

    def word(self, prepared: Prepared, claimed: int = 0) -> int:
        """The word of a call, by the class of its statement; ``claimed`` is the digest of a model stated with it."""
        digest = self.counts_as.get(prepared.statement)
        if digest is None and not claimed:
            return prepared.word
        counted = prepared.statement if digest is None else digest
        return joined_word(counted ^ claimed, prepared.flows, self._rank, self._size)

    def accept(self, records: Mapping[int, Record]) -> None:
        """From now on these statements count as one; every rank draws the same conclusion from the same records."""
        stated = {
            statement_digest(spec_of(record.call).statement(record.call, rank, self._size))
            for rank, record in records.items()
        }
        merged = {self.counts_as.get(digest, digest) for digest in stated}
        common = min(merged)
        members = [digest for digest, counts_as in self.counts_as.items() if counts_as in merged]
        self.counts_as.update(dict.fromkeys([*stated, *members], common))


def document_of(entry: Entry) -> dict[str, object]:
    """Returns the document of its call that a rank sends the others; JSON values, read back by :func:`record_of`."""
    document: dict[str, object] = {
        "sequence": entry.sequence,
        "asynchronous": entry.asynchronous,
        "call": entry.call.to_json(),
        "source": source_document(entry.source),
    }
    if entry.fault is not None:
        document["unsound"] = entry.fault.to_json()
    if (claim := entry.claim) is not None:
        model: dict[str, object] = {"digest": claim.digest}
        if claim.count * len(entry.log.group.ranks) <= _MOST_LISTED:
            model["parameters"] = to_json(claim.parameters)
        document["model"] = model
    return document


def _run_length(document: object) -> int:
    """Returns the number of calls a rank is about to launch at once; 1 where it states none, as for a single call."""
    length = document.get("run", 1) if isinstance(document, dict) else 1
    return length if type(length) is int and length > 0 else 1


def _objects(documents: Mapping[int, object]) -> list[tuple[int, dict[str, object]]]:
    return [(rank, document) for rank, document in documents.items() if isinstance(document, dict)]


def record_of(group: Group, document: object) -> Record:
    """A peer's call from its document; raises :class:`~simcoll.spec.call.MalformedCallError`."""
    if not isinstance(document, dict):
        raise MalformedCallError(f"a peer sent {document!r:.80}, expected its call")
    source = source_from(document["source"])
    call = Call.from_json(document["call"])
    return Record(group.name, int(document["sequence"]), call, source, asynchronous=bool(document["asynchronous"]))
