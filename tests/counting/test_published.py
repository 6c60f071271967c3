"""Published tables reproduced by `outside`; what does not reproduce is asserted as such, with the reason.

``data/published/``: GPT-3 (arXiv 2005.14165) Table D.1; Chinchilla (2203.15556) Table A4; Megatron-LM (2104.04473) Tables
1 and 2; Korthikanti (2205.05198) Table 5; chip-hours of LLaMA (2302.13971) Table 15, Llama 2 (2307.09288) Table 2,
Llama 3.1 (its model card), BLOOM, OPT, PaLM (2204.02311) and GPT-3 (Patterson 2021, 2104.10350, Table 4).
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from estimator_utils.counting import fermi as outside
from estimator_utils.counting.fermi import BLOCK, Architecture

ORACLES = Path(__file__).resolve().parents[2] / "data" / "published"
MEGATRON_SEQUENCE, MEGATRON_VOCABULARY = 2048, 51200
GPT3_175B = (96, 12288, 96)  # layers, width, heads
MT_NLG_530B = (105, 20480, 128)


def rows(name: str) -> list[dict[str, str]]:
    with (ORACLES / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_name(name: str, key: str = "model"):  # type: ignore[no-untyped-def]
    return [pytest.param(row, id=row[key]) for row in rows(name)]


def megatron(layers: int, width: int, heads: int) -> Architecture:
    sizes = (layers, width, heads, 4 * width, MEGATRON_SEQUENCE, MEGATRON_VOCABULARY)
    return Architecture(*sizes, tied=True, positions=True, vectors=13)


@pytest.mark.parametrize("row", by_name("gpt3_table_d1"))
def test_gpt3_table_d1(row: dict[str, str]) -> None:
    k, n, d = (float(row[c]) for c in ("flops_per_param_per_token", "params_m", "tokens_b"))
    flop = outside.dense_flop(n * 1e6, d * 1e9, k)
    assert flop == pytest.approx(float(row["flops"]), rel=0.0031)
    assert flop / outside.PETAFLOP_DAY_FLOP == pytest.approx(float(row["pf_days"]), rel=0.0031)


@pytest.mark.parametrize("row", by_name("chinchilla_table_a4", "params"))
def test_chinchilla_table_a4(row: dict[str, str]) -> None:
    layers, d, ffw, heads, head_dim = (int(row[c]) for c in ("n_layer", "d_model", "ffw", "heads", "kv_size"))
    a = Architecture(layers, d, heads, ffw, seq_len=2048, vocabulary=32000, head_dim=head_dim)
    ratio = a.flop(count=BLOCK) / outside.dense_flop(float(row["params"]), a.seq_len)
    printed = float(row["ratio_exact_to_6nd"])
    if row["params"] == "1.1e9":  # "1.1B" is too coarsely rounded: its sizes make another N
        assert ratio == pytest.approx(1.084, abs=5e-4)
        assert ratio - printed > 0.04
    else:
        assert ratio == pytest.approx(printed, abs=0.0051)


@pytest.mark.parametrize("row", by_name("megatron_table_1", "params_b"))
def test_megatron_table_1(row: dict[str, str]) -> None:
    layers, h, heads, batch = (int(row[c]) for c in ("layers", "hidden", "heads", "batch"))
    a, s, v = megatron(layers, h, heads), MEGATRON_SEQUENCE, MEGATRON_VOCABULARY
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert a.parameters() - h == pytest.approx(formula, rel=1e-12)  # their formula leaves the final scale out
    assert round(formula / 1e9, 1) == float(row["params_b"])
    by_formula = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert a.flop(batch, recompute=BLOCK) == pytest.approx(by_formula, rel=1e-14)
    gpus, rate, pct, total = (float(row[c]) for c in ("gpus", "tflops_per_gpu", "pct_peak", "pflops"))
    achieved = outside.implied_utilisation(rate * 1e12 * 3600, 1, outside.peak_flop_per_s("A100"))
    assert 100 * achieved == pytest.approx(pct, abs=0.51)
    assert gpus * rate / 1e3 == pytest.approx(total, rel=0.005)


@pytest.mark.parametrize("row", rows("megatron_table_2_days"), ids=lambda r: f"{r['scheme']}-{r['gpus']}")
def test_megatron_table_2(row: dict[str, str]) -> None:
    sizes = {"174.6": GPT3_175B, "529.6": MT_NLG_530B}[row["params_b"]]
    a, tokens = megatron(*sizes), 300e9
    rate_flop_per_s = float(row["gpus"]) * float(row["tflops_per_gpu"]) * 1e12
    days = a.flop(tokens / a.seq_len, recompute=BLOCK) / rate_flop_per_s / 86400
    assert days == pytest.approx(float(row["days_300b_tokens"]), abs=1)
    shortcut_days = outside.dense_flop(float(row["params_b"]) * 1e9, tokens, 8) / rate_flop_per_s / 86400
    below_pct = {"174.6": 2.59, "529.6": 1.58}[row["params_b"]]
    assert 100 * (1 - shortcut_days / days) == pytest.approx(below_pct, abs=0.005)


@pytest.mark.parametrize("row", by_name("korthikanti_table_5", "params_b"))
def test_korthikanti_table_5(row: dict[str, str]) -> None:
    """Their hardware FLOP charge recomputed attention with three more forward passes, where one is done."""
    layers, h, heads, batch = (int(row[c]) for c in ("layers", "hidden", "heads", "batch"))
    a, s, v = megatron(layers, h, heads), MEGATRON_SEQUENCE, MEGATRON_VOCABULARY
    model, hardware = a.flop(batch), a.flop(batch, attention_ratio=5)
    formula = 72 * batch * layers * s * h**2
    assert model == pytest.approx(formula * (1 + s / (6 * h) + v / (12 * h * layers)), rel=1e-14)
    assert hardware == pytest.approx(formula * (1 + s / (3 * h) + v / (12 * h * layers)), rel=1e-14)
    chip_hours = float(row["gpus"]) * float(row["seconds_per_iter"]) / 3600
    peak = outside.peak_flop_per_s("A100")
    assert 100 * outside.implied_utilisation(model, chip_hours, peak) == pytest.approx(float(row["mfu_pct"]), abs=0.2)
    hfu_pct = 100 * outside.implied_utilisation(hardware, chip_hours, peak)
    assert hfu_pct == pytest.approx(float(row["hfu_pct"]), abs=0.2)
    one_pass = a.flop(batch, recompute=("attention",))
    assert one_pass - model == pytest.approx((hardware - model) / 3)


def test_the_range_of_utilisation_is_that_of_the_table() -> None:
    implied = [
        outside.implied_utilisation(
            outside.dense_flop(float(row["params"]), float(row["tokens"])),
            float(row["chip_hours"]),
            outside.peak_flop_per_s(row["chip"]),
        )
        for row in rows("gpu_time_rows")
    ]
    assert (round(min(implied), 3), 0.3, round(max(implied), 3)) == outside.UTILISATION_RANGE


@pytest.mark.parametrize("row", by_name("gpu_time_rows"))
def test_gpu_time_rows(row: dict[str, str]) -> None:
    hours, peak = float(row["chip_hours"]), outside.peak_flop_per_s(row["chip"])
    assert peak == float(row["peak_tflops"]) * 1e12
    flop = outside.dense_flop(float(row["params"]), float(row["tokens"]))
    implied = outside.implied_utilisation(flop, hours, peak)
    middle = outside.gpu_time_flop(hours, peak)
    reported = float(row["reported_flop_or_blank"] or "nan")
    if row["model"].startswith("OPT"):  # hours x known MFU give what OPT reports, 2.3 times 6 N D: not an oracle
        by_mfu = outside.gpu_time_flop(hours, peak, float(row["known_mfu_or_blank"]))
        assert by_mfu == pytest.approx(reported, rel=0.005)
        assert reported / flop == pytest.approx(2.3, abs=0.05)
        # A guess that fits: 300 B tokens seen, as GPT-3, of 180 B there are, and activations recomputed.
        opt = MODELS[row["model"]]
        assert opt.flop(300e9 / opt.seq_len, recompute=BLOCK) == pytest.approx(reported, rel=0.01)
    else:
        assert 0.196 < implied < 0.5145
    if row["model"] == "PaLM-540B":  # reported with attention, as 6 N + 12 L H Q T a token
        attention = Architecture(118, 18432, 48, 1, 2048, 1, head_dim=256).flop(count=("attention",)) / 2048
        assert flop + attention * float(row["tokens"]) == pytest.approx(reported, rel=0.002)
        assert implied < 0.31 < float(row["known_mfu_or_blank"])  # stalls, restarts, a part on half the chips
    elif not math.isnan(reported) and not row["model"].startswith("OPT"):  # reported as 6 N D of the nominal N
        digits = 2 if row["model"] == "GPT-3-175B" else 1
        nominal = {"Llama2-7B": 7e9, "Llama2-70B": 70e9}.get(row["model"], float(row["params"]))
        assert f"{outside.dense_flop(nominal, float(row['tokens'])):.{digits}e}" == f"{reported:.{digits}e}"
    extremes = {"LLaMA-13B": (0.514, 0.58), "GPT-3-175B": (0.197, 1.53)}
    if row["model"] in extremes:
        assert (round(implied, 3), round(middle / flop, 2)) == extremes[row["model"]]
    if row["mwh_reported_or_blank"]:
        mwh = outside.energy_mwh(hours, float(row["power_w_assumed"]), float(row["pue"]))
        off = mwh - float(row["mwh_reported_or_blank"])
        # BLOOM: 475 printed, 476.5 by the same product. GPT-3: its chip-hours here are rounded.
        assert abs(off) < {"BLOOM-176B(LLaMA T15)": 1.5, "GPT-3-175B": 2.5}.get(row["model"], 1)
        assert (abs(off) > 1) == (row["model"] in ("BLOOM-176B(LLaMA T15)", "GPT-3-175B"))


def published_models() -> dict[str, Architecture]:
    models = {}
    for row in rows("model_shapes"):
        flags = {name: bool(row.pop(name)) for name in ("gated", "tied", "positions")}
        name, _ = row.pop("model"), row.pop("source")
        models[name] = Architecture(**{key: int(value) for key, value in row.items() if value}, **flags)  # type: ignore[arg-type]
    return models


MODELS = published_models()


@pytest.mark.parametrize("row", by_name("gpu_time_rows"))
def test_parameters_of_published_models(row: dict[str, str]) -> None:
    printed, counted = float(row["params"]), MODELS[row["model"]].parameters()
    # To the last parameter where all digits are printed; Llama 2 counts its rotary frequencies, which are none.
    frequencies = {"Llama2-7B": 32 * 64, "Llama2-13B": 40 * 64, "Llama2-70B": 80 * 64, "Llama3.1-405B": 0}
    if row["model"] in frequencies:
        assert counted == printed - frequencies[row["model"]]
    else:
        assert counted == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(
    ("parameters", "sizes", "chips", "chip", "tokens_per_s", "mfu_pct", "without_attention_pct"),
    [
        (540.35e9, (118, 48, 256), 6144, "TPUv4", 238.3e3, 46.2, 45.7),
        (530e9, (105, 128, 160), 2240, "A100", 65.43e3, 30.2, 29.7),
    ],
)
def test_palm_table_3(  # type: ignore[no-untyped-def]
    parameters, sizes, chips, chip, tokens_per_s, mfu_pct, without_attention_pct
) -> None:
    layers, heads, head_dim = sizes
    a = Architecture(layers, heads * head_dim, heads, 1, 2048, 1, head_dim=head_dim)
    attention = a.flop(count=("attention",)) / a.seq_len
    assert attention == 12 * layers * heads * head_dim * a.seq_len
    per_token, peak = outside.dense_flop(parameters, 1), outside.peak_flop_per_s(chip)
    for flop, printed in ((per_token + attention, mfu_pct), (per_token, without_attention_pct)):
        mfu = outside.implied_utilisation(tokens_per_s * 3600 * flop, chips, peak)
        assert 100 * mfu == pytest.approx(printed, abs=0.1)


def test_palm_table_3_gpt3_does_not_reproduce() -> None:
    """21.3 % printed; 24.6 TFLOP/s (Patterson 2021) of a V100's 125 is 19.7 %, with attention 20.2 %."""
    plain = outside.implied_utilisation(24.6e12 * 3600, 1, outside.peak_flop_per_s("V100"))
    a = megatron(*GPT3_175B)
    with_attention = plain * (1 + a.flop(count=("attention",)) / outside.dense_flop(175e9, a.seq_len))
    assert (round(100 * plain, 1), round(100 * with_attention, 1)) == (19.7, 20.2)


def test_nanogpt_sizing() -> None:
    a = Architecture(12, 768, 12, 3072, 1024, 50257, tied=True, positions=True)
    assert a.parameters() == 124_337_664
    assert a.flop(backward_ratio=0) == 291_648_307_200
    assert a.flop() == 874_944_921_600
    without_positions = a.parameters() - 1024 * 768
    assert without_positions == 123_551_232
    attention = a.flop(count=("attention",))
    assert outside.dense_flop(without_positions, 1024) + attention == 875_062_886_400


def test_epoch_worked_example_is_wrong() -> None:
    """Epoch count 2 H^2 W^2 C D / S^2 for the convolution and drop the LSTM; counted properly it is 1.13e16."""
    examples, frames = 100 * 128, 20
    printed = 7.86432e18
    theirs = 2 * 400**2 * 400**2 * 5 * 16 / 2**2
    assert outside.counting_flop(theirs / 2 * frames, examples, epochs=10) == pytest.approx(printed, rel=1e-12)
    convolution = outside.convolution(400, 400, 5, 16, kernel=5, stride=2, padding=2)
    lstm = outside.recurrent(200 * 200 * 16, 256, cell="lstm")
    frame = convolution[1] + lstm[1] + outside.fully_connected(256, 10)[1]
    properly = outside.counting_flop(frame / 2 * frames, examples, epochs=10)
    assert properly == pytest.approx(1.13e16, rel=0.005)
    assert printed / properly > 600


def test_recommended_utilisation() -> None:
    assert (outside.FACTS["utilisation_llm"], outside.FACTS["utilisation_other"]) == (0.30, 0.40)


def test_patterson_table_4() -> None:
    """GPT-3 on 10,000 V100 at 24.6 TFLOP/s: 14.8 days, 1,287 MWh, 552 tCO2."""
    utilisation = 24.6e12 / outside.peak_flop_per_s("V100")
    answer = outside.fermi(174.6e9, 299.7e9, chip="V100", chips=10_000, utilisation=utilisation, power_w=330)
    assert answer["days"] == pytest.approx(14.8, abs=0.05)
    assert answer["energy_mwh"] == pytest.approx(1287, abs=1)
    assert answer["co2_t"] == pytest.approx(552, abs=1)


def test_peaks() -> None:
    peaks = {"V100": 125, "TPUv3": 123, "TPUv4": 275, "A100": 312, "H100": 989}
    assert {chip: outside.peak_flop_per_s(chip) / 1e12 for chip in peaks} == peaks


def test_chinchilla_closed_form() -> None:
    g = outside.chinchilla_optimum(6)[0]  # at C = 6 the budget N D is 1, so N = G
    (n_1, d_1), (n_e, d_e) = (outside.chinchilla_optimum(c) for c in (1, math.e))
    assert round(g, 3) == 1.345
    assert (round(math.log(n_e / n_1), 4), round(math.log(d_e / d_1), 4)) == (0.4516, 0.5484)
    assert (round(n_1, 3), round(d_1, 3)) == (0.599, 0.278)
