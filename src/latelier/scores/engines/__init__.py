"""The engines that compute MaxSim, one module each, and `choice`, which picks one for given inputs."""
