"""Tasks: modules that subclass ``SGMCMCModule``, their networks, data and experiments."""
