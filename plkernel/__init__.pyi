from plkernel.analysis.fit import fit as fit
from plkernel.analysis.nodes import place as place
from plkernel.api.layers import apply as apply
from plkernel.api.models import evaluate as evaluate
from plkernel.api.models import generate as generate
from plkernel.api.models import influence as influence
from plkernel.api.models import inspect as inspect
from plkernel.api.models import load_run as load_run
from plkernel.api.models import truncation as truncation
from plkernel.api.studies import load_study as load_study
from plkernel.api.studies import run_study as run_study
from plkernel.api.studies import trial as trial
from plkernel.api.texts import load_corpus as load_corpus
from plkernel.api.texts import measure as measure
from plkernel.config.reading import load_spec as load_spec
from plkernel.decays.watch import decay_param_groups as decay_param_groups
from plkernel.decays.watch import watch as watch

__all__: list[str]
__version__: str
