"""Runs models: batches, replay of what a patch changes, gradients, and what it all cost."""
