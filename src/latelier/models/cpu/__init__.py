"""Faster forward passes of an encoder on a CPU, with the same results up to rounding.

`forwards` patches the modules of a model while texts are encoded, with prepacked weights (`prepacked`) and with BERT's
layers in few operations (`bert`). `onnx_export`, `onnx_store` and `onnx_session` export the transformer, keep the
export, and run it with ONNX Runtime.
"""
