"""From words to a checked experiment: configuration by Hydra, preparation, reference optimum, advice.

It imports the rooms up to ``engine``.
"""
