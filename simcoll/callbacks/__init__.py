"""Callbacks for training frameworks, one module a framework: they mark training steps by ``simcoll.step``.

A module here needs its framework, and is imported by programs only. Loops without callbacks, such as those of
Accelerate and torchtitan, take ``simcoll.mark_steps``.
"""
