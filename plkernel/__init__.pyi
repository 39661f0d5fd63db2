from plkernel.analysis.fit import fit as fit
from plkernel.analysis.nodes import place as place
from plkernel.api.memory import measure as measure
from plkernel.api.models import apply as apply
from plkernel.api.models import evaluate as evaluate
from plkernel.api.models import influence as influence
from plkernel.api.models import load_run as load_run
from plkernel.api.models import read_checkpoint as read_checkpoint
from plkernel.api.models import truncation as truncation
from plkernel.api.text import load_corpus as load_corpus
from plkernel.config.reading import load_spec as load_spec
from plkernel.records.study import read_study as read_study

__all__: list[str]
__version__: str
