"""The tokenizer that a GGUF file describes: vocabulary, merges and the name of a way to split text."""
