"""What every server shares: lifecycle, interceptors, errors, paging, settings, telemetry."""
