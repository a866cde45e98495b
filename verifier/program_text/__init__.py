"""What the text of the program says of a finding: the line at which ranks parted, found in the branches that it has.

Text is parsed, and never run or imported. ``simcoll.verifier.agreement`` compares what the ranks recorded.

A stack says where a rank stood. ``forks`` are the branches, loops and early exits of a function, ``ways`` the forks
between two stacks, ``parting`` the one of them that explains a finding. Where the text of a line is not known to be
what the ranks ran, nothing is said.
"""
