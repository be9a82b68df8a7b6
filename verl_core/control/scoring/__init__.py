"""Scoring over HTTP: rows in, components and the fused reward out.

models -> batch -> service (lease, admission, where it runs) -> answer; stream is the form for large
bodies. The routes are in `verl_core.control.routers.score`.
"""
