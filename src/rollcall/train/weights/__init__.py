"""Where the values of a model come from, and where they go: never whole on a device.

initialize    values for a model on `meta`, module by module
load          values from a checkpoint, each rank only its part
export        a snapshot's model as one safetensors file
sources       checkpoints that can be read: safetensors, torch.save, DCP
safetensors   reads and writes safetensors files
mismatch      how a checkpoint differs from a model, in words
parts         which part of a tensor this rank has
"""
