"""From the layout in which a model is trained to the one in which it generates."""
