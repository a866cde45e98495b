"""What a rank writes down of itself: its calls, the line of the program that made them, groups, failures, dumps.

The files lie in ``simcoll.blackbox``; here is what goes into them. Other ranks are not asked here.
"""
