"""Models and initialisations of other people's code, named in a spec as module:attribute, and what is asked of them.

`kind = "mypackage.mymodule:Builder"` names a callable that takes the table `config` of [model] as one dictionary and
gives a torch.nn.Module. Of it this is asked:

    model(bytes)        (B,T) int64, 0..255, to logits (B,T,256), those at t from bytes 0..t alone; for any T, or with
                        an attribute `patch` = P for multiples of P

and this may be there:

    half_lives()        of every block those of its channels, in bytes: [(N,), ..], positive. Left out, the decays that
                        plkernel.inspect finds by the names of tensors; where it knows none, rows hold no half-lives
    kernels(lags)       of every block what an input still weighs after `lags` (T,) bytes: [(T,), ..]. Left out, the
                        root mean square of these decays; where there are none, rows hold no kernels
    multipliers()       {pattern of parameter names: {"learning_rate": x, "weight_decay": y, "eps": z}}, of what [train]
                        says. What is left out is 1, but for the weight decay of what is no matrix (`.weight` of two or
                        more dimensions), which is 0

`kind = "transformers:MambaForCausalLM"` names a class with a `config_class`: that is built from `config`, over bytes.

The constructor draws from the global generators of torch, numpy and random, seeded by the run; so do dropout and the
like, anew at every step, so that a run that was killed goes on to the same numbers. What a model keeps beside its
parameters and buffers is lost with the process. Parameters are float32 or float64; on a GPU a run is in bfloat16
autocast. `init = "mypackage.mymodule:function"` of an arm names `function(model, generator, **init_options)`, called
after all else, which changes the model in place.

Nothing is imported before the person has said --trust-code. Between `spec` and `run`.
"""
