"""The checks and measurements of `benchmarks/gpu_check.sh`: on GPUs where there are some, on Gloo elsewhere."""
