"""Kernels in C for CPUs, compiled on the machine they run on. `library.load()` has them, or says why there are none.

Every function works on float32 tensors in memory, whole rows at a time; a row's result has the same bits whatever rows
are computed beside it and on however many threads. The C files define what is computed; these modules pass pointers.
"""
