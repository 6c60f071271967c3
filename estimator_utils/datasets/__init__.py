"""Data sets: what a runs table and a trace hold, where each data set lies, and how it is read, checked and written."""
