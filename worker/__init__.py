"""The workers: they serve the queue and run the engine as a process. No torch."""
