"""Inference engines: the protocol, the client for SGLang's chat contract, and the embedded one."""
