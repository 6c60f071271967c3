"""Options are those of the code: names, types, defaults and help come from a dataclass or a function."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from importlib import import_module

import pytest

from estimator_utils.cli import main as cli
from estimator_utils.cli.options import add, documented, show, taken


@dataclass(frozen=True)
class Box:
    """A box.

    Attributes
    ----------
    width_mm, depth_mm : mm
        Outer
        size.
    label : str
        What is written on it.
    n_parts : int or None
        Counted where left out.
    is_open : bool
        It has no lid.
    """

    width_mm: float
    depth_mm: float = 20.0
    label: str = "box"
    n_parts: int | None = None
    is_open: bool = False


def build(
    width_mm: float, depth_mm: float = 20.0, label: str = "box", n_parts: int | None = None, is_open: bool = False
) -> None:
    raise AssertionError("options are read off the signature, nothing is called")


build.__doc__ = Box.__doc__.replace("Attributes", "Parameters")
NAMES = [f.name for f in fields(Box)]
either = pytest.mark.parametrize("target", [Box, build])


def parser_of(target, **how) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add(parser, target, NAMES, **how)
    return parser


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions if action.dest != "help"}


@either
def test_defaults_are_those_of_the_code_and_what_has_none_must_be_given(target, capsys):
    assert taken(parser_of(target).parse_args(["--width-mm", "5"]), NAMES) == vars(Box(5.0))
    with pytest.raises(SystemExit):
        parser_of(target).parse_args([])
    assert "required: --width-mm" in capsys.readouterr().err


@either
def test_values_have_the_types_of_the_code(target, capsys):
    words = ["--width-mm", "5", "--depth-mm", "7", "--label", "8", "--n-parts", "9", "--is-open"]
    assert taken(parser_of(target).parse_args(words), NAMES) == vars(Box(5.0, 7.0, "8", 9, True))
    with pytest.raises(SystemExit):
        parser_of(target).parse_args(["--width-mm", "5", "--n-parts", "1.5"])
    assert "invalid int value: '1.5'" in capsys.readouterr().err


@either
def test_the_help_is_the_docstring_s_and_shows_the_unit(target):
    found = actions(parser_of(target))
    assert [found[name].help for name in NAMES] == [
        "outer size", "outer size", "what is written on it", "counted where left out", "it has no lid",
    ]  # fmt: skip
    assert [found[name].metavar for name in NAMES[:4]] == ["mm", "mm", "LABEL", "N_PARTS"]


@either
def test_a_flag_may_be_another_and_a_value_one_of_some(target, capsys):
    parser = parser_of(target, flags={"width_mm": "--width"}, choices={"label": ("box", "crate")})
    assert parser.parse_args(["--width", "5", "--label", "crate"]).width_mm == 5
    with pytest.raises(SystemExit):
        parser.parse_args(["--width", "5", "--label", "bag"])
    assert "invalid choice: 'bag'" in capsys.readouterr().err


def test_a_docstring_gives_type_and_text_of_each_name():
    assert documented(Box)["depth_mm"] == ("mm", "Outer size.")
    assert documented(Box)["n_parts"] == ("int or None", "Counted where left out.")
    assert documented(object()) == {}


# What is said of every command


def parser_of_command(name: str) -> argparse.ArgumentParser:
    module = import_module(f"estimator_utils.cli.{cli.COMMANDS[name][0]}")
    parser = argparse.ArgumentParser()
    getattr(module, f"add_{name.replace('-', '_')}")(parser)
    return parser


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_of_a_command_has_a_help_text(name):
    assert [dest for dest, action in actions(parser_of_command(name)).items() if not (action.help or "").strip()] == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_default_that_is_given_is_of_the_option_s_type_and_among_its_choices(name):
    for dest, action in actions(parser_of_command(name)).items():
        if action.default is not None and action.type is not None:
            assert action.type(action.default) == action.default, dest
        if action.choices is not None and action.default is not None:
            assert action.default in action.choices, dest


# Results


def test_a_result_is_one_object_or_a_line_a_value(capsys):
    result = {"n": 3, "share": 1 / 3, "unknown": None, "more": {"deep": "text"}}
    show(result, as_json=True)
    assert json.loads(capsys.readouterr().out) == result
    show(result, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "n        3", "share    0.333333", "unknown  unknown", "deep     text",
    ]  # fmt: skip
