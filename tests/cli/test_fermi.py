"""The command ``fermi``."""

import json
import re
from dataclasses import asdict, fields

import pytest

from estimator_utils.cli.main import main
from estimator_utils.counting.fermi import Answer, TrainingRun, fermi

COMMAND = "fermi --params 175e9 --tokens 300e9 --chip A100 --chips 1024 --utilisation 0.3"


def test_the_json_is_the_answer(capsys):
    assert main([*COMMAND.split(), "--json"]) == 0
    answer = asdict(fermi(TrainingRun(175e9, 300e9, chip="A100", chips=1024, utilisation=0.3)))
    assert json.loads(capsys.readouterr().out) == {**answer, "days_range": list(answer["days_range"])}


def test_every_quantity_is_printed_with_its_unit(capsys):
    assert main(COMMAND.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    units = ["FLOP", "petaFLOP-days", "days", "days", "chip-hours", "USD", "MWh", "t CO2"]
    quantities = [f.name for f in fields(Answer)][: len(units)]
    for line, name, unit in zip(lines, quantities, units, strict=False):
        assert re.fullmatch(rf"{name} +[\d.e+]+( to [\d.]+)? {unit}", line), line
    assert lines[len(units) :] == [
        "eu             not passed: 0.0315 of 1e+25 FLOP",
        "sb53           not passed: 0.00315 of 1e+26 FLOP",
    ]


def test_what_is_unknown_is_printed_so(capsys):
    assert main(["fermi", "--chip", "TPUv4"]) == 0
    assert "cost_usd       unknown USD" in capsys.readouterr().out


def test_the_help_documents_every_option_and_names_the_chips(capsys):
    with pytest.raises(SystemExit):
        main(["fermi", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "achieved over peak FLOP/s, above 0 to 1 (default: 0.3)" in text
    assert "chips: V100, A100, A100-80" in text


def test_a_refusal_names_the_flag(capsys):
    assert main(["fermi", "--chip", "abacus"]) == 1
    assert "unknown --chip 'abacus'; known: V100, A100" in capsys.readouterr().err
    assert main(["fermi", "--power-w", "0"]) == 1
    assert "--power-w must be a positive number, found 0.0" in capsys.readouterr().err
