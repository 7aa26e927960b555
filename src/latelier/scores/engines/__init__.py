"""What computes MaxSim: one module per engine, and `choice`, which picks one for the inputs at hand."""
