"""Options from signatures and dataclass fields.

Names, types and defaults are those of the code, the help is its docstring's: nothing is typed twice.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

_ENTRY = re.compile(r"(\w+(?:, \w+)*) : (.+)")  # numpydoc: names and type


@dataclass(frozen=True)
class Command:
    """One command: what it takes and what it does.

    Attributes
    ----------
    name, text : str
        ``text`` says what it does.
    add_arguments : callable
        Given the command's parser; called only where the command was chosen, so it may import what it needs.
    run : callable
        Given the parsed options.
    json : bool
        It has the flag ``--json``.
    """

    name: str
    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    json: bool = True


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


def _default(target: Any, name: str) -> Any:
    """Return the default of a field or parameter; MISSING where it must be given."""
    if is_dataclass(target):
        return next(f.default for f in fields(target) if f.name == name)
    default = inspect.signature(target).parameters[name].default
    return MISSING if default is inspect.Parameter.empty else default


def add(
    parser: argparse.ArgumentParser,
    target: Any,
    names: Sequence[str],
    flags: Mapping[str, str] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Add an option for each name of a dataclass or function.

    Parameters
    ----------
    parser : ArgumentParser
    target : dataclass or function
    names : sequence of str
        Fields or parameters; the parsed values have these names.
    flags : mapping, optional
        Where the flag is another than the name with dashes.
    choices : mapping, optional
        What a value may be.
    """
    hints, texts = get_type_hints(target), documented(target)
    for name in names:
        flag = (flags or {}).get(name, "--" + name.replace("_", "-"))
        default, (slot, text) = _default(target, name), texts.get(name, ("", ""))
        kinds = [kind for kind in get_args(hints[name]) or (hints[name],) if kind is not type(None)]
        text = text[:1].lower() + text[1:].rstrip(".")
        if kinds == [bool]:
            parser.add_argument(flag, dest=name, action="store_true", help=text)
            continue
        unit = slot if slot and len(slot) < 8 and slot not in ("1", "int", "str", "float") else None
        parser.add_argument(
            flag,
            dest=name,
            type=kinds[0],
            default=None if default is MISSING else default,
            required=default is MISSING,
            metavar=None if name in (choices or {}) else unit or flag.strip("-").replace("-", "_").upper(),
            choices=(choices or {}).get(name),
            help=text or " ",
        )


def taken(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the parsed values of some names."""
    return {name: getattr(options, name) for name in names}
