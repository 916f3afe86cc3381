"""The bundled base model: corpus builders, training recipe, weights, prompts."""
