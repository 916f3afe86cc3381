"""LoRA adapters in peft's layout: read and checked against the base, computed row by row beside its linear layers."""
