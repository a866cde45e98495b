"""Values and tools that every other package uses.

Values are records, traces and estimates; ranges of ranks, units, harmless text; versions and values that each rank has
for itself. Tools open and write files, read TOML, end processes, patch attributes, reset objects in forked children,
and classify device errors. No module knows a collective by name, reads a black box or imports torch.
"""
