"""The verdict on a job: traces in, a report out.

``postmortem`` judges a job by laws between its ranks' calls, ``explanations`` is the ordered list of what can have gone
wrong. Reading files lives in ``simcoll.blackbox``, drawing in ``simcoll.reports``.
"""
