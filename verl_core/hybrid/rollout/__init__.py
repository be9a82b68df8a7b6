"""Engines that sample responses, one a file; `base` holds what they share."""
