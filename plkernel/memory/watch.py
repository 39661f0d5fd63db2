"""An earlier name of `plkernel.decays.watch`."""

from plkernel.decays.watch import decay_param_groups, lightning_callback, trainer_callback, watch

__all__ = ["decay_param_groups", "lightning_callback", "trainer_callback", "watch"]
