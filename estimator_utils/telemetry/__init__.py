"""Readings of a board, the verifier's side: from whichever source `factories.open_source` opens."""
