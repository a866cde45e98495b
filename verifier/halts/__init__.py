"""The causes for which a job stopped or failed: waits, missing ranks, failed ranks, misuse of asynchronous calls.

``simcoll.verifier.agreement`` decides whether calls that met agree.

Where no launcher reports how the ranks ended, their records do (:mod:`simcoll.verifier.halts.inferred`). A rank is late
if another's record shows that it waited, for three seconds where a backend runs a call at once (torch takes as long to
write a dump), ten where it queues it on a device, half a minute in a black box, and if its own record goes on for as
long and shows that it neither came nor made other calls meanwhile. A rank without a record, or whose record ends
before, is named only if all others have come to a call that is still pending. Where most of a group did not come, the
ranks that came made a call too many: the majority decides, as everywhere.

A Gloo dump says of a call only that it ended (:mod:`simcoll.verifier.halts.failed_calls`): it has failed if a rank that
it needs had not come when that rank's own, later dump was written, or was held up in another call that failed. The
members of its groups are the ranks that made calls there; there may be more, so that no flows are judged. A black box
ends with its rank, at an unknown time, so that a late rank is a warning there; a rank that had ended, and a cycle of
ranks with one thread each, are proved.
"""
