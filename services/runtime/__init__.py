"""Shared by every server: lifecycle, interceptors, errors, paging, settings, telemetry."""
