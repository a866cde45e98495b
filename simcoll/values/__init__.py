"""Digests of fixed size, which a rank computes of its values: of what it sends in a collective and receives from it, of
the weights and optimizer states that ranks hold alike, of batches, and of activations.

They are taken of tensors and of numpy arrays, of as many calls and steps as the user asks for, behind a guard that
keeps errors from the program. Beside them stands what tells later whether a value was meant: how often gradients were
cleared, and the search for a scale of losses.

:mod:`simcoll.spec.value_laws` states the laws that the digests of calls must keep, a column of the table;
:mod:`simcoll.verifier.values` finds the ranks that broke them, and compares the rest.
"""
