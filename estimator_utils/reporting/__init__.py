"""Notebooks: strict headless execution, figures in one style, computed captions, results."""
