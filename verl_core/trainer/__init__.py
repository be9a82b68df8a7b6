"""Training a real model with rewards that are plugins. Only this package and `hybrid` use torch."""
