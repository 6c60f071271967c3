"""Training FLOP by counting and by GPU time, scaling laws, and Fermi arithmetic from there to cost and carbon.

FLOP is a count, FLOP/s a rate. Methods 1 and 2: Sevilla et al., Estimating Training Compute of Deep Learning Models
(Epoch, 2022). Numbers that cannot be raise ValueError.
"""

from dataclasses import dataclass, replace

from estimator_utils.counting import tables
from estimator_utils.counting.layers import require_positive
from estimator_utils.counting.tables import FACTS, LLM_UTILISATION, UTILISATION_RANGE

PETAFLOP_DAY_FLOP = 1e15 * 86400
ALPHA, BETA, A, B, L0 = 0.34, 0.28, 406.4, 410.7, 1.69  # Hoffmann 2022 (arXiv 2203.15556), Eq. 10


def dense_flop(parameters: float, tokens: float, per_parameter: float = 6) -> float:
    """Count by method 1, ``k N D``, N the parameters that a token or example meets (or any layer's connections).

    k is 2 (1 + backward over forward): 6 to train (Kaplan 2020, arXiv 2001.08361), 3 if encoder-decoder, 2 to infer.
    D counts each epoch; dropout changes nothing.
    """
    require_positive(parameters=parameters, tokens=tokens, per_parameter=per_parameter)
    return per_parameter * parameters * tokens


def gpu_time_flop(hours: float, peak_flop_per_s: float, utilisation: float = LLM_UTILISATION) -> float:
    """Estimate by method 2: ``chip-hours x peak x utilisation``; for a range, over `UTILISATION_RANGE`."""
    require_positive(hours=hours, peak_flop_per_s=peak_flop_per_s)
    if not 0 < utilisation <= 1:
        raise ValueError(f"`utilisation` must be a fraction above 0 and at most 1, found {utilisation!r}")
    return hours * 3600 * peak_flop_per_s * utilisation


def implied_utilisation(flop: float, hours: float, peak_flop_per_s: float) -> float:
    """Return ``FLOP / (time x chips x peak)``: MFU from model FLOP, HFU from hardware FLOP."""
    require_positive(flop=flop)
    return flop / gpu_time_flop(hours, peak_flop_per_s, 1)


def chinchilla_loss(parameters: float, tokens: float) -> float:
    """Return the loss in nats a token: ``A / N^alpha + B / D^beta + L0``."""
    require_positive(parameters=parameters, tokens=tokens)
    return float(A / parameters**ALPHA + B / tokens**BETA + L0)


def chinchilla_optimum(flop: float) -> tuple[float, float]:
    """Return the N and D of least loss at C = 6 N D (Hoffmann 2022, Eq. 4).

    ``N = G (C/6)^(beta/(alpha+beta))``, ``D = (C/6) / N``, ``G = (alpha A / (beta B))^(1/(alpha+beta))``.
    """
    require_positive(flop=flop)
    parameters = (ALPHA * A / (BETA * B) * (flop / 6) ** BETA) ** (1 / (ALPHA + BETA))
    return parameters, flop / 6 / parameters


def memory_gb(parameters: float, bytes_per_parameter: float = 2, copies: int = 1) -> float:
    """Return a model's memory, 4 ``copies`` under Adam; over the bandwidth, a token's least time."""
    require_positive(parameters=parameters, bytes_per_parameter=bytes_per_parameter, copies=copies)
    return parameters * bytes_per_parameter * copies / 1e9


def energy_mwh(hours: float, power_w: float, pue: float = 1) -> float:
    """Return ``chip-hours x power x PUE`` (Patterson 2021, arXiv 2104.10350, section 2.5)."""
    require_positive(hours=hours, power_w=power_w, pue=pue)
    return hours * power_w * pue / 1e6


@dataclass(frozen=True)
class TrainingRun:
    """What is asked about; the defaults are GPT-3's sizes on A100.

    Attributes
    ----------
    params : 1
        Parameters.
    tokens : 1
        Training tokens.
    flop_per_param_token : FLOP
        Of a parameter and token: 6 to train, 3 an encoder-decoder, 2 to infer.
    chip : str
        A row of the table of chips.
    number_format : str
        Of the peak; the chip's 16-bit one where left out.
    chips : 1
        Number of chips.
    utilisation : 1
        Achieved over peak FLOP/s, above 0 to 1.
    usd_per_chip_hour : USD/h
        Price; the chip's rental where left out.
    power_w : W
        Power of a chip; the chip's where left out.
    pue : 1
        Facility energy over chip energy.
    kg_co2_per_kwh : kg/kWh
        Carbon intensity of the electricity.
    """

    params: float = 175e9
    tokens: float = 300e9
    flop_per_param_token: float = 6
    chip: str = "A100"
    number_format: str | None = None
    chips: float = 1024
    utilisation: float = LLM_UTILISATION
    usd_per_chip_hour: float | None = None
    power_w: float | None = None
    pue: float = FACTS["pue"]
    kg_co2_per_kwh: float = FACTS["carbon_kg_per_kwh"]

    def __post_init__(self) -> None:
        require_positive(**{name: value for name, value in vars(self).items() if not isinstance(value, str)})
        if self.pue < 1 or self.chips % 1:
            found = f"found {self.pue:g} and {self.chips:g}"
            raise ValueError(f"`pue` must be 1 or more and `chips` a whole number, {found}")

    def with_chip_figures(self) -> "TrainingRun":
        """Return the run with the chip's figures where none are given; what the chip's row lacks stays None."""
        chip = tables.chip_figures(self.chip)
        number_format = self.number_format or tables.default_format(self.chip)
        usd_per_chip_hour = self.usd_per_chip_hour or chip["rental_usd_per_h"]
        power_w = self.power_w or chip["power_w"]
        return replace(self, number_format=number_format, usd_per_chip_hour=usd_per_chip_hour, power_w=power_w)


@dataclass(frozen=True)
class Answer:
    """What is answered; None where a figure of the chip is unknown.

    Attributes
    ----------
    flop : FLOP
        Of the run, ``k N D``.
    petaflop_days : petaFLOP-days
        The same count.
    days : days
        On all chips, at the utilisation of the run.
    days_range : days
        The same over `UTILISATION_RANGE`, slowest first.
    chip_hours : chip-hours
        Of all chips together.
    cost_usd : USD
        Rent of the chip-hours.
    energy_mwh : MWh
        Of the facility.
    co2_t : t CO2
        Of that energy.
    thresholds : by name of those in law
        ``ratio`` of the FLOP to the threshold, and whether it is ``passed``.
    inputs : TrainingRun
        As used, with the chip's figures.
    """

    flop: float
    petaflop_days: float
    days: float
    days_range: tuple[float, ...]
    chip_hours: float
    cost_usd: float | None
    energy_mwh: float | None
    co2_t: float | None
    thresholds: dict[str, dict[str, float]]
    inputs: TrainingRun


def fermi(run: TrainingRun) -> Answer:
    """Answer the common questions about a training run: time, cost, energy, carbon, thresholds."""
    run = run.with_chip_figures()
    flop = dense_flop(run.params, run.tokens, run.flop_per_param_token)
    require_positive(flop=flop)
    peak = tables.peak_flop_per_s(run.chip, run.number_format)
    hours = flop / gpu_time_flop(1, peak, run.utilisation)
    mwh = None if run.power_w is None else energy_mwh(hours, run.power_w, run.pue)
    return Answer(
        flop=flop,
        petaflop_days=flop / PETAFLOP_DAY_FLOP,
        days=hours / run.chips / 24,
        days_range=tuple(hours * run.utilisation / u / run.chips / 24 for u in UTILISATION_RANGE),
        chip_hours=hours,
        cost_usd=None if run.usd_per_chip_hour is None else hours * run.usd_per_chip_hour,
        energy_mwh=mwh,
        co2_t=None if mwh is None else mwh * run.kg_co2_per_kwh,
        thresholds={n: {"ratio": flop / x, "passed": flop > x} for n, x in tables.THRESHOLDS_FLOP.items()},
        inputs=run,
    )
