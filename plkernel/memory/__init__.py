"""Earlier names of modules, which specs, registrations, run folders and scripts may say."""
