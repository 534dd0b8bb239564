"""Where records are shown besides, one sink a file."""
