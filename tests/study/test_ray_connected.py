"""Connecting to a Ray cluster: what is missing is named at once."""

import sys

import pytest

from plkernel.study.ray_engine import connected


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "plkernel\[dist\]"'), connected():
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_named(monkeypatch, scheme):
    pytest.importorskip("ray", reason="needs the extra dist")
    monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:1")
    with pytest.raises(OSError, match=f"RAY_ADDRESS={scheme}127.0.0.1:1: no cluster answers"), connected():
        pass
