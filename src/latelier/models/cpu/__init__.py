"""Faster forward passes of an encoder on a CPU, with the numbers of the modules themselves.

`forwards` patches the modules of a model while texts are encoded, with prepacked weights (`prepacked`) and with BERT's
layers in few operations (`bert`). An exported encoder, such as one for ONNX Runtime, belongs beside them.
"""
