"""Chips and facts, read from the CSV files beside this one, each row with its source.

``memory_prices.csv`` holds prices of memory since 1955.
"""

import csv
from pathlib import Path

FOLDER = Path(__file__).parent
FIGURES = ("memory_gb", "bandwidth_gb_per_s", "power_w", "price_usd", "rental_usd_per_h")  # of a chip


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of ``TABLE.csv``."""
    with (FOLDER / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _numbers(row: dict[str, str]) -> dict[str, float | None]:
    return {key: float(value) if value else None for key, value in row.items() if key not in ("name", "source")}


CHIPS = {row["name"]: _numbers(row) for row in rows("chips")}
FORMATS = tuple(column for column in next(iter(CHIPS.values())) if column not in FIGURES)  # of numbers: all others
FACTS = {row["name"]: float(row["value"]) for row in rows("facts")}
LLM_UTILISATION = FACTS["utilisation_llm"]
UTILISATION_RANGE = (FACTS["utilisation_low"], LLM_UTILISATION, FACTS["utilisation_high"])
THRESHOLDS_FLOP = {name: FACTS[f"threshold_{name}"] for name in ("eu", "sb53")}


def chip_figures(chip: str) -> dict[str, float | None]:
    """Return a chip's row of ``chips.csv``, dense peaks in TFLOP/s; None where no source gives a figure."""
    if chip not in CHIPS:
        raise ValueError(f"unknown `chip` {chip!r}; known: {', '.join(CHIPS)}")
    return CHIPS[chip]


def peaks_tflop_per_s(chip: str) -> dict[str, float]:
    """Return a chip's dense peaks by the number formats that it has."""
    row = chip_figures(chip)
    return {name: peak for name in FORMATS if (peak := row[name])}


def default_format(chip: str) -> str:
    """Return the format that a chip trains in: 16-bit where it has it (bf16, else fp16), else fp32."""
    return next(name for name in ("bf16", "fp16", "fp32") if name in peaks_tflop_per_s(chip))


def peak_flop_per_s(chip: str, number_format: str | None = None) -> float:
    """Return a chip's dense peak, by default in the format that it trains in."""
    peaks, number_format = peaks_tflop_per_s(chip), number_format or default_format(chip)
    if number_format not in peaks:
        known = f"it has {', '.join(peaks)}; known formats: {', '.join(FORMATS)}"
        raise ValueError(f"{chip} has no peak in {number_format!r}: {known}")
    return peaks[number_format] * 1e12
