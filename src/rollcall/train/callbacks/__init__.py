"""What a program may do at named moments of a training.

callback     `Callback`: the moments; and how a Trainer calls those that are overridden
throughput   tokens a second, and the share of the GPU's arithmetic that the model uses
profile      torch.profiler for some steps
ema          the moving average of the weights
"""
