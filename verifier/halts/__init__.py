"""Why a job stood or failed: the wait-for graph, missing ranks, failed ranks, misuse of asynchronous calls.

Whether calls that met agree is decided in ``simcoll.verifier.agreement``.
"""
