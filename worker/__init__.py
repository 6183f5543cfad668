"""The farm: queue, worker, store, supervisor and command line. Import what you need from below."""
