"""Training that continues after an interruption, in a loop of rollcall's (`Trainer`) or of your own.

trainer          the training loop
stepping         one optimizer step
evaluate         means over the samples of all ranks
data             which rank trains on which sample
external_loader  loaders that are not rollcall's
strategies       how the ranks share the model: ddp, fsdp, hsdp, none
sharding/        models of which each rank holds a part
weights/         where the values of a model come from
optimizers       one optimizer or several
early_stopping   when to stop
save_interval    when to save
interruptions    SIGTERM, losses that are not finite, the time to save
rank_sync        a few numbers exchanged between all ranks, four times a second
consensus        checks that all ranks make together, and errors that end all of them
checkpoint/      snapshots: what is saved, how it is written and read
reporting/       mean loss, metrics on disk, progress bar
callbacks/       named moments of a training, and what happens there
recipes/         what `rollcall train` runs; __main__ the same under another launcher
digits/          its default: handwritten digits
"""
