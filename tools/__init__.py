"""Maintainers' tools: the fit of the virtual board, the site of the notebooks."""
