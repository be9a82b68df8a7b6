"""Figures for Prometheus: what is counted, where the numbers lie, and how they are told.

`board` holds the numbers, which several workers share; `figures` is what writes them, out of the
engine and the control plane; `exposition` is ``GET /metrics``. Every label's values are known from
the config and the routes before anything is counted, so that no input makes the page grow.
"""
