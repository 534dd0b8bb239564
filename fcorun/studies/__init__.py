"""Many runs that answer one question: strengths by cross-validation, stability, comparison, and figures with their
claims.

It imports the rooms up to ``runs``.
"""
