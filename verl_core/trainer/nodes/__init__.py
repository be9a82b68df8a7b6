"""The built-in nodes of the dataflow, one operation a file."""
