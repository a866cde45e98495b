"""The backends behind one small interface. Importing this package imports no torch."""
