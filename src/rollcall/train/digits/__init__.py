"""The recipe of `rollcall train` without one of the user's: scikit-learn's handwritten digits.

recipe   model, optimizer and data
dataset  the images
models   mlp and cnn
"""
