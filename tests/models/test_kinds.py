"""The facts of every kind of model hold of the models that are built."""

import sys
from math import prod
from typing import get_args

import pytest

from plkernel.config.condition import resolve
from plkernel.config.schema import ModelSpec
from plkernel.models import ModelKind
from plkernel.models.init.plan import find_scheme
from plkernel.models.kinds import FOREIGN, KINDS
from plkernel.training.build import build, started


def spec_of(kind: str) -> ModelSpec:
    heads = {"head_size": 8} if "head_size" in KINDS[kind].options else {}
    return ModelSpec(kind=kind, dim=16, layers=1, **heads)


def test_every_kind_that_a_spec_can_name_has_its_facts() -> None:
    assert list(KINDS) == list(get_args(ModelKind))
    assert ModelSpec(kind="module:attribute").of_kind is FOREIGN
    for kind in KINDS.values():
        assert set(kind.options) <= set(ModelSpec.model_fields)
        for scheme in filter(None, (kind.scheme, kind.spectral_scheme)):
            find_scheme(scheme)


@pytest.mark.parametrize("name", KINDS)
def test_the_facts_of_a_kind_hold_of_its_models(name: str) -> None:
    spec = spec_of(name)
    kind = spec.of_kind
    model = build(resolve(spec))
    (half_lives,) = model.half_lives()
    assert half_lives.numel() == prod(spec.heads) == 16
    assert spec.node_count == (8 if "head_size" in kind.options else 16)
    assert hasattr(model.config, "dropout") == kind.has_dropout
    assert hasattr(model.config, "parametrisation") == ("parametrisation" in kind.options)
    assert any(".ln0." in key for key in model.state_dict()) == kind.norms_embedding
    assert any(key.endswith("time_faaaa") for key in model.state_dict()) == kind.has_bonus
    assert kind.operator is not None
    assert callable(getattr(sys.modules[type(model).__module__], kind.operator))


@pytest.mark.parametrize("name", KINDS)
def test_a_scheme_sets_the_decays_of_the_kinds_that_keep_them(name: str) -> None:
    """Their parameters are zeros until then, and so are one decay for all channels."""
    condition = resolve(spec_of(name))
    assert condition.places_nodes != condition.model.of_kind.has_own_decays
    (half_lives,) = started(condition, 0).half_lives()
    assert half_lives.unique().numel() > 1
