"""Numbers for Prometheus. Nothing here is loaded unless ``singleton_http`` is set."""
