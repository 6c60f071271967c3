"""Data sets: the columns they share, where each one lies, and how it is read, checked and written."""
