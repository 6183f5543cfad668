"""The dashboard: submit renders, watch the queue, play what was made. Never imports the engine."""
