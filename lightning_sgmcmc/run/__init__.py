"""A run: command line, configuration, results, figures, and opening a finished one."""
