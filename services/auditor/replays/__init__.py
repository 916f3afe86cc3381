"""Computing a receipted request again: on an engine of the auditor's own, or by asking a generation service."""
