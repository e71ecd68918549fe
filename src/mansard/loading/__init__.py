"""Reading models from disk: GGUF, safetensors, tokenizers and chat templates; every byte is checked before use."""
