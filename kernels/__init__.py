"""Device code: Triton kernels and the pure functions that choose their launches."""
