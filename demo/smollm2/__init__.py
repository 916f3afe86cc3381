"""The head of SmolLM2-135M-Instruct: the prompts that it learned from."""
