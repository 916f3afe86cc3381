"""The canonical pass on a GPU, by OpenCL or CUDA: the arithmetic, profile and bits of the CPU's. Experimental."""
