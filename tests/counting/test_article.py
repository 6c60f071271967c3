"""Liu, Fermi Estimation for Neural Networks (2023): every worked answer, within its rounding or named as an error.

``data/published/fermi_article.csv`` holds its premises and its printed answers, each with its digits and a verdict:
``agrees``; ``rounded step``, where only the article's own rounded intermediate steps lead to it; ``error``.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from estimator_utils.counting import fermi as outside

with (Path(__file__).resolve().parents[2] / "data" / "published" / "fermi_article.csv").open(newline="", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))
PREMISE = SimpleNamespace(**{row["key"]: float(row["value"]) for row in ROWS if row["kind"] == "premise"})
PRINTED = {row["key"]: row for row in ROWS if row["kind"] == "answer"}


def article_answers() -> dict[str, float]:
    """Answer each question of the article from its premises, nothing rounded on the way."""
    p = PREMISE
    (n_1, d_1), (n_e, d_e) = (outside.chinchilla_optimum(c) for c in (1, math.e))
    excess_1, excess_e = (outside.chinchilla_loss(*outside.chinchilla_optimum(c)) - outside.L0 for c in (1, math.e))
    gpt5_flop = (p.gpt5_parameters / outside.chinchilla_direct(1)[0]) ** 2
    words_per_book = p.words_per_page * p.pages_per_book
    price = {int(row["year"]): row for row in outside._rows("memory_prices")}
    gpt5_mb, last = outside.memory_gb(p.gpt5_parameters) * 1e3, price[2018]
    ssd_usd, dram_usd = (gpt5_mb * float(last[kind]) for kind in ("ssd", "dram"))
    gpt5_a100 = gpt5_mb / 1e3 / p.a100_memory_gb
    latency_s = gpt5_mb / 1e3 / p.a100_bandwidth_gb_per_s
    gpt3_per_min = 60 / latency_s * p.gpt5_parameters / p.gpt3_parameters
    gpt3_gb, gpt3_adam_gb = (outside.memory_gb(p.gpt3_parameters, copies=c) for c in (1, 4))
    activations_mb = outside.memory_gb(p.gpt3_layers * p.gpt3_heads * p.gpt3_head_dim) * 1e3
    pf_day, a100_hour = outside.PETAFLOP_DAY_FLOP, outside.gpu_time_flop(1, p.a100_flop_per_s, 1)
    pf_day_usd = pf_day / a100_hour * p.a100_rent_usd_per_h
    gpt3_usd = p.gpt3_pf_days * pf_day_usd
    gpt4_usd = p.gpt4_flop / pf_day * pf_day_usd
    gpt5_hours = gpt5_flop / a100_hour
    gpt5_usd = gpt5_hours * p.a100_rent_usd_per_h * p.restart_factor
    sold_flop = outside.dense_flop(p.gpt3_parameters, p.tokens_sold, 2)
    sold_usd = sold_flop / a100_hour * p.a100_rent_usd_per_h
    recoup = p.gpt35_cost_usd / p.token_price_usd_per_million * 1e6
    hobby_years = math.log2(gpt3_usd / p.hobby_usd) * outside.FACTS["gpu_price_doubling"]
    boltzmann_j_per_k = 1.380649e-23
    landauer_j = boltzmann_j_per_k * p.temperature_k * math.log(2)
    least_j = p.bits_lost * landauer_j
    carbon_price = math.sqrt(outside.FACTS["carbon_price_low"] * outside.FACTS["carbon_price_high"])
    burger_kg = p.beef_kg_co2_per_kg * p.burger_beef_kg
    burgers = p.gpt3_co2_t * 1e3 / burger_kg
    beef_t = p.american_beef_kg * p.beef_kg_co2_per_kg / 1e3
    a100_usd_per_t = p.a100_price_usd / p.a100_mass_kg * 1e3
    relative = {
        f"relative_{year}_{kind}": float(row[kind]) / float(last["disk"])
        for year, row in price.items()
        for kind in ("dram", "ssd", "disk")
        if row[kind]
    }
    return relative | {
        "synapses_over_gpt5": p.synapses / p.gpt5_parameters,
        "brain_steps": p.snap_decision_s / p.brain_step_s,
        "optimum_n_factor": n_1,
        "optimum_n_exponent": math.log(n_e / n_1),
        "optimum_d_factor": d_1,
        "optimum_d_exponent": math.log(d_e / d_1),
        "optimum_loss_factor": excess_1,
        "optimum_loss_exponent": math.log(excess_1 / excess_e),
        "gpt5_flop": gpt5_flop,
        "gpt5_tokens": outside.chinchilla_direct(gpt5_flop)[1],
        "words": p.dataset_tokens / p.tokens_per_word,
        "words_per_book": words_per_book,
        "books": p.dataset_tokens / p.tokens_per_word / words_per_book,
        "memory_1b_gb": outside.memory_gb(1e9),
        "gpt5_memory_gb": gpt5_mb / 1e3,
        "gpt5_a100": gpt5_a100,
        "gpt5_rent_usd_per_h": gpt5_a100 * p.a100_rent_usd_per_h,
        "gpt5_a100_training": outside.memory_gb(p.gpt5_parameters, copies=4) / p.a100_memory_gb,
        "ssd_usd": ssd_usd,
        "dram_usd": dram_usd,
        "dram_over_ssd": dram_usd / ssd_usd,
        "dram_share_pct": 100 * dram_usd / (p.a100_price_memory_usd * gpt5_a100),
        "gpt5_latency_s": latency_s,
        "gpt5_tokens_per_min": 60 / latency_s,
        "gpt3_tokens_per_min": gpt3_per_min,
        "gpt3_words_per_min": gpt3_per_min / p.tokens_per_word,
        "activations_mb": activations_mb,
        "batch_tokens": gpt3_gb / activations_mb * 1e3,
        "gpt3_training_gb": gpt3_adam_gb,
        "batch_tokens_training": gpt3_adam_gb / activations_mb * 1e3,
        "chats": gpt3_gb / activations_mb * 1e3,
        "pf_day_flop": pf_day,
        "pf_day_a100_hours": pf_day / a100_hour,
        "pf_day_usd": pf_day_usd,
        "gpt3_usd": gpt3_usd,
        "gpt4_pf_days": p.gpt4_flop / pf_day,
        "gpt4_usd": gpt4_usd,
        "gpt4_usd_30_pct": gpt4_usd / outside.LLM_UTILISATION,
        "opt_factor": p.opt_months * 365.25 / 12 / p.opt_days_needed,
        "gpt5_usd": gpt5_usd,
        "gpt5_capex_pct": 100 * gpt5_usd / p.capex_usd,
        "gpt5_a100_hours": gpt5_hours,
        "gpt5_days": gpt5_hours / p.cluster_a100 / 24,
        "million_tokens_flop": sold_flop,
        "a100_hour_flop": a100_hour,
        "million_tokens_a100_hours": sold_flop / a100_hour,
        "million_tokens_usd": sold_usd,
        "cost_over_revenue": sold_usd / p.token_price_usd_per_million,
        "recoup_tokens": recoup,
        "recoup_essays": recoup / p.tokens_per_word / p.words_per_essay,
        "gpt3_usd_later": gpt3_usd,
        "hobby_drop": gpt3_usd / p.hobby_usd,
        "hobby_years": hobby_years,
        "hobby_year": p.year + hobby_years,
        "landauer_j": landauer_j,
        "flop_least_j": least_j,
        "a100_least_w": least_j * p.a100_flop_per_s,
        "a100_over_least": p.a100_power_w / (least_j * p.a100_flop_per_s),
        "brain_over_a100": p.brain_flop_per_s / p.brain_power_w / (p.a100_flop_per_s / p.a100_power_w),
        "least_over_brain": p.brain_power_w / p.brain_flop_per_s / least_j,
        "microbe_bits_per_day": p.microbe_power_w * 86400 / (boltzmann_j_per_k * p.microbe_temperature_k * math.log(2)),
        "carbon_price_usd_per_t": carbon_price,
        "gpt3_carbon_usd": carbon_price * p.gpt3_co2_t,
        "gpt3_carbon_pct": 100 * carbon_price * p.gpt3_co2_t / gpt3_usd,
        "burger_kg_co2": burger_kg,
        "burgers": burgers,
        "burger_people": burgers / 365,
        "american_beef_t_co2": beef_t,
        "beef_americans": p.gpt3_co2_t / beef_t,
        "a100_usd_per_t": a100_usd_per_t,
        "a100_over_maize": a100_usd_per_t / p.maize_usd_per_t,
        "shipping_pct": 100 * p.shipping_trips / (a100_usd_per_t / p.maize_usd_per_t),
    }


def rounds_to(value: float, printed: float, digits: int) -> bool:
    """Whether the value is within half a unit of the last printed digit; 0 digits: half a power of ten."""
    if digits == 0:
        return abs(math.log10(value / printed)) <= 0.5
    unit = 10.0 ** (math.floor(math.log10(printed) + 1e-9) - digits + 1)
    return abs(value - printed) <= unit / 2 * (1 + 1e-9)


ANSWERS = article_answers()
# What the article's own rounded steps give, for the answers that follow from those.
ROUNDED_STEPS = {
    "gpt5_tokens_per_min": 60 / 1.3,
    "gpt3_tokens_per_min": math.floor(46 * 1000 / 175),
    "chats": 0.15e6,
    "gpt4_usd_30_pct": 37e6 * PREMISE.a100_flop_per_s / PREMISE.a100_in_practice_flop_per_s,
    "beef_americans": PREMISE.gpt3_co2_t / 2,
    "a100_over_maize": 9e6 / PREMISE.maize_usd_per_t,
    "shipping_pct": 100 / 45,
}


def test_the_article_is_covered() -> None:
    assert set(ANSWERS) == set(PRINTED)
    assert set(ROUNDED_STEPS) == {key for key, row in PRINTED.items() if row["verdict"] == "rounded step"}


@pytest.mark.parametrize("key", PRINTED)
def test_fermi_article(key: str) -> None:
    row = PRINTED[key]
    printed, digits = float(row["value"]), int(row["digits"])
    agrees = rounds_to(ANSWERS[key], printed, digits)
    assert agrees == (row["verdict"] == "agrees"), f"{key}: {ANSWERS[key]:.4g}, printed {printed:g}"
    if row["verdict"] == "rounded step":
        assert rounds_to(ROUNDED_STEPS[key], printed, digits)
    assert agrees or row["note"]


def test_what_the_article_should_have_said() -> None:
    """The A100-hour, the 83 million hours and the price of GPT-3, with what hangs on them."""
    assert ANSWERS["a100_hour_flop"] == pytest.approx(1.08e18)
    assert 4e17 / ANSWERS["a100_hour_flop"] * PREMISE.a100_rent_usd_per_h == pytest.approx(0.74, abs=0.005)
    assert ANSWERS["gpt5_a100_hours"] == pytest.approx(92.6e6, rel=1e-3)
    assert ANSWERS["gpt3_usd"] == pytest.approx(582_400)
    assert ANSWERS["gpt3_carbon_pct"] == pytest.approx(10.6, abs=0.05)
    assert ANSWERS["microbe_bits_per_day"] == pytest.approx(33_000, rel=0.01)
