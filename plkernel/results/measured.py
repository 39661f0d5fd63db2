"""Measurement of the text that a study was planned from: STUDY/measurement.json."""

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from plkernel.analysis.information.estimate import DecayCurve
from plkernel.analysis.information.laws import PowerLaw
from plkernel.common.files import MEASUREMENT, load_object
from plkernel.config.schema import explained

CONTROL = "control"
"""Level of the factor `text` at which the arms of a control stand."""


class TrialOptions(BaseModel):
    """Options of `plkernel.trial`; runs that go on need the same."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    minutes: float
    seeds: int
    frozen: bool
    dim: int
    control: bool = False
    short: bool = False


class SavedVerdict(BaseModel):
    """The verdict on a curve: its kind, a sentence, and the lags that stand out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: str
    sentence: str
    first_lag: int
    last_lag: int


class Measured(BaseModel):
    """The measurement of a text.

    text         its name
    sha256       of its bytes; empty in files of earlier versions
    information  I(d) in nats with its jackknife replicates
    law          the power law on the lags that stand out; None where none could be fitted
    words        what the arms are called in a sentence, by name
    control      the task of the control in words; empty without one
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str
    sha256: str = ""
    options: TrialOptions
    information: DecayCurve
    verdict: SavedVerdict
    law: PowerLaw | None
    words: dict[str, str] = {}
    control: str = ""

    @property
    def octaves(self) -> float:
        """Octaves of half-lives from 1 to the longest lag that stands out."""
        return math.log2(max(1, self.verdict.last_lag))


def read_measurement(folder: Path) -> Measured | None:
    """The measurement in the folder of a study or record; None without one.

    Raises ValueError, naming the file, where it is damaged.
    """
    path = folder / MEASUREMENT
    if not path.exists():
        return None
    try:
        return Measured.model_validate(load_object(path))
    except ValidationError as error:
        raise ValueError(f"{path}: {explained(error, Measured)}") from None
