"""python -m plkernel.bench wkv7: the recurrence of RWKV-7 against its peers, forward plus backward, with its memory."""
