"""Values and tools that every other package uses: records, traces, ranges of ranks, units, harmless text, files.

Nothing here knows a collective by name, reads a black box or imports torch.
"""
