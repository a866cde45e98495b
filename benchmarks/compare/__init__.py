"""The same faulty and correct programs under torch alone, DETAIL, Flight Recorder with torchfrtrace, and simcoll.

Every program runs on real Gloo ranks under every tool (``tools``); one rule judges the output of each (``judged``),
which is kept in the out folder, so that a reader can judge anew. The results go to ``benchmarks/data``:
``comparison.json`` (programs with planted bugs) and ``real_bugs.json`` (programs after public issue threads, for which
there are dry runs as well), from which ``docs/comparison_tables.py`` writes the tables of docs/comparisons.md. The
package is no test: it measures, and states on what.
"""
