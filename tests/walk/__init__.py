"""Random walks over the verbs, from a seed: ``python -m tests.walk --help``."""
