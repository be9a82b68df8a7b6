"""verl-reward: the reward layer and a trainer for post-training language models with RL."""

__version__ = "0.1.0"
