"""The rewards inside other trainers, one trainer a file: `trl`, `openrlhf`, `verl`.

Each turns a config into what the trainer calls. What a config asks for by name and the trainer
cannot carry is refused when it is read, with the reason; a default that it cannot carry is replaced
by another, and said once (``docs/peers.md`` has the tables). Nothing here imports a trainer.
"""
