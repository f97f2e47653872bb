"""What `rollcall train` runs: a Trainer on scikit-learn's handwritten digits.

config   the options of the training, and how they are handed to the ranks
recipe   model, optimizer and data
dataset  the images
models   mlp and cnn
"""
