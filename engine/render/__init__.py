"""Rendering: a model's chat template, asked by rendering, turns rows into tokens with provenance."""
