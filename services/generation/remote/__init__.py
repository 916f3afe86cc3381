"""Other engines behind this service: vLLM, SGLang, llama-server."""
