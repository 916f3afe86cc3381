"""Witnesses: cosignatures, the policy that names witnesses, the cosignatures of a log."""
