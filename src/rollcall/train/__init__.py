"""Training that survives. The files, in the order in which a training passes through them:

options     the command line of `rollcall train`; program is what its ranks run, digits its data and models
data        which rank learns from which sample; foreign: loaders that are not ours
strategies  how the ranks share the model
trainer     the loop; stepping takes one step, measuring evaluates, early and pace say when to stop and to save
watch       what may happen at any step; pulse lets the ranks tell each other, meter adds up what they learnt
snapshot    saves and loads: state (what), staging (the copy), writing, storage (the files), manifest and shelf (their
            folder), choice and fitting (which one to continue from, and whether it fits), rng
journal     the record, and board: the same for TensorBoard; append adds to a file; bar: how far the epoch is
agree       all ranks look at a question together, and end with one sentence
"""
