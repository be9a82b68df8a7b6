"""Hot reload: a changed file becomes a new generation of its mount's provider, under load.

`fingerprint` sees that files changed, `copies` takes them as they stand still, `rebase` points a
provider's config at the copies, `proof` tries the candidate, `place` puts it in the old one's
place, and `places` does so for all mounts of an engine.
"""
