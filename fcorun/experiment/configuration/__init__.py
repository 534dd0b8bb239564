"""The configuration: from the command line and files to plain values, by Hydra."""
