"""Options from signatures and dataclass fields, and how results are printed.

Names, types and defaults are those of the code, the help is its docstring's: nothing is typed twice.
"""

import inspect
import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

DECLARED = ("device", "rail", "power_mode")  # what readings belong to
DEVICES = ("cpu", "cuda")
_ENTRY = re.compile(r"(\w+(?:, \w+)*) : (.+)")  # numpydoc: names and type


def documented(target: Any) -> dict[str, tuple[str, str]]:
    """Return type slot and text of each parameter or attribute in a numpydoc docstring, by name."""
    entries: dict[str, tuple[str, str]] = {}
    names: list[str] = []
    for line in (inspect.getdoc(target) or "").splitlines():
        if match := _ENTRY.fullmatch(line):
            names = match[1].split(", ")
            entries |= dict.fromkeys(names, (match[2], ""))
        elif line.startswith("    ") and names:
            slot, text = entries[names[0]]
            entries |= dict.fromkeys(names, (slot, f"{text} {line.strip()}".strip()))
        else:
            names = []
    return entries


def add(
    parser: ArgumentParser,
    target: Any,
    names: Sequence[str],
    flags: Mapping[str, str] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Add an option for each of some parameters of a function or fields of a dataclass.

    Parameters
    ----------
    parser : ArgumentParser
    target : function or dataclass
    names : sequence of str
        The parsed values have these names.
    flags : mapping, optional
        Where the flag is another than the name with dashes.
    choices : mapping, optional
        What a value may be.
    """
    signature, hints, texts = inspect.signature(target), get_type_hints(target), documented(target)
    for name in names:
        flag = (flags or {}).get(name, "--" + name.replace("_", "-"))
        slot, text = texts.get(name, ("", " "))
        text = text[:1].lower() + text[1:].rstrip(".")
        kind = next(kind for kind in get_args(hints[name]) or (hints[name],) if kind is not type(None))
        if kind is bool:
            parser.add_argument(flag, dest=name, action="store_true", help=text)
            continue
        default, chosen = signature.parameters[name].default, (choices or {}).get(name)
        must = default is inspect.Parameter.empty
        unit = slot if 0 < len(slot) < 5 and slot not in ("1", "int", "str") else flag[2:].replace("-", "_").upper()
        more: dict[str, Any] = {"choices": chosen} if chosen else {"metavar": unit}
        parser.add_argument(
            flag, dest=name, type=kind, default=None if must else default, required=must, help=text, **more
        )


def add_declared(parser: ArgumentParser, names: Sequence[str] = DECLARED) -> None:
    """Add the options of what readings belong to."""
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", help="declared where the data do not say")


def taken(options: Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the parsed values of some names."""
    return {name: getattr(options, name) for name in names}


def cell(value: Any) -> str:
    """Return a value as people read it."""
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result as a JSON object, or its values in lines, those of nested objects too."""
    if as_json:
        print(json.dumps(result))
        return
    lines = {key: cell(value) for key, value in _flat(result)}
    width = max(map(len, lines))
    print("\n".join(f"{key:{width}}  {value}" for key, value in lines.items()))


def _flat(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    parts = [(_flat(value) if isinstance(value, Mapping) else [(key, value)]) for key, value in result.items()]
    return [item for part in parts for item in part]
