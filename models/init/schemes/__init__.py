"""Every scheme by name: importing this package registers them."""

from plkernel.models.init.schemes import (
    cerebras,
    llm_foundry,
    lm_engine,
    maxtext,
    megatron,
    mup,
    nanotron,
    olmo,
    papers,
    rwkv,
    torchtitan,
    transformers,
    unnormalised,
)

__all__ = [
    "cerebras",
    "llm_foundry",
    "lm_engine",
    "maxtext",
    "megatron",
    "mup",
    "nanotron",
    "olmo",
    "papers",
    "rwkv",
    "torchtitan",
    "transformers",
    "unnormalised",
]
