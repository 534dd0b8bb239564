"""Figures of papers, specified in conf/experiment: their runs, their pictures, and the claims of the paper."""
