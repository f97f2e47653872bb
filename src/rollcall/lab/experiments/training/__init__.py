"""Gradients, and what the ranks wait for in a training step."""
