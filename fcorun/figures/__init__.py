"""Figures of papers: what to run, how it is drawn, and what the paper claims of it, from conf/experiment."""
