"""From the command line and configuration files to plain values, by Hydra."""
