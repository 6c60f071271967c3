"""How commands print: one JSON value, or lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def cell(value: Any) -> str:
    """Return a value as people read it."""
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result as a JSON object, or its values in lines, those of nested objects too."""
    if as_json:
        print(json.dumps(result))
        return
    lines = dict(_flat(result))
    width = max(map(len, lines))
    print("\n".join(f"{key:{width}}  {cell(value)}" for key, value in lines.items()))


def _flat(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        item
        for key, value in result.items()
        for item in (_flat(value) if isinstance(value, Mapping) else [(key, value)])
    ]
