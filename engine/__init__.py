"""The engine: one process that knows a run folder and nothing of databases, queues or pages."""
