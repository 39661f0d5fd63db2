"""python -m plkernel.bench compiled: what every Triton kernel takes of three chips, compiled without any of them."""
